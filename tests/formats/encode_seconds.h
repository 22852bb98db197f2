// How long a tokenizer takes for a text.
#pragma once

#include <algorithm>
#include <ctime>
#include <string_view>

#include "formats/tokenizer.h"

namespace kd {

/// Seconds of this thread's own time, the least of three attempts.
inline double encode_seconds(const Tokenizer& tokenizer, std::string_view text) {
    double least = 1e9;
    for (int attempt = 0; attempt < 3; ++attempt) {
        const auto now = [] {
            timespec time{};
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
            return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
        };
        const double begin = now();
        tokenizer.encode(text, true);
        least = std::min(least, now() - begin);
    }
    return least;
}

}  // namespace kd
