// Arbitrary tokenizer folders. Input: the files' contents parted by a byte 0xFF, which JSON has
// nowhere: tokenizer.json, tokenizer_config.json, generation_config.json, tiktoken.model. A file
// that is read gives a tokenizer whose ids of some text are in its vocabulary; others are refused.
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer_spec.h"
#include "support/gguf_writer.h"

namespace kd {
namespace {

constexpr std::string_view kNames[] = {"tokenizer.json", "tokenizer_config.json",
                                       "generation_config.json", "tiktoken.model"};
constexpr std::string_view kText =
    "I've 1234 \u6F22\u5B57 e\u0301 <|im_end|>  \n\xF0\x9F caf\u00E9 ABCdef";

void check_tokenizer(const Tokenizer& tokenizer) {
    for (const bool special : {false, true}) {
        const std::vector<int32_t> ids = tokenizer.encode(kText, special);
        KD_CHECK(tokenizer.decode(ids, true).size() < (size_t{1} << 20), "{} ids", ids.size());
        StreamDecoder stream(tokenizer);
        for (const int32_t id : ids) stream.push(id);
    }
    for (const int32_t id : tokenizer.stop_ids()) tokenizer.is_control(id);
    for (const auto& [name, id] : tokenizer.named_tokens()) tokenizer.token_text(id);
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    static const TempPath kFolder("");
    std::filesystem::create_directory(kFolder.path());
    std::string_view rest(reinterpret_cast<const char*>(data), bytes);
    for (const std::string_view name : kNames) {
        const size_t end = std::min(rest.find('\xFF'), rest.size());
        const std::string path = kFolder.path() + "/" + std::string(name);
        std::filesystem::remove(path);
        if (end > 0) write_test_file(path, rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    try {
        const Tokenizer tokenizer(tokenizer_spec_from_folder(kFolder.path()));
        check_tokenizer(tokenizer);
    } catch (const Error& error) {
        const std::string_view said = error.what();
        KD_CHECK(said.find('\n') == said.npos, "an error of several lines: {}", said);
    }
    return 0;
}
