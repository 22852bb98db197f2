#include "formats/model_tokenizer.h"

#include "base/error.h"
#include "formats/gguf.h"

namespace kd {

namespace {

Tokenizer read_any(const ModelFile& file) {
    if (file.gguf() != nullptr) return Tokenizer(*file.gguf());
    KD_THROW(unsupported, "{}: tokenizers of folders are not supported", file.path());
}

}  // namespace

Tokenizer read_tokenizer(const ModelFile& file, int32_t vocabulary) {
    Tokenizer tokenizer = read_any(file);
    if (tokenizer.vocabulary() > vocabulary) {
        KD_THROW(corrupt, "{}: {} tokens for a model of {}", file.path(), tokenizer.vocabulary(),
                 vocabulary);
    }
    return tokenizer;
}

}  // namespace kd
