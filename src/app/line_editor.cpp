#include "app/line_editor.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "app/interrupt.h"
#include "app/line_io.h"
#include "app/output.h"
#include "app/progress.h"
#include "base/error.h"

namespace kd {

namespace {

// Terminals that know bracketed paste put these around pasted text once they were asked to.
constexpr std::string_view kBracketsOn = "\x1b[?2004h";
constexpr std::string_view kBracketsOff = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\\e[200~";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";

constexpr int kHistoryEntries = 1000;

termios g_terminal_before;

/// The process ends while a line is edited: the shell wants its terminal back as it was.
void restore_and_exit(int /*signal*/) {
    tcsetattr(STDIN_FILENO, TCSANOW, &g_terminal_before);
    [[maybe_unused]] const ssize_t told =
        write(STDOUT_FILENO, kBracketsOff.data(), kBracketsOff.size());
    _exit(kInterruptedExitCode);
}

bool terminal_can_edit() {
    const char* kind = std::getenv("TERM");
    return kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

}  // namespace

/// libedit, set up so that nothing is read from the user's home and no signal is touched.
struct LineEditor::Terminal {
    Terminal();
    ~Terminal();
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    Event read(const std::string& prompt_text, std::string& line);

    static Terminal& of(EditLine* editor);
    static char* show_prompt(EditLine* editor);
    static unsigned char cancel(EditLine* editor, int key);
    static unsigned char suspend(EditLine* editor, int key);
    static unsigned char paste(EditLine* editor, int key);

    History* history = nullptr;
    EditLine* editor = nullptr;
    std::string prompt;
    std::string cancelled_line;
    bool cancelled = false;
};

LineEditor::Terminal::Terminal() {
    // Text is UTF-8 here, whatever the environment says. Only the editor asks the locale.
    std::setlocale(LC_CTYPE, "C.UTF-8");
    tcgetattr(STDIN_FILENO, &g_terminal_before);
    history = history_init();
    editor = el_init("kdtree", stdin, stdout, stderr);
    if (history == nullptr || editor == nullptr) {
        KD_THROW(out_of_resources, "the line editor cannot start");
    }
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryEntries);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &Terminal::show_prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, &::history, history);
    // Ctrl-C, Ctrl-Z and Ctrl-\ are keys while a line is edited: a signal would find the terminal
    // in the editor's mode.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor, EL_ADDFN, "kd-cancel", "leave this line", &Terminal::cancel);
    el_set(editor, EL_BIND, "^C", "kd-cancel", nullptr);
    el_set(editor, EL_ADDFN, "kd-suspend", "stop the process", &Terminal::suspend);
    el_set(editor, EL_BIND, "^Z", "kd-suspend", nullptr);
    el_set(editor, EL_ADDFN, "kd-paste", "insert pasted text", &Terminal::paste);
    el_set(editor, EL_BIND, kPasteBegins, "kd-paste", nullptr);
    el_set(editor, EL_BIND, "^I", "ed-insert", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::Terminal::~Terminal() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
}

LineEditor::Terminal& LineEditor::Terminal::of(EditLine* editor) {
    void* terminal = nullptr;
    el_get(editor, EL_CLIENTDATA, &terminal);
    return *static_cast<Terminal*>(terminal);
}

char* LineEditor::Terminal::show_prompt(EditLine* editor) {
    return of(editor).prompt.data();
}

unsigned char LineEditor::Terminal::cancel(EditLine* editor, int /*key*/) {
    Terminal& terminal = of(editor);
    const LineInfo* line = el_line(editor);
    terminal.cancelled = true;
    terminal.cancelled_line.assign(line->buffer, line->lastchar);
    return CC_NEWLINE;
}

unsigned char LineEditor::Terminal::suspend(EditLine* editor, int /*key*/) {
    el_set(editor, EL_PREP_TERM, 0);
    std::raise(SIGTSTP);
    el_set(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
}

unsigned char LineEditor::Terminal::paste(EditLine* editor, int /*key*/) {
    std::wstring text;
    for (wchar_t each = 0; !text.ends_with(kPasteEnds) && el_wgetc(editor, &each) == 1;) {
        if (each != L'\0') text += each;
    }
    if (text.ends_with(kPasteEnds)) text.resize(text.size() - kPasteEnds.size());
    while (text.ends_with(L'\n')) text.pop_back();
    if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
}

LineEditor::Event LineEditor::Terminal::read(const std::string& prompt_text, std::string& line) {
    prompt = prompt_text;
    cancelled = false;
    struct sigaction before {};
    struct sigaction restore {};
    restore.sa_handler = restore_and_exit;
    sigaction(SIGTERM, &restore, &before);
    write_out(kBracketsOn);
    el_resize(editor);  // the window may have changed since the last line
    // libedit would show the prompt first: what is typed in between was echoed twice, and Ctrl-C a
    // signal.
    el_set(editor, EL_PREP_TERM, 1);
    int bytes = 0;
    const char* text = el_gets(editor, &bytes);
    const int why = errno;
    write_out(kBracketsOff);
    sigaction(SIGTERM, &before, nullptr);
    if (cancelled) {
        write_out("\n");
        line = cancelled_line;
        return Event::cancelled;
    }
    if (text == nullptr && bytes < 0) {
        KD_THROW(io, "cannot read from the terminal: {}", std::strerror(why));
    }
    if (text == nullptr || bytes == 0) {
        write_out("\n");
        return Event::end;
    }
    line.assign(text, static_cast<size_t>(bytes));
    if (line.ends_with('\n')) line.pop_back();
    return Event::line;
}

LineEditor::LineEditor()
    : prompts_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0),
      terminal_(prompts_ && terminal_can_edit() ? std::make_unique<Terminal>() : nullptr) {}

LineEditor::~LineEditor() = default;

LineEditor::Event LineEditor::read(const std::string& prompt, std::string& line) {
    line.clear();
    if (prompts_ && terminal_ == nullptr) write_out(prompt);
    const Event event = terminal_ != nullptr ? terminal_->read(prompt, line) : read_plain(line);
    // The echo has ended the line that the prompt began: progress may be shown.
    if (prompts_ && event == Event::line) hide_progress();
    return event;
}

LineEditor::Event LineEditor::read_plain(std::string& line) {
    int each = 0;
    while ((each = std::getc(stdin)) != EOF && each != '\n') {
        if (line.size() == kMaxLineBytes) {
            KD_THROW(invalid_argument, "a line is longer than {} bytes", kMaxLineBytes);
        }
        line += static_cast<char>(each);
    }
    if (std::ferror(stdin) != 0) {
        KD_THROW(io, "cannot read standard input: {}", std::strerror(errno));
    }
    if (each == EOF && line.empty()) return Event::end;
    if (line.ends_with('\r')) line.pop_back();
    return Event::line;
}

void LineEditor::remember(const std::string& text) {
    if (terminal_ == nullptr) return;
    HistEvent event;
    history(terminal_->history, &event, H_ENTER, text.c_str());
}

}  // namespace kd
