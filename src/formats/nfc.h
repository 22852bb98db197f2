// Unicode normalisation form C over untrusted bytes.
#pragma once

#include <string>
#include <string_view>

namespace kd {

/// As Hugging Face tokenizers 0.23 does it, whose tables are of Unicode 9 (nfc.cpp names the marks
/// that are newer). `text` with each well-formed stretch in NFC and ill-formed units as they are;
/// linear in the length but for sorting runs of combining marks.
std::string nfc(std::string_view text);

}  // namespace kd
