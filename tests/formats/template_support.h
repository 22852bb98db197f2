// Rendering, and what it says, for the tests of chat templates.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/chat_template.h"

namespace kd {

using Json = nlohmann::ordered_json;

inline std::string render(const std::string& source, const Json& variables = Json::object()) {
    return ChatTemplate(source).render(variables);
}

/// What parsing or rendering says; empty if it succeeds.
inline std::string refusal(const std::string& source, const Json& variables = Json::object()) {
    try {
        render(source, variables);
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

inline void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "'" << part << "' is not in '" << text << "'";
}

inline std::string repeated(const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
}

}  // namespace kd
