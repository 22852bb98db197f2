#include "formats/model_tokenizer.h"

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/tokenizer_spec.h"

namespace kd {

namespace {

Tokenizer read(const ModelFile& file, std::optional<int32_t> vocabulary) {
    TokenizerSpec spec = file.gguf() != nullptr ? tokenizer_spec(*file.gguf())
                                                : tokenizer_spec_from_folder(file.path());
    if (vocabulary) {
        const auto ids = static_cast<size_t>(*vocabulary);
        if (spec.tokens.size() > ids) {
            KD_THROW(corrupt, "{}: the tokenizer has {} tokens, the model {}", file.path(),
                     spec.tokens.size(), ids);
        }
        spec.tokens.resize(ids);
    }
    return Tokenizer(std::move(spec));
}

}  // namespace

Tokenizer read_tokenizer(const ModelFile& file, std::optional<int32_t> vocabulary) {
    try {
        return read(file, vocabulary);
    } catch (const Error& error) {
        const std::string_view said = error.what();
        if (said.find(file.path()) != said.npos) throw;
        throw Error(error.code, fmt::format("{}: {}", file.path(), said), error.file, error.line);
    }
}

}  // namespace kd
