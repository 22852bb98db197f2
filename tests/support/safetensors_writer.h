// safetensors files for tests: any header and data behind each other.
#pragma once

#include <string>
#include <string_view>

#include "support/gguf_writer.h"

namespace kd {

/// The header's length, the header, the data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
    return raw_bytes(uint64_t{header.size()}).append(header).append(data);
}

}  // namespace kd
