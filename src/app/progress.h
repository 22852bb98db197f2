// How far a long task is: one line on standard error, redrawn in place, if that is a terminal.
//
//     Progress progress({.label = "scoring", .total = lines, .unit = "lines"});
//     for (...) progress.update(++done);
//
// The line appears once the task has lasted a second, is redrawn five times a second whether or not
// update() is called, gives way to what write_out, write_err and the logs write, and is erased when
// the object goes. Without a terminal nothing is written and no thread is started.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <string>
#include <thread>

namespace kd {

struct ProgressTask {
    std::string label;  // "loading model.gguf"; control characters are shown escaped
    double total = 0;   // 0: not known, then no share and no time left
    std::string unit;   // plural: "prompts"; "bytes" is shown in kB, MB, ...; empty: a share only
    double done = 0;    // done before this run; counts for the share, not for the rate
};

class Progress {
  public:
    explicit Progress(ProgressTask task);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// `done` of `total` units so far, in all (not since the last call). Costs a store: call it as
    /// often as you like, from any thread.
    void update(double done) { done_.store(done, std::memory_order_relaxed); }
    /// Another label from here on; the counts stay.
    void relabel(std::string label);

  private:
    void tick(const std::stop_token& stop);

    ProgressTask task_;
    std::atomic<double> done_;
    const std::chrono::steady_clock::time_point begin_;
    std::condition_variable_any wake_;
    std::optional<std::jthread> ticker_;  // none without a terminal
};

/// Erases the line if it is there, so that something else can be written to the terminal; it comes
/// back with a later redraw. `ends_line` false: not before something has ended the line begun now.
void hide_progress(bool ends_line = true);
/// The same from a signal handler that ends the process.
void erase_progress_from_signal();

}  // namespace kd
