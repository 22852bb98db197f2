// Unicode normalisation form C over untrusted bytes.
#pragma once

#include <string>
#include <string_view>

namespace kd {

/// `text` with each well-formed stretch in NFC and ill-formed units as they are; linear in the
/// length but for sorting runs of combining marks.
std::string nfc(std::string_view text);

}  // namespace kd
