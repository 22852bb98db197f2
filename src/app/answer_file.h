// The lines of a long run, kept whatever happens to it, so that the same command goes on where it
// ended. Beside the file OUT stands OUT.settings.json: what all its lines were made with.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kd {

/// A file or, for "-", standard output. Only a regular file is gone on with: a pipe or a device has
/// no lines of before, and gets no settings beside it.
class AnswerFile {
  public:
    /// Reads what is there and changes nothing. A last line without its end was torn off and does
    /// not count. With `overwrite` nothing is there. Throws kd::Error if the file cannot be
    /// written, is in use by another process, has lines but no settings, or others (naming them).
    AnswerFile(const std::string& path, const nlohmann::ordered_json& settings, bool overwrite);

    /// The complete lines that were there.
    const std::vector<std::string>& kept() const { return kept_; }
    /// Makes the file end after the kept lines and writes the settings: call it before append.
    void begin();
    /// Writes `line`, which ends with "\n", with write_line. Throws kd::Error.
    void append(std::string_view line);

  private:
    struct Descriptor {
        Descriptor() = default;
        Descriptor(const Descriptor&) = delete;
        Descriptor& operator=(const Descriptor&) = delete;
        ~Descriptor();

        int number = -1;
    };

    void lock() const;
    void read_kept();
    void compare_settings() const;
    [[noreturn]] void refuse(int why) const;

    std::string path_;
    nlohmann::ordered_json settings_;
    Descriptor descriptor_;   // none: standard output, or not made yet
    bool regular_ = false;    // or will be
    int64_t kept_bytes_ = 0;  // of the kept lines
    std::vector<std::string> kept_;
};

}  // namespace kd
