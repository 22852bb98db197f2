#include "formats/bpe_special.h"

#include <algorithm>

namespace kd {

SpecialTokens::SpecialTokens(std::vector<Entry> entries) : entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.text < b.text; });
    for (const Entry& entry : entries_) {
        if (first_bytes_.empty() || first_bytes_.back() != entry.text[0]) {
            first_bytes_.push_back(entry.text[0]);
        }
    }
}

SpecialTokens::Match SpecialTokens::find(std::string_view text) const {
    for (size_t at = text.find_first_of(first_bytes_); at != text.npos;
         at = text.find_first_of(first_bytes_, at + 1)) {
        // [low, high): the entries that start with the `bytes` bytes of the text from `at` on. They
        // stand together, a shorter one before those that continue it.
        const std::string_view rest = text.substr(at);
        auto low = entries_.begin();
        auto high = entries_.end();
        Match match;
        for (size_t bytes = 0; low != high; ++bytes) {
            if (low->text.size() == bytes) {
                match = {.begin = at, .bytes = bytes, .id = low->id};
                ++low;
            }
            if (bytes == rest.size()) break;
            const auto byte = static_cast<uint8_t>(rest[bytes]);
            const auto byte_at = [&](const Entry& entry) {
                return static_cast<uint8_t>(entry.text[bytes]);
            };
            low = std::partition_point(low, high,
                                       [&](const Entry& entry) { return byte_at(entry) < byte; });
            high = std::partition_point(low, high,
                                        [&](const Entry& entry) { return byte_at(entry) == byte; });
        }
        if (match.bytes > 0) return match;
    }
    return {.begin = text.size()};
}

}  // namespace kd
