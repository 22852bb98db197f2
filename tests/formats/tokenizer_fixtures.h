// The tokenizer fixtures (tools/make_tokenizer_family_fixtures.py) and folders made of them.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/check.h"
#include "formats/json_file.h"
#include "support/hf_writer.h"

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
class FilesFolder {
  public:
    explicit FilesFolder(const std::map<std::string, std::string>& files) {
        for (const auto& [name, content] : files) folder_.write(name, content);
    }
    const std::string& path() const { return folder_.path(); }

  private:
    TempFolder folder_;
};

}  // namespace kd
