// Renders chat templates for tools/make_template_fixtures.py: a line of JSON {"template",
// "variables", "now"} in, a line {"output"} or {"error", "unsupported"} out.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/chat_template.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

Json answer(const Json& line) {
    try {
        const std::chrono::system_clock::time_point now(
            std::chrono::microseconds(line.at("now").get<int64_t>()));
        return {{"output", ChatTemplate(line.at("template").get<std::string>())
                               .render(line.at("variables"), now)}};
    } catch (const Error& error) {
        return {{"error", error.what()}, {"unsupported", error.code == ErrorCode::unsupported}};
    }
}

}  // namespace
}  // namespace kd

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        const std::string text = kd::answer(kd::Json::parse(line)).dump();
        std::printf("%s\n", text.c_str());
    }
    return 0;
}
