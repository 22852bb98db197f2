#include "app/progress.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace kd {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstDraw{1000};
constexpr std::chrono::milliseconds kRedraw{200};
// What hides the line writes right after; the line must not come back in between.
constexpr std::chrono::milliseconds kQuiet{100};
constexpr std::string_view kErase = "\r\x1b[K";
constexpr std::string_view kEllipsis = "...";

/// Whether the line is on the terminal; for signal handlers too.
volatile std::sig_atomic_t g_visible = 0;

/// The one line that all tasks share: the task begun last has it.
struct Line {
    std::mutex mutex;
    std::vector<const Progress*> tasks;
    Clock::time_point quiet_until{};
    bool held = false;  // somebody's unfinished line is on the terminal
};

Line& line() {
    static Line instance;
    return instance;
}

void to_terminal(std::string_view text) {
    // Unbuffered, in one piece; what a terminal refuses is lost, and no reason to stop.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

/// The mutex of line() must be held.
void erase() {
    if (g_visible == 0) return;
    to_terminal(kErase);
    g_visible = 0;
}

/// "1.2", "12", "1234": three digits are enough to see that it moves.
std::string figure(double value) {
    if (value == std::floor(value)) return fmt::format("{:.0f}", value);
    return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

struct Scale {
    double factor = 1;
    std::string unit;
};

Scale scale_of(const std::string& unit, double largest) {
    if (unit != "bytes") return {1, unit};
    const char* const names[] = {"bytes", "kB", "MB", "GB", "TB"};
    Scale scale = {1, names[0]};
    for (size_t i = 1; i < std::size(names) && largest >= 1000 * scale.factor; ++i) {
        scale = {scale.factor * 1000, names[i]};
    }
    return scale;
}

/// "8 s", "1:05", "1:02:03".
std::string clock_text(double seconds) {
    const auto whole = static_cast<int64_t>(std::min(std::ceil(seconds), 1e9));
    if (whole < 60) return fmt::format("{} s", whole);
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string amount_text(const ProgressTask& task, double done) {
    if (task.unit.empty()) return {};
    const Scale scale = scale_of(task.unit, std::max(task.total, done));
    const std::string so_far = figure(done / scale.factor);
    if (task.total <= 0) return fmt::format("{} {}, ", so_far, scale.unit);
    return fmt::format("{} of {} {}, ", so_far, figure(task.total / scale.factor), scale.unit);
}

std::string rate_text(const ProgressTask& task, double rate) {
    if (task.unit.empty()) return {};
    const Scale scale = scale_of(task.unit, rate);
    return fmt::format("{} {}/s, ", figure(rate / scale.factor), scale.unit);
}

/// Everything behind the label.
std::string figures_of(const ProgressTask& task, double done, double elapsed_s) {
    const double rate = elapsed_s > 0 ? (done - task.done) / elapsed_s : 0;
    std::string text = amount_text(task, done);
    if (task.total > 0) {
        const double share = std::clamp(done / task.total, 0.0, 1.0);
        text += fmt::format("{:.0f}%, ", std::floor(100 * share));
    }
    if (rate <= 0) return text + clock_text(elapsed_s);
    text += rate_text(task, rate);
    if (task.total <= 0) return text + clock_text(elapsed_s);
    return text + clock_text(std::max(task.total - done, 0.0) / rate) + " left";
}

/// `label` in at most `columns` columns, its middle left out if need be. What is no ASCII may take
/// two columns; bytes of one character stay together.
std::string fit(const std::string& label, int columns) {
    std::vector<std::string> cells;
    std::vector<int> widths;
    int width = 0;
    for (const char each : label) {
        const auto byte = static_cast<unsigned char>(each);
        if (byte >= 0x80 && byte < 0xc0 && !cells.empty()) {
            cells.back() += each;
            continue;
        }
        const bool control = byte < 0x20 || byte == 0x7f;
        cells.push_back(control ? fmt::format("\\x{:02x}", byte) : std::string(1, each));
        widths.push_back(control ? 4 : byte < 0x80 ? 1 : 2);
        width += widths.back();
    }
    std::string text;
    if (width <= columns) {
        for (const std::string& cell : cells) text += cell;
        return text;
    }
    int room = columns - static_cast<int>(kEllipsis.size());
    if (room < 2) return {};
    size_t head = 0, tail = cells.size();
    // Alternately, so that both ends stay: what is done, and the end of the file's name.
    for (bool front = true; head < tail; front = !front) {
        const int next = widths[front ? head : tail - 1];
        if (next > room) break;
        room -= next;
        front ? ++head : --tail;
    }
    for (size_t i = 0; i < head; ++i) text += cells[i];
    text += kEllipsis;
    for (size_t i = tail; i < cells.size(); ++i) text += cells[i];
    return text;
}

/// Of the terminal on standard error; 0 if it is none (or a dumb one).
int terminal_columns() {
    if (isatty(STDERR_FILENO) == 0) return 0;
    const char* kind = std::getenv("TERM");
    if (kind != nullptr && std::strcmp(kind, "dumb") == 0) return 0;
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

/// What the line says `elapsed_s` seconds into the task, in at most `columns` columns (the label is
/// shortened first).
std::string progress_text(const ProgressTask& task, double done, double elapsed_s, int columns) {
    const std::string figures = figures_of(task, done, elapsed_s);
    const std::string label = fit(task.label, columns - static_cast<int>(figures.size()) - 2);
    const std::string text = label.empty() ? figures : label + ": " + figures;
    return label.empty() ? text.substr(0, static_cast<size_t>(std::max(columns, 0))) : text;
}

}  // namespace

Progress::Progress(ProgressTask task)
    : task_(std::move(task)), done_(task_.done), begin_(Clock::now()) {
    if (terminal_columns() == 0) return;
    set_before_log([] { hide_progress(); });
    {
        const std::lock_guard lock(line().mutex);
        line().tasks.push_back(this);
    }
    // Signals belong to the thread that may wait for input: it has to be woken by them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ticker_.emplace([this](const std::stop_token& stop) { tick(stop); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Progress::~Progress() {
    if (!ticker_.has_value()) return;
    ticker_.reset();  // asks it to stop and waits
    const std::lock_guard lock(line().mutex);
    erase();
    std::erase(line().tasks, this);
}

void Progress::relabel(std::string label) {
    const std::lock_guard lock(line().mutex);
    task_.label = std::move(label);
}

void Progress::tick(const std::stop_token& stop) {
    Line& shared = line();
    std::unique_lock lock(shared.mutex);
    std::chrono::milliseconds wait = kFirstDraw;
    while (!wake_.wait_for(lock, stop, wait, [&] { return stop.stop_requested(); })) {
        wait = kRedraw;
        const auto now = Clock::now();
        if (shared.tasks.back() != this || shared.held || now < shared.quiet_until) continue;
        const int columns = terminal_columns();
        if (columns < 2) continue;
        // One column less: some terminals wrap when the last one is filled.
        const double elapsed_s = std::chrono::duration<double>(now - begin_).count();
        const double done = done_.load(std::memory_order_relaxed);
        g_visible = 1;
        to_terminal(
            fmt::format("{}{}", kErase, progress_text(task_, done, elapsed_s, columns - 1)));
    }
}

void hide_progress(bool ends_line) {
    Line& shared = line();
    const std::lock_guard lock(shared.mutex);
    erase();
    shared.held = !ends_line;
    shared.quiet_until = Clock::now() + kQuiet;
}

void erase_progress_from_signal() {
    if (g_visible != 0) to_terminal(kErase);
}

}  // namespace kd
