// The engine for many threads: submit, cancel and poll from any of them, one thread steps.
//
// The engine itself belongs to the thread that steps. Other threads leave commands in an inbox,
// which is applied between rounds, and find what a round brought in the outbox of their request.
// One mutex guards both; it is held for as long as it takes to move a few vectors, never during a
// round or a call into the engine, so nobody but step() and stop() waits for the model.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"

namespace kd {

/// Totals since the engine was loaded. submitted = unfinished + finished + aborted + failed +
/// dropped.
struct ServiceStats {
    int32_t running = 0;      // after the last step; a dropped request runs until the next one
    int32_t slots_total = 0;  // of the KV pool
    int32_t slots_used = 0;   // by sessions alone, after the last step, like the next two
    int32_t slots_free = 0;
    int32_t slots_cached = 0;  // in the prefix index
    bool background = false;   // whether the background thread steps
    int64_t unfinished = 0;
    int64_t unpolled = 0;  // ended requests whose last delta was not polled yet
    int64_t submitted = 0;
    int64_t finished = 0;  // by stop or length
    int64_t aborted = 0;
    int64_t failed = 0;
    int64_t dropped = 0;
    int64_t tokens = 0;  // emitted; those of a dropped request up to then
    int64_t rounds = 0;
    double busy_s = 0;  // in rounds
    RoundStats last_round;
};

enum class StepResult {
    ran,   // one round
    idle,  // there was nothing to do
    busy,  // another thread steps; nothing happened
};

class Service {
  public:
    /// Milliseconds to wait for news: 0: not at all; below 0: until there are some.
    using Timeout = int64_t;

    explicit Service(std::unique_ptr<Engine> engine);
    /// Ends the background thread and wakes whoever waits, and returns when they have left. Not
    /// from a logit mask.
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    /// Queues all requests or none. Throws what Engine::check throws, and once a step has failed.
    std::vector<RequestId> submit(std::vector<Request> requests);
    /// The request ends with FinishReason::abort before the next round, unless it has ended.
    /// Throws kd::Error (not_found) for an unknown id.
    void cancel(RequestId id);
    /// Cancels and forgets at once. Throws kd::Error (not_found) for an unknown id.
    void drop(RequestId id);
    /// What is new of a request; an empty delta after a timeout; nothing while the service is being
    /// destroyed. After a delta with a finish reason the id is forgotten. Throws kd::Error
    /// (not_found) for an unknown id, also for one that is dropped meanwhile.
    std::optional<Delta> poll(RequestId id, Timeout timeout);
    /// Fills `ids` with requests that have news, the longest waiting first, and returns their
    /// count; 0 after a timeout; nothing while the service is being destroyed. Requests are named
    /// again until they are polled.
    std::optional<size_t> wait(std::span<RequestId> ids, Timeout timeout);

    /// Applies commands and runs one round. What the engine throws ends all requests with
    /// FinishReason::error and the service for good; it is thrown on.
    StepResult step();
    /// Steps on a thread of its own, which sleeps while there is nothing to do. False, and nothing
    /// happened, if somebody steps already. Throws kd::Error if there is no thread to be had.
    bool start();
    /// Ends that thread after the round it is in; nothing if there is none.
    void stop();

    ServiceStats stats() const;
    /// What does not change after loading: check, config, tokenizer, model_config.
    const Engine& engine() const { return *engine_; }

  private:
    enum class Stepper { none, caller, background, stopping };

    /// What its owner has not polled yet.
    struct Outbox {
        Delta delta;
        uint64_t news = 0;  // its key in news_; 0: nothing new
        bool cancelled = false;
    };
    struct Command {
        enum class Kind { submit, cancel } kind;
        RequestId id;
        Request request;  // submit
    };
    using Lock = std::unique_lock<std::mutex>;

    // By the thread that steps, without the lock.
    StepResult step_once();
    const RoundStats* advance();
    void apply(Command& command);
    void collect();
    void run_background();
    // The rest with the lock held.
    void publish(const RoundStats* round);
    void deliver(RequestId id, Outbox& outbox, Delta&& delta);
    void fail(ErrorCode code, const std::string& message);
    void expect_alive() const;
    std::map<RequestId, Outbox>::iterator find(RequestId id);
    void ask_cancel(RequestId id, Outbox& outbox);
    void release_stepper();
    template <class Ready>
    void wait_until(Lock& lock, Timeout timeout, Ready&& ready);

    // Of the thread that steps.
    std::unique_ptr<Engine> engine_;
    std::map<RequestId, RequestId> active_;               // our id -> the engine's
    std::vector<std::pair<RequestId, Delta>> collected_;  // news of the step

    // Of everybody, under mutex_.
    mutable std::mutex mutex_;
    std::condition_variable news_arrived_;  // for poll and wait
    std::condition_variable changed_;       // for the background thread, stop and the destructor
    std::vector<Command> inbox_;
    std::map<RequestId, Outbox> outboxes_;
    std::map<uint64_t, RequestId> news_;  // by arrival
    uint64_t next_news_ = 1;
    RequestId next_id_ = 1;
    Stepper stepper_ = Stepper::none;
    std::thread background_;
    std::thread::id background_id_;
    int32_t waiters_ = 0;  // threads inside poll and wait
    bool closing_ = false;
    std::optional<std::pair<ErrorCode, std::string>> failure_;
    ServiceStats stats_;
};

}  // namespace kd
