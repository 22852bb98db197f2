// Text for people: strings that came from files made harmless, numbers made readable, lines that
// fit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kd {

/// `text` as a terminal may show it: control characters (C0, DEL, C1), marks that change the
/// direction of writing and bytes that are no UTF-8 become \xNN. `multi_line` leaves line ends and
/// tabs.
std::string visible(std::string_view text, bool multi_line = false);

/// At most `columns` characters (code points), the last three "..." if something was cut off.
std::string shortened(std::string_view text, size_t columns);

/// One character, a scalar value, as UTF-8.
std::string utf8_of(char32_t character);

/// 1234567 -> "1,234,567".
std::string grouped(int64_t number);
/// 1, "thread" -> "1 thread"; 2 -> "2 threads".
std::string plural(int64_t count, std::string_view one);
/// 98362432 -> "98.4 MB": powers of 1000, three digits.
std::string bytes_text(int64_t bytes);

/// `text` broken at spaces into lines of at most `columns` characters; longer words stay whole. At
/// least one line.
std::vector<std::string> wrapped(std::string_view text, size_t columns);

}  // namespace kd
