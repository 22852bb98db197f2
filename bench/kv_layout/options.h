// The command line of bench/kv_layout and the cases it names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attn_verify/cases.h"
#include "kv_layout/layout.h"

namespace kd::kv_layout {

struct Options {
    std::string json;
    std::string tables;  // a file; empty: none
    bool probe = true, attention = true, move = true;
    int32_t pool_slots = 262144;
    int32_t replays = 0;
    bool quick = false;
    bool list = false;
};

extern const char* const kHelp;

/// Nothing: help was asked for. Throws std::invalid_argument with what is wrong.
std::optional<Options> parse(int argc, char** argv);

/// Tokens that a probe reads.
inline constexpr int32_t kProbeTokens = 65536;

/// What the attention kernels are timed on, but for page size and layout.
std::vector<bench::Case> attention_cases(bool quick);
/// The cases of a page table: its requests stand in for batch and context.
std::vector<bench::Case> table_cases(const Sequences& sequences);

/// "whole" first and last, between them runs and, with_pages, pages in random order.
std::vector<Layout> layouts_of(const Sequences& sequences, int32_t pool_slots, bool with_pages,
                               bool quick);

/// Slots of a pool for so many tokens: at least `wanted`, and room to scatter them.
int32_t pool_slots_for(int64_t tokens, int32_t wanted);

}  // namespace kd::kv_layout
