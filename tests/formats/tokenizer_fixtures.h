// The tokenizer fixtures (tools/make_tokenizer_family_fixtures.py) and folders made of them.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/check.h"
#include "formats/json_file.h"
#include "support/gguf_writer.h"

namespace kd {

/// tests/data/formats/NAME, a gzip of JSON.
inline Json read_fixture(const std::string& name) {
    const std::string path = std::string(KD_TEST_DATA) + "/formats/" + name;
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
        popen(("gzip -dc '" + path + "'").c_str(), "r"), &pclose);
    KD_CHECK(pipe != nullptr, "gzip does not start");
    std::string text;
    char block[65536];
    for (size_t bytes; (bytes = fread(block, 1, sizeof block, pipe.get())) > 0;) {
        text.append(block, bytes);
    }
    return parse_json(text, path);
}

/// A folder with these files, removed at the end.
class TempFolder {
  public:
    explicit TempFolder(const std::map<std::string, std::string>& files) {
        std::filesystem::create_directory(path_.path());
        for (const auto& [name, content] : files) {
            write_test_file(path_.path() + "/" + name, content);
        }
    }
    ~TempFolder() { std::filesystem::remove_all(path_.path()); }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::string& path() const { return path_.path(); }

  private:
    TempPath path_{""};
};

}  // namespace kd
