// A random model small enough for tests under sanitizers, complete with tokenizer and template.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "support/gguf_writer.h"

namespace kd {

struct TinyModelOptions {
    int layers = 2;
    int hidden = 64;        // a multiple of 32, of 256 for K-quants
    int intermediate = 96;  // the same
    int heads = 4;          // divides hidden into an even head size
    int kv_heads = 2;       // divides heads
    int vocabulary = 320;   // 259 (bytes and control tokens) to 8192
    int context_length = 512;
    DType weights = DType::q4_1;  // of the layers' matrices; norms are F32
    uint64_t seed = 1;
    bool tied = true;           // false: output.weight is a matrix of its own
    float logit_sharpness = 4;  // standard deviation of the logits
};

/// The character that stands for a byte in a byte-level vocabulary, as UTF-8: printable Latin-1
/// stands for itself, the others are numbered from U+0100 in order.
std::string byte_symbol(int byte);

/// Writes a llama-architecture GGUF with the tensor names of real files. The weights are uniform
/// with variance 1 / fan-in, a function of seed, tensor name and index alone, so the same options
/// give the same bytes on every machine. token_embd (and output) are Q8_0, or `weights` where that
/// is a float type; norm weights are near 1, those of output_norm near 1 or -1. Greedy text is
/// varied: measured over six seeds, tied and not, 100 to 135 distinct tokens among 197 and no
/// cycle; about one token in a hundred is a control token. The tokenizer is byte-level BPE: ids 0
/// <|endoftext|>, 1 <|im_start|> (bos), 2 <|im_end|> (eos), then the 256 bytes, then merges learnt
/// from a few sentences. Throws kd::Error for options out of the ranges above.
void write_tiny_model(const std::string& path, const TinyModelOptions& options = {});

/// The same before it is written, for tests that then change it.
GgufWriter tiny_model(const TinyModelOptions& options = {});

/// The metadata of its tokenizer, with `tokens` tokens (259 to 8192).
void set_tiny_tokenizer(GgufWriter& writer, int tokens);

}  // namespace kd
