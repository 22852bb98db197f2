#include "app/text.h"

#include <gtest/gtest.h>

namespace kd {
namespace {

TEST(Visible, LeavesWhatIsHarmless) {
    EXPECT_EQ(visible("plain, \"quoted\" \\"), "plain, \"quoted\" \\");
    EXPECT_EQ(visible("h\xc3\xa9llo \xe4\xb8\xad \xf0\x9f\x98\x80"),
              "h\xc3\xa9llo \xe4\xb8\xad \xf0\x9f\x98\x80");
}

TEST(Visible, EscapesWhatDrivesATerminal) {
    EXPECT_EQ(visible("\x1b[2J\r\n\t\x7f"), "\\x1b[2J\\x0d\\x0a\\x09\\x7f");
    EXPECT_EQ(visible(std::string_view("a\0b", 3)), "a\\x00b");
    EXPECT_EQ(visible("\xc2\x9b"), "\\xc2\\x9b");                      // CSI as one character
    EXPECT_EQ(visible("\xe2\x80\xae"), "\\xe2\\x80\\xae");             // right-to-left override
    EXPECT_EQ(visible("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");             // line separator
    EXPECT_EQ(visible("\xff\xc3(\xe4\xb8"), "\\xff\\xc3(\\xe4\\xb8");  // no UTF-8
}

TEST(Visible, KeepsLinesOnRequest) {
    EXPECT_EQ(visible("a\n\tb\r\x1b", /*multi_line=*/true), "a\n\tb\\x0d\\x1b");
}

TEST(Shortened, CountsCharactersAndNeverCutsOne) {
    EXPECT_EQ(shortened("abcdef", 6), "abcdef");
    EXPECT_EQ(shortened("abcdefg", 6), "abc...");
    EXPECT_EQ(shortened("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 4), "\xc3\xa9...");
    EXPECT_EQ(shortened("abcdef", 2), "...");
}

TEST(Grouped, EveryThreeDigits) {
    EXPECT_EQ(grouped(0), "0");
    EXPECT_EQ(grouped(999), "999");
    EXPECT_EQ(grouped(1000), "1,000");
    EXPECT_EQ(grouped(-1234567), "-1,234,567");
    EXPECT_EQ(grouped(-123), "-123");
    EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(Plural, OneIsNone) {
    EXPECT_EQ(plural(0, "line"), "0 lines");
    EXPECT_EQ(plural(1, "line"), "1 line");
    EXPECT_EQ(plural(2, "line"), "2 lines");
}

TEST(BytesText, ThreeDigits) {
    EXPECT_EQ(bytes_text(0), "0 bytes");
    EXPECT_EQ(bytes_text(999), "999 bytes");
    EXPECT_EQ(bytes_text(1000), "1.00 kB");
    EXPECT_EQ(bytes_text(98362432), "98.4 MB");
    EXPECT_EQ(bytes_text(999600000), "1.00 GB");
    EXPECT_EQ(bytes_text(123456789012), "123 GB");
}

TEST(Wrapped, BreaksAtSpaces) {
    EXPECT_EQ(wrapped("", 10), std::vector<std::string>{""});
    EXPECT_EQ(wrapped("one two three", 8), (std::vector<std::string>{"one two", "three"}));
    EXPECT_EQ(wrapped("averylongword b", 5), (std::vector<std::string>{"averylongword", "b"}));
}

}  // namespace
}  // namespace kd
