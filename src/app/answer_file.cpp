#include "app/answer_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "app/line_io.h"
#include "app/output.h"
#include "app/prompt.h"
#include "base/error.h"

namespace kd {

namespace {

std::string settings_path(const std::string& path) {
    return path + ".settings.json";
}

std::string value_text(const nlohmann::ordered_json& settings, const std::string& key) {
    if (!settings.contains(key)) return "nothing";
    return settings[key].dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

AnswerFile::AnswerFile(const std::string& path, const nlohmann::ordered_json& settings,
                       bool overwrite)
    : path_(path), settings_(settings) {
    if (path_ == "-") return;
    struct stat info {};
    const bool there = stat(path_.c_str(), &info) == 0;
    if (!there && errno != ENOENT) refuse(errno);
    regular_ = !there || S_ISREG(info.st_mode);
    if (!there) {
        expect_writable(path_);
        return;
    }
    descriptor_.number = open(path_.c_str(), (regular_ ? O_RDWR : O_WRONLY) | O_CLOEXEC);
    if (descriptor_.number < 0) refuse(errno);
    if (!regular_) return;
    lock();
    if (!overwrite) read_kept();
}

AnswerFile::Descriptor::~Descriptor() {
    if (number >= 0) close(number);
}

void AnswerFile::lock() const {
    if (flock(descriptor_.number, LOCK_EX | LOCK_NB) == 0) return;
    if (errno == EWOULDBLOCK) KD_THROW(io, "{} is being written by another process", path_);
    refuse(errno);
}

void AnswerFile::refuse(int why) const {
    KD_THROW(io, "cannot write {}: {}", path_, std::strerror(why));
}

void AnswerFile::read_kept() {
    const std::string text = read_text(path_, std::numeric_limits<size_t>::max());
    if (text.empty()) return;
    for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
        kept_.push_back(text.substr(begin, end - begin));
        kept_bytes_ = static_cast<int64_t>(end + 1);
    }
    compare_settings();
}

void AnswerFile::compare_settings() const {
    const std::string path = settings_path(path_);
    if (!std::filesystem::exists(path)) {
        KD_THROW(invalid_argument,
                 "{} is there without {}: not begun by run --prompts; --overwrite starts anew",
                 path_, path);
    }
    const auto before =
        nlohmann::ordered_json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
    if (!before.is_object()) {
        KD_THROW(corrupt, "{} is no JSON object; --overwrite starts anew", path);
    }
    const auto compare = [&](const std::string& key) {
        if (before.contains(key) && settings_.contains(key) && before[key] == settings_[key])
            return;
        KD_THROW(invalid_argument,
                 "{} was begun with {} = {}, now it is {}; --overwrite starts anew", path_, key,
                 value_text(before, key), value_text(settings_, key));
    };
    for (const auto& [key, value] : settings_.items()) compare(key);
    for (const auto& [key, value] : before.items()) compare(key);
}

void AnswerFile::begin() {
    if (path_ == "-" || !regular_) return;
    if (descriptor_.number < 0) {
        descriptor_.number = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor_.number < 0) refuse(errno);
        lock();
    }
    // In this order a process that dies in between leaves no line with the settings of another.
    if (ftruncate(descriptor_.number, kept_bytes_) != 0) refuse(errno);
    if (lseek(descriptor_.number, 0, SEEK_END) < 0) refuse(errno);
    write_file(settings_path(path_), settings_.dump(2) + "\n");
}

void AnswerFile::append(std::string_view line) {
    // A torn line that cannot be cut off the next run takes off.
    path_ == "-" ? write_line(STDOUT_FILENO, "to standard output", line)
                 : write_line(descriptor_.number, path_, line);
}

}  // namespace kd
