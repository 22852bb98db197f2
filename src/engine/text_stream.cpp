#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace kd {

std::string StopFilter::push(std::string_view text) {
    if (stopped_) return {};
    held_ += text;
    size_t stop_at = std::string::npos;
    for (const std::string& stop : stops_) stop_at = std::min(stop_at, held_.find(stop));
    if (stop_at != std::string::npos) {
        stopped_ = true;
        held_.resize(stop_at);
        return std::exchange(held_, {});
    }
    // The longest end of the text that is the beginning of a stop string has to wait.
    size_t keep = 0;
    for (const std::string& stop : stops_) {
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
            if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
        }
    }
    std::string shown = held_.substr(0, held_.size() - keep);
    held_.erase(0, shown.size());
    return shown;
}

std::string StopFilter::finish() {
    return std::exchange(held_, {});
}

std::string TextStream::finish() {
    std::string shown = filter_.push(decoder_.finish());
    return shown + filter_.finish();
}

}  // namespace kd
