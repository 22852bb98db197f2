#include "support/gguf_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "base/quant_blocks.h"

namespace kd {

namespace {

uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

int quantised(float value, float scale, int min, int max) {
    if (scale == 0) return std::clamp(0, min, max);
    return std::clamp(static_cast<int>(std::lround(value / scale)), min, max);
}

/// Two 4-bit values a byte: element i low, element i + 16 high.
std::string pack_nibbles(const int (&q)[32]) {
    std::string out;
    for (int i = 0; i < 16; ++i) out += static_cast<char>(q[i] | (q[i + 16] << 4));
    return out;
}

/// The scale as it is stored, so that the integers are chosen for what a reader multiplies by.
float stored(float scale) {
    return f16_to_f32(f32_to_f16(scale));
}

std::string block_q8_0(std::span<const float> w) {
    float most = 0;
    for (const float v : w) most = std::max(most, std::fabs(v));
    const float scale = stored(most / 127);
    std::string out = raw_bytes(f32_to_f16(scale));
    for (const float v : w) out += static_cast<char>(quantised(v, scale, -127, 127));
    return out;
}

std::string block_q4_0(std::span<const float> w) {
    // The value of the largest magnitude becomes -8, the one code that has no opposite.
    const float extreme = *std::max_element(
        w.begin(), w.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const float scale = stored(extreme / -8);
    int q[32];
    for (size_t i = 0; i < 32; ++i) q[i] = quantised(w[i], scale, -8, 7) + 8;
    return raw_bytes(f32_to_f16(scale)) + pack_nibbles(q);
}

std::string block_q4_1(std::span<const float> w) {
    const auto [least, most] = std::minmax_element(w.begin(), w.end());
    const float minimum = stored(*least);
    const float scale = stored((*most - minimum) / 15);
    int q[32];
    for (size_t i = 0; i < 32; ++i) q[i] = quantised(w[i] - minimum, scale, 0, 15);
    return raw_bytes(f32_to_f16(scale)) + raw_bytes(f32_to_f16(minimum)) + pack_nibbles(q);
}

/// Nibbles of the low four bits, after 4 bytes of the fifth ones.
std::string pack_fives(const int (&q)[32]) {
    uint32_t fifth_bits = 0;
    int low[32];
    for (size_t i = 0; i < 32; ++i) {
        fifth_bits |= static_cast<uint32_t>(q[i] >> 4) << i;
        low[i] = q[i] & 15;
    }
    return raw_bytes(fifth_bits) + pack_nibbles(low);
}

std::string block_q5_0(std::span<const float> w) {
    // As in Q4_0, the largest magnitude becomes -16.
    const float extreme = *std::max_element(
        w.begin(), w.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const float scale = stored(extreme / -16);
    int q[32];
    for (size_t i = 0; i < 32; ++i) q[i] = quantised(w[i], scale, -16, 15) + 16;
    return raw_bytes(f32_to_f16(scale)) + pack_fives(q);
}

std::string block_q5_1(std::span<const float> w) {
    const auto [least, most] = std::minmax_element(w.begin(), w.end());
    const float minimum = stored(*least);
    const float scale = stored((*most - minimum) / 31);
    int q[32];
    for (size_t i = 0; i < 32; ++i) q[i] = quantised(w[i] - minimum, scale, 0, 31);
    return raw_bytes(f32_to_f16(scale)) + raw_bytes(f32_to_f16(minimum)) + pack_fives(q);
}

std::string block_iq4_nl(std::span<const float> w) {
    float most = 0;
    for (const float v : w) most = std::max(most, std::fabs(v));
    const float scale = stored(most / 113);  // the smaller of the two ends
    int q[32] = {};
    for (size_t i = 0; i < 32; ++i) {
        const float target = scale == 0 ? 0 : w[i] / scale;
        const auto nearest = std::min_element(
            kIq4NlValues.begin(), kIq4NlValues.end(),
            [&](int8_t a, int8_t b) { return std::fabs(a - target) < std::fabs(b - target); });
        q[i] = static_cast<int>(nearest - kIq4NlValues.begin());
    }
    return raw_bytes(f32_to_f16(scale)) + pack_nibbles(q);
}

/// Whole numbers of -8 to 7: the scales lie elsewhere.
std::string block_int4(std::span<const float> w) {
    std::string out;
    for (size_t i = 0; i < 32; i += 2) {
        const int low = quantised(w[i], 1, -8, 7) + 8;
        const int high = quantised(w[i + 1], 1, -8, 7) + 8;
        out += static_cast<char>(low | high << 4);
    }
    return out;
}

/// The nearest of the codes that are finite numbers; of two, the even one.
std::string one_f8_e4m3(float w) {
    uint8_t best = 0;
    for (int code = 0; code < 0x7f; ++code) {
        const auto bits = static_cast<uint8_t>(code);
        const float error = std::fabs(f8_e4m3_to_f32(bits) - std::fabs(w));
        const float least = std::fabs(f8_e4m3_to_f32(best) - std::fabs(w));
        if (error < least || (error == least && bits % 2 == 0)) best = bits;
    }
    return std::string(1, static_cast<char>(best | (std::signbit(w) ? 0x80 : 0)));
}

/// The smallest count of `unit`s that reaches `value`, at most `most`.
int units_to_reach(float value, float unit, int most) {
    return unit == 0 ? 0 : std::min(most, static_cast<int>(std::ceil(value / unit)));
}

/// Q4_K and Q5_K, whose codes go up to `levels`.
std::string block_affine(std::span<const float> w, int levels) {
    float deepest[8];
    float step[8];
    for (size_t j = 0; j < 8; ++j) {
        const auto part = w.subspan(32 * j, 32);
        const auto [least, most] = std::minmax_element(part.begin(), part.end());
        deepest[j] = std::max(0.0f, -*least);
        step[j] = (std::max(0.0f, *most) + deepest[j]) / static_cast<float>(levels);
    }
    const float d = stored(*std::max_element(step, step + 8) / 62);
    const float dmin = stored(*std::max_element(deepest, deepest + 8) / 63);
    uint8_t scales[12] = {};
    uint8_t q[256];
    for (size_t j = 0; j < 8; ++j) {
        // Steps and minima are rounded up, so that the largest and smallest weights are in reach.
        // A minimum may grow by dmin, for which a 62nd part of the largest step makes room.
        const int minimum = units_to_reach(deepest[j], dmin, 63);
        const int scale = units_to_reach(step[j] + dmin / static_cast<float>(levels), d, 63);
        for (size_t i = 32 * j; i < 32 * j + 32; ++i) {
            const float above = w[i] + dmin * static_cast<float>(minimum);
            q[i] = static_cast<uint8_t>(quantised(above, d * static_cast<float>(scale), 0, levels));
        }
        const size_t k = j % 4;
        scales[k] |= static_cast<uint8_t>(j < 4 ? scale : scale >> 4 << 6);
        scales[4 + k] |= static_cast<uint8_t>(j < 4 ? minimum : minimum >> 4 << 6);
        if (j >= 4) scales[8 + k] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    }
    std::string out = raw_bytes(f32_to_f16(d)) + raw_bytes(f32_to_f16(dmin));
    out.append(reinterpret_cast<const char*>(scales), 12);
    std::string fifth_bits(32, '\0');
    for (size_t i = 0; i < 256; ++i) {
        char& bits = fifth_bits[i % 32];
        bits = static_cast<char>(bits | q[i] >> 4 << (i / 32));
    }
    if (levels == 31) out += fifth_bits;
    for (size_t i = 0; i < 128; ++i) {
        const size_t at = i / 32 * 64 + i % 32;
        out += static_cast<char>((q[at] & 15) | (q[at + 32] & 15) << 4);
    }
    return out;
}

std::string block_q6_k(std::span<const float> w) {
    float step[16] = {};
    for (size_t i = 0; i < 256; ++i) step[i / 16] = std::max(step[i / 16], std::fabs(w[i]) / 31);
    const float d = stored(*std::max_element(step, step + 16) / 126);
    std::string scales;
    uint8_t q[256];
    for (size_t j = 0; j < 16; ++j) {
        const int scale = units_to_reach(step[j], d, 127);
        scales += static_cast<char>(scale);
        for (size_t i = 16 * j; i < 16 * j + 16; ++i) {
            q[i] =
                static_cast<uint8_t>(quantised(w[i], d * static_cast<float>(scale), -32, 31) + 32);
        }
    }
    std::string nibbles(128, '\0');
    std::string pairs(64, '\0');
    for (size_t i = 0; i < 256; ++i) {
        const size_t quarter = i / 32 % 4;
        char& nibble = nibbles[i / 128 * 64 + i % 64];
        nibble = static_cast<char>(nibble | (q[i] & 15) << (quarter < 2 ? 0 : 4));
        char& pair = pairs[i / 128 * 32 + i % 32];
        pair = static_cast<char>(pair | q[i] >> 4 << (2 * quarter));
    }
    return nibbles + pairs + scales + raw_bytes(f32_to_f16(d));
}

}  // namespace

uint32_t ggml_type(DType type) {
    switch (type) {
        case DType::f32:
            return 0;
        case DType::f16:
            return 1;
        case DType::bf16:
            return 30;
        case DType::q8_0:
            return 8;
        case DType::q4_0:
            return 2;
        case DType::q4_1:
            return 3;
        case DType::q4_k:
            return 12;
        case DType::q6_k:
            return 14;
        case DType::q5_0:
            return 6;
        case DType::q5_1:
            return 7;
        case DType::q5_k:
            return 13;
        case DType::iq4_nl:
            return 20;
        case DType::f8_e4m3:
        case DType::int4:
            break;  // not of GGUF
    }
    return ~0u;
}

std::string quantise(DType type, std::span<const float> weights) {
    const size_t block = static_cast<size_t>(block_elements(type));
    KD_CHECK(weights.size() % block == 0, "{} weights are not whole blocks", weights.size());
    std::string out;
    for (size_t i = 0; i < weights.size(); i += block) {
        const std::span<const float> w = weights.subspan(i, block);
        switch (type) {
            case DType::f32:
                out += raw_bytes(w[0]);
                break;
            case DType::f16:
                out += raw_bytes(f32_to_f16(w[0]));
                break;
            case DType::bf16:
                out += raw_bytes(f32_to_bf16(w[0]));
                break;
            case DType::q8_0:
                out += block_q8_0(w);
                break;
            case DType::q4_0:
                out += block_q4_0(w);
                break;
            case DType::q4_1:
                out += block_q4_1(w);
                break;
            case DType::q4_k:
                out += block_affine(w, 15);
                break;
            case DType::q5_k:
                out += block_affine(w, 31);
                break;
            case DType::q5_0:
                out += block_q5_0(w);
                break;
            case DType::q5_1:
                out += block_q5_1(w);
                break;
            case DType::iq4_nl:
                out += block_iq4_nl(w);
                break;
            case DType::f8_e4m3:
                out += one_f8_e4m3(w[0]);
                break;
            case DType::int4:
                out += block_int4(w);
                break;
            case DType::q6_k:
                out += block_q6_k(w);
                break;
        }
    }
    return out;
}

std::string raw_string(std::string_view text) {
    return raw_bytes(uint64_t{text.size()}).append(text);
}

void GgufWriter::set_string(std::string_view key, std::string_view value) {
    set_raw(key, static_cast<uint32_t>(GgufValueType::string), raw_string(value));
}

void GgufWriter::set_strings(std::string_view key, const std::vector<std::string>& values) {
    std::string packed;
    for (const std::string& value : values) packed += raw_string(value);
    set_raw_array(key, static_cast<uint32_t>(GgufValueType::string), values.size(), packed);
}

void GgufWriter::set_raw(std::string_view key, uint32_t type, std::string_view value) {
    metadata_ += raw_string(key);
    metadata_ += raw_bytes(type);
    metadata_ += value;
    ++metadata_entries_;
}

void GgufWriter::set_raw_array(std::string_view key, uint32_t element_type, uint64_t count,
                               std::string_view elements) {
    set_raw(key, static_cast<uint32_t>(GgufValueType::array),
            (raw_bytes(element_type) + raw_bytes(count)).append(elements));
}

void GgufWriter::add_tensor(std::string_view name, DType type, uint64_t rows, uint64_t columns,
                            std::span<const float> weights) {
    Tensor tensor{.name = std::string(name),
                  .dims = {columns},
                  .type = ggml_type(type),
                  .data = quantise(type, weights),
                  .offset = std::nullopt};
    if (rows != 0) tensor.dims.push_back(rows);
    add_tensor(std::move(tensor));
}

GgufWriter::Tensor& GgufWriter::tensor(std::string_view name) {
    const auto found = std::ranges::find(tensors_, name, &Tensor::name);
    if (found == tensors_.end()) throw std::out_of_range(std::string(name));
    return *found;
}

std::string GgufWriter::header() const {
    std::string out = magic;
    out += raw_bytes(version);
    out += raw_bytes(tensor_count.value_or(tensors_.size()));
    out += raw_bytes(metadata_count.value_or(metadata_entries_));
    out += metadata_;
    uint64_t next = 0;
    for (const Tensor& tensor : tensors_) {
        out += raw_string(tensor.name);
        out += raw_bytes(static_cast<uint32_t>(tensor.dims.size()));
        for (const uint64_t dim : tensor.dims) out += raw_bytes(dim);
        out += raw_bytes(tensor.type);
        out += raw_bytes(tensor.offset.value_or(next));
        next = align_up(next + tensor.data.size(), alignment);
    }
    return out;
}

std::string GgufWriter::bytes() const {
    std::string out = header();
    for (const Tensor& tensor : tensors_) {
        out.resize(align_up(out.size(), alignment), '\0');
        out += tensor.data;
    }
    return out;
}

void GgufWriter::write(const std::string& path) const {
    write_test_file(path, bytes());
}

void write_test_file(const std::string& path, std::string_view bytes) {
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
    if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() ||
        std::fflush(file.get()) != 0) {
        KD_THROW(io, "{}: cannot be written", path);
    }
}

TempPath::TempPath(std::string_view suffix) {
    static std::atomic<int> counter = 0;
    path_ = fmt::format("{}kdtree_test_{}_{}{}", testing::TempDir(), ::getpid(),
                        counter.fetch_add(1), suffix);
}

TempPath::~TempPath() {
    std::remove(path_.c_str());
}

}  // namespace kd
