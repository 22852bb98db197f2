#include "engine/service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <system_error>

namespace kd {

namespace {

/// Longer waits are waits without end: the clock's arithmetic must not overflow.
constexpr int64_t kLongestTimeout = int64_t{1} << 40;

bool is_news(const Delta& delta) {
    return delta.finish != FinishReason::none || !delta.ids.empty() || !delta.text.empty() ||
           !delta.prompt_logprobs.empty();
}

}  // namespace

Service::Service(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
    stats_.slots_total = engine_->pool().total();
    stats_.slots_free = engine_->pool().free();
}

Service::~Service() {
    stop();
    Lock lock(mutex_);
    closing_ = true;
    news_arrived_.notify_all();
    changed_.wait(lock, [&] { return waiters_ == 0 && stepper_ == Stepper::none; });
}

// --- from any thread ------------------------------------------------------------------------

std::vector<RequestId> Service::submit(std::vector<Request> requests) {
    for (const Request& request : requests) engine_->check(request);
    std::vector<RequestId> ids;
    ids.reserve(requests.size());
    const Lock lock(mutex_);
    expect_alive();
    // What can fail comes first, so that all requests are queued or none.
    const size_t queued = inbox_.size() + requests.size();
    if (queued > inbox_.capacity()) inbox_.reserve(std::max(queued, 2 * inbox_.capacity()));
    std::map<RequestId, Outbox> fresh;
    for (size_t i = 0; i < requests.size(); ++i) {
        ids.push_back(next_id_ + i);
        fresh[ids.back()].delta.stats.prompt_tokens =
            static_cast<int32_t>(requests[i].prompt.size());
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        inbox_.push_back(
            {.kind = Command::Kind::submit, .id = ids[i], .request = std::move(requests[i])});
    }
    outboxes_.merge(fresh);
    next_id_ += requests.size();
    stats_.submitted += static_cast<int64_t>(requests.size());
    stats_.unfinished += static_cast<int64_t>(requests.size());
    changed_.notify_all();
    return ids;
}

void Service::cancel(RequestId id) {
    const Lock lock(mutex_);
    ask_cancel(id, find(id)->second);
}

void Service::drop(RequestId id) {
    const Lock lock(mutex_);
    const auto found = find(id);
    ask_cancel(id, found->second);
    if (found->second.delta.finish == FinishReason::none) {
        stats_.unfinished -= 1;
        stats_.dropped += 1;
    }
    news_.erase(found->second.news);
    outboxes_.erase(found);
    news_arrived_.notify_all();  // who waits for it has to learn that it is gone
}

std::optional<Delta> Service::poll(RequestId id, Timeout timeout) {
    Lock lock(mutex_);
    find(id);
    wait_until(lock, timeout, [&] {
        const auto found = outboxes_.find(id);
        return found == outboxes_.end() || found->second.news != 0;
    });
    if (closing_) return std::nullopt;
    const auto found = find(id);
    Outbox& outbox = found->second;
    news_.erase(std::exchange(outbox.news, 0));
    Delta delta = std::exchange(outbox.delta, {.stats = outbox.delta.stats});
    if (delta.finish != FinishReason::none) outboxes_.erase(found);
    return delta;
}

std::optional<size_t> Service::wait(std::span<RequestId> ids, Timeout timeout) {
    Lock lock(mutex_);
    wait_until(lock, timeout, [&] { return !news_.empty(); });
    if (closing_) return std::nullopt;
    const size_t count = std::min(ids.size(), news_.size());
    auto each = news_.begin();
    for (size_t i = 0; i < count; ++i, ++each) ids[i] = each->second;
    return count;
}

ServiceStats Service::stats() const {
    const Lock lock(mutex_);
    ServiceStats stats = stats_;
    stats.background = stepper_ == Stepper::background;
    stats.unpolled = static_cast<int64_t>(outboxes_.size()) - stats.unfinished;
    return stats;
}

void Service::expect_alive() const {
    if (failure_.has_value()) {
        throw Error(failure_->first, "the engine has stopped: " + failure_->second, __FILE__,
                    __LINE__);
    }
}

std::map<RequestId, Service::Outbox>::iterator Service::find(RequestId id) {
    const auto found = outboxes_.find(id);
    if (found == outboxes_.end()) KD_THROW(not_found, "no request {}", id);
    return found;
}

void Service::ask_cancel(RequestId id, Outbox& outbox) {
    if (outbox.cancelled || outbox.delta.finish != FinishReason::none) return;
    inbox_.push_back({.kind = Command::Kind::cancel, .id = id, .request = {}});
    outbox.cancelled = true;
    changed_.notify_all();
}

template <class Ready>
void Service::wait_until(Lock& lock, Timeout timeout, Ready&& ready) {
    const auto over = [&] { return closing_ || ready(); };
    if (timeout == 0 || over()) return;
    ++waiters_;
    if (timeout < 0 || timeout > kLongestTimeout) {
        news_arrived_.wait(lock, over);
    } else {
        news_arrived_.wait_for(lock, std::chrono::milliseconds(timeout), over);
    }
    --waiters_;
    if (closing_) changed_.notify_all();
}

// --- the thread that steps ------------------------------------------------------------------

StepResult Service::step() {
    {
        const Lock lock(mutex_);
        expect_alive();
        if (stepper_ != Stepper::none) return StepResult::busy;
        stepper_ = Stepper::caller;
    }
    struct Release {
        Service* service;
        ~Release() {
            const Lock lock(service->mutex_);
            service->release_stepper();
        }
    } release{this};
    return step_once();
}

void Service::release_stepper() {
    stepper_ = Stepper::none;
    changed_.notify_all();
}

StepResult Service::step_once() {
    try {
        const RoundStats* round = advance();
        const Lock lock(mutex_);
        publish(round);
        return round != nullptr ? StepResult::ran : StepResult::idle;
    } catch (const Error& error) {
        const Lock lock(mutex_);
        fail(error.code, error.what());
        throw;
    } catch (const std::exception& error) {
        const Lock lock(mutex_);
        fail(ErrorCode::out_of_resources, error.what());
        throw;
    }
}

const RoundStats* Service::advance() {
    std::vector<Command> commands;
    {
        const Lock lock(mutex_);
        commands.swap(inbox_);
    }
    collected_.clear();
    for (Command& command : commands) apply(command);
    const RoundStats* round = engine_->step();
    collect();
    if (active_.empty()) engine_->check_books();
    return round;
}

void Service::apply(Command& command) {
    if (command.kind == Command::Kind::cancel) {
        const auto found = active_.find(command.id);
        if (found != active_.end()) engine_->cancel(found->second);
        return;
    }
    Delta refused;
    refused.stats.prompt_tokens = static_cast<int32_t>(command.request.prompt.size());
    try {
        active_.emplace(command.id, engine_->submit(std::move(command.request)));
    } catch (const Error& error) {
        // It passed the check; what is missing now, it alone must do without.
        refused.finish = FinishReason::error;
        refused.error = error.what();
        collected_.emplace_back(command.id, std::move(refused));
    }
}

void Service::collect() {
    for (auto each = active_.begin(); each != active_.end();) {
        Delta delta = engine_->poll(each->second);
        const bool ended = delta.finish != FinishReason::none;
        if (is_news(delta)) collected_.emplace_back(each->first, std::move(delta));
        each = ended ? active_.erase(each) : std::next(each);
    }
}

void Service::publish(const RoundStats* round) {
    for (auto& [id, delta] : collected_) {
        const auto found = outboxes_.find(id);
        if (found != outboxes_.end()) deliver(id, found->second, std::move(delta));
    }
    stats_.running = engine_->running();
    stats_.slots_used = engine_->pool().used();
    stats_.slots_free = engine_->pool().free();
    stats_.slots_cached = engine_->pool().cached();
    if (round != nullptr) {
        stats_.rounds += 1;
        stats_.busy_s += round->total_s;
        stats_.last_round = *round;
    }
    if (!collected_.empty()) news_arrived_.notify_all();
}

void Service::deliver(RequestId id, Outbox& outbox, Delta&& delta) {
    stats_.tokens += static_cast<int64_t>(delta.ids.size());
    append(outbox.delta, std::move(delta));
    if (outbox.news == 0) {
        outbox.news = next_news_++;
        news_.emplace(outbox.news, id);
    }
    if (outbox.delta.finish == FinishReason::none) return;
    stats_.unfinished -= 1;
    switch (outbox.delta.finish) {
        case FinishReason::abort:
            stats_.aborted += 1;
            break;
        case FinishReason::error:
            stats_.failed += 1;
            break;
        default:
            stats_.finished += 1;
    }
}

/// The engine may be in any state now, so it is not touched again. Nor is the inbox: what a request
/// owns may call back when it goes, which must not happen under the lock.
void Service::fail(ErrorCode code, const std::string& message) {
    failure_.emplace(code, message);
    for (auto& [id, outbox] : outboxes_) {
        if (outbox.delta.finish != FinishReason::none) continue;
        Delta end;
        end.finish = FinishReason::error;
        end.error = message;
        end.stats = outbox.delta.stats;
        deliver(id, outbox, std::move(end));
    }
    news_arrived_.notify_all();
    changed_.notify_all();
}

// --- the background thread ------------------------------------------------------------------

bool Service::start() {
    const Lock lock(mutex_);
    expect_alive();
    if (stepper_ != Stepper::none) return false;
    try {
        background_ = std::thread([this] { run_background(); });
    } catch (const std::system_error& error) {
        KD_THROW(out_of_resources, "the stepping thread cannot be started: {}", error.what());
    }
    background_id_ = background_.get_id();
    stepper_ = Stepper::background;
    return true;
}

void Service::stop() {
    Lock lock(mutex_);
    if (std::this_thread::get_id() == background_id_) {
        KD_THROW(invalid_argument, "the stepping thread cannot stop itself");
    }
    if (stepper_ == Stepper::stopping) {
        changed_.wait(lock, [&] { return stepper_ != Stepper::stopping; });
    }
    if (stepper_ != Stepper::background) return;
    stepper_ = Stepper::stopping;
    changed_.notify_all();
    lock.unlock();
    background_.join();
    lock.lock();
    background_id_ = {};
    release_stepper();
}

void Service::run_background() {
    bool more = true;  // whether there may be something to do: who stepped before may have left it
    for (;;) {
        {
            Lock lock(mutex_);
            changed_.wait(lock, [&] {
                return stepper_ != Stepper::background ||
                       (!failure_.has_value() && (more || !inbox_.empty()));
            });
            if (stepper_ != Stepper::background) return;
        }
        try {
            more = step_once() == StepResult::ran;
        } catch (const std::exception&) {
            more = false;  // it was recorded; submit and step say so
        }
    }
}

}  // namespace kd
