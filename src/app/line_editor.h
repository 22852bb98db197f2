// Lines that a person types: with editing and a history on a terminal, plain ones from elsewhere.
#pragma once

#include <memory>
#include <string>

namespace kd {

class LineEditor {
  public:
    enum class Event {
        line,       // may hold several: pasted text is one
        cancelled,  // Ctrl-C; `line` is what was there
        end         // Ctrl-D on an empty line, or the end of the input
    };

    /// Edits if standard input and output are a terminal that can. Without a terminal nothing is
    /// prompted and nothing but lines is read.
    LineEditor();
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    /// Waits for the next line, without its end. While it edits, Ctrl-C is a key, no signal. Throws
    /// kd::Error if reading fails.
    Event read(const std::string& prompt, std::string& line);
    /// What the up key finds later. Kept in memory only.
    void remember(const std::string& text);
    /// Whether somebody sees prompts.
    bool prompts() const { return prompts_; }

  private:
    struct Terminal;

    static Event read_plain(std::string& line);

    bool prompts_ = false;
    std::unique_ptr<Terminal> terminal_;  // null: no editing
};

}  // namespace kd
