// Special tokens written in a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kd {

class SpecialTokens {
  public:
    struct Entry {
        std::string text;  // not empty, distinct
        int32_t id;
    };
    struct Match {
        size_t begin = 0;
        size_t bytes = 0;  // 0: none, begin is the end of the text
        int32_t id = -1;
    };

    SpecialTokens() = default;
    explicit SpecialTokens(std::vector<Entry> entries);

    /// The leftmost special token in text, the longest of those that start there.
    Match find(std::string_view text) const;

  private:
    std::vector<Entry> entries_;  // ascending by text
    std::string first_bytes_;     // distinct
};

}  // namespace kd
