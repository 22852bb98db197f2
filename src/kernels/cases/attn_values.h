// Cache and query rows of the attention cases, made from counters: any value can be made again on
// its own, on the host and on the device alike (nvcc runs constexpr functions on the device).
// And what the bits of a cache mean, for the references.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kdtree/kernels.h"

namespace kd {

// ---- formats ----------------------------------------------------------------------------------

constexpr float bf16_value(uint16_t bits) {
    return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// To nearest, ties to even; for finite values.
constexpr uint16_t bf16_nearest(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// e4m3: sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinity, 0x7f and 0xff are NaN.
constexpr float e4m3_value(uint8_t code) {
    const int32_t exponent = code >> 3 & 15;
    const int32_t mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(uint32_t{0x7fc00000});
    const float steps = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa);
    const int32_t power = (exponent == 0 ? 1 : exponent) - 10;
    const float magnitude = steps * std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The largest code whose value is not above `value` >= 0.
constexpr uint8_t e4m3_below(float value) {
    uint8_t code = 0;
    while (code < 0x7e && e4m3_value(static_cast<uint8_t>(code + 1)) <= value) ++code;
    return code;
}

constexpr uint8_t byte_at(const std::byte* at, int64_t i) {
    return static_cast<uint8_t>(at[i]);
}
constexpr uint16_t word_at(const std::byte* at) {
    return static_cast<uint16_t>(byte_at(at, 0) | byte_at(at, 1) << 8);
}
constexpr float float_at(const std::byte* at) {
    return std::bit_cast<float>(uint32_t{word_at(at)} | uint32_t{word_at(at + 2)} << 16);
}

/// Bytes of one latent row, without padding.
constexpr int64_t mla_row_bytes(kdt_kv_format format) {
    if (format == KDT_KV_FP8_MLA656) return 656;
    return format == KDT_KV_FP8 ? 576 : 1152;
}

/// Value `i` of 576 of a latent row.
constexpr double mla_value(kdt_kv_format format, float kv_scale, const std::byte* row, int32_t i) {
    if (format == KDT_KV_BF16) return bf16_value(word_at(row + 2 * i));
    if (format == KDT_KV_FP8) return double{e4m3_value(byte_at(row, i))} * double{kv_scale};
    if (i >= 512) return bf16_value(word_at(row + 528 + 2 * (i - 512)));
    return double{e4m3_value(byte_at(row, i))} * double{float_at(row + 512 + i / 128 * 4)};
}

/// Value `i` of one head of a K or V row.
constexpr double gqa_value(kdt_kv_format format, float scale, const std::byte* head, int32_t i) {
    if (format == KDT_KV_BF16) return bf16_value(word_at(head + 2 * i));
    return double{e4m3_value(byte_at(head, i))} * double{scale};
}

// ---- values -----------------------------------------------------------------------------------

/// One row of the cache: where it lies and what it holds. The same id holds the same values.
struct CaseRow {
    int64_t slot = 0;
    uint64_t id = 0;
    int32_t doublings = 0;  // all values times 2^doublings
    float score_gain = 0;   // not 0: the last value of a key is such that the score of a plain
                            // query is about this much larger than the other values make it
};

/// The last value of a plain query row; the others are in -1..1. See query_bits().
inline constexpr float kCaseLastQuery = 4;

enum class CaseStream : uint32_t { key = 1, value = 2, query = 3, query_row = 4 };

constexpr uint64_t case_bits(uint32_t seed, CaseStream stream, uint64_t id, uint64_t index) {
    uint64_t x = (uint64_t{seed} << 8 | static_cast<uint64_t>(stream)) * 0x9e3779b97f4a7c15u;
    const uint64_t parts[] = {id, index};
    for (const uint64_t part : parts) {  // splitmix64's finaliser, twice
        x += part * 0xd1342543de82ef95u + 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

/// Uniform in [-1, 1).
constexpr float case_uniform(uint64_t bits) {
    return static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
}

/// Signed values of 0.25 to 1.875, root mean square about 1; one in 64 smaller, down to the
/// subnormals and 0.
constexpr uint8_t case_e4m3(uint64_t bits, int32_t doublings) {
    const uint64_t sign_and_mantissa = (bits >> 1 & 0x80) | (bits & 7);
    const uint64_t draw = bits >> 32;
    const uint64_t exponent =
        (bits >> 16 & 63) == 0 ? draw % 5 : 5 + draw % 3 + static_cast<uint64_t>(doublings);
    return static_cast<uint8_t>(sign_and_mantissa | exponent << 3);
}

constexpr void put_word(std::byte* at, uint16_t word) {
    at[0] = static_cast<std::byte>(word & 0xff);
    at[1] = static_cast<std::byte>(word >> 8);
}

constexpr void write_bf16(uint64_t bits, int32_t doublings, std::byte* at) {
    put_word(at, bf16_nearest(case_uniform(bits) * static_cast<float>(1 << doublings)));
}

/// What write_mla_value writes beyond the 576 values of KDT_KV_FP8_MLA656: the scales.
constexpr int32_t mla_row_parts(kdt_kv_format format) {
    return format == KDT_KV_FP8_MLA656 ? 580 : 576;
}

/// Writes part `i` of a latent row. `score_scale` as in kdt_attn_mla_tensors.
constexpr void write_mla_value(kdt_kv_format format, uint32_t seed, float score_scale,
                               float kv_scale, const CaseRow& row, int32_t i, std::byte* at) {
    const uint64_t bits = case_bits(seed, CaseStream::key, row.id, static_cast<uint64_t>(i));
    const bool gain = i == 575 && row.score_gain != 0;
    const float last = row.score_gain / (score_scale * kCaseLastQuery);
    if (i >= 576) {
        const float scale = 0.45f + 0.15f * (1 + case_uniform(bits));
        const uint32_t word = std::bit_cast<uint32_t>(scale);
        put_word(at + 512 + 4 * (i - 576), static_cast<uint16_t>(word & 0xffff));
        put_word(at + 514 + 4 * (i - 576), static_cast<uint16_t>(word >> 16));
    } else if (format == KDT_KV_BF16 || (format == KDT_KV_FP8_MLA656 && i >= 512)) {
        std::byte* to = format == KDT_KV_BF16 ? at + 2 * i : at + 528 + 2 * (i - 512);
        if (gain) {
            put_word(to, bf16_nearest(last));
        } else {
            write_bf16(bits, row.doublings, to);
        }
    } else {
        at[i] = static_cast<std::byte>(gain ? e4m3_below(last / kv_scale)
                                            : case_e4m3(bits, row.doublings));
    }
}

/// Writes value `i` of one head of a K or V row; `at` is where the head begins.
constexpr void write_gqa_value(kdt_kv_format format, uint32_t seed, CaseStream stream,
                               float score_scale, float kv_scale, const CaseRow& row,
                               int32_t kv_head, int32_t head_dim, int32_t i, std::byte* at) {
    const uint64_t bits =
        case_bits(seed, stream, row.id, static_cast<uint64_t>(kv_head * head_dim + i));
    const bool gain = stream == CaseStream::key && i == head_dim - 1 && row.score_gain != 0;
    const float last = row.score_gain / (score_scale * kCaseLastQuery);
    if (format == KDT_KV_BF16) {
        if (gain) {
            put_word(at + 2 * i, bf16_nearest(last));
        } else {
            write_bf16(bits, row.doublings, at + 2 * i);
        }
    } else {
        at[i] = static_cast<std::byte>(gain ? e4m3_below(last / kv_scale)
                                            : case_e4m3(bits, row.doublings));
    }
}

/// Bits of value `i` of `dim` (the whole query, MLA: latent and rope) of one head of a query row.
/// Kernels that scale each row by its largest value must take their own row's, and all of it: rows
/// differ by powers of two, 1 to 2^-5; the largest value is the last, or in one row of four at any
/// other place, 16 times as far from the rest; one row of 16 is zeros.
constexpr uint16_t query_bits(uint32_t seed, uint64_t id, int32_t head, int32_t dim, int32_t i) {
    const uint64_t row = case_bits(seed, CaseStream::query_row, id, static_cast<uint64_t>(head));
    if (row % 16 == 0) return 0;
    const float own =
        case_uniform(case_bits(seed, CaseStream::query, id, static_cast<uint64_t>(head * dim + i)));
    float value = i == dim - 1 ? kCaseLastQuery : own;
    if ((row >> 4) % 4 == 0) {
        const auto place = static_cast<int32_t>((row >> 32) % static_cast<uint64_t>(dim - 1));
        value = i == place ? (own < 0 ? -kCaseLastQuery : kCaseLastQuery) : value / 16;
    }
    return bf16_nearest(value / static_cast<float>(1 << (row >> 8) % 6));
}

}  // namespace kd
