// What every refusal of a file has to be.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace kd {

/// Expects `open` to throw one short line with this code that begins with the file and names every
/// one of `parts`.
template <class Open>
void expect_refusal(Open&& open, const std::string& path, ErrorCode code,
                    const std::vector<std::string>& parts) {
    try {
        open();
        ADD_FAILURE() << "loaded; expected: " << testing::PrintToString(parts);
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code, code) << message;
        EXPECT_TRUE(message.starts_with(path)) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_LT(message.size(), path.size() + 300) << message;
        for (const std::string& part : parts) {
            EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
        }
    }
}

}  // namespace kd
