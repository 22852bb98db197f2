// Arbitrary bytes as the source of a chat template, run over fixed variables. It may be refused
// with kd::Error, in one line; it may neither crash nor run on (tools/fuzz.sh's time and memory
// limits), and the same template gives the same text again.
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/chat_template.h"

namespace kd {
namespace {

const nlohmann::ordered_json& variables() {
    static const auto json = nlohmann::ordered_json::parse(R"({
        "messages": [
            {"role": "system", "content": "  Be brief.\n"},
            {"role": "user", "content": "Grüße, \"you\"!"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"function": {"name": "add", "arguments": {"a": 1, "b": [2.5, -3, true]}}}]},
            {"role": "tool", "content": [{"type": "text", "text": "3"}]}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
        "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
        "n": 7, "f": 2.5, "s": "  Hello, World \n", "l": [3, 1, 2], "d": {"b": 1, "a": "x"},
        "u": "ΑΣ ß ǆ", "p": [{"k": "B", "v": 2}, {"k": "a", "v": [1]}],
        "w": "aBc dEf-ghi", "m": -3, "t": true, "z": null, "e": "", "empty": [],
        "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3], []],
        "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 5}],
        "none": null, "big": 9223372036854775807, "small": -9223372036854775808})");
    return json;
}

std::optional<std::string> render(std::string_view source) {
    try {
        constexpr std::chrono::system_clock::time_point kNow{std::chrono::seconds(1'796'043'909)};
        return ChatTemplate(source).render(variables(), kNow);
    } catch (const Error& error) {
        const std::string_view message = error.what();
        KD_CHECK(!message.empty(), "a refusal without a word");
        return std::nullopt;
    }
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    const std::string_view source(reinterpret_cast<const char*>(data), bytes);
    const auto text = kd::render(source);
    KD_CHECK(kd::render(source) == text, "another text the second time");
    return 0;
}
