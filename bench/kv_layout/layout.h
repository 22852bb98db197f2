// Where the rows of a paged cache lie: made page tables, page tables from a file, and how
// contiguous they are. Needs no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/fragmentation.h"

namespace kd::kv_layout {

/// Which row of the cache stands at each position of each request. Requests may share rows.
struct Sequences {
    std::vector<int32_t> tokens;  // [requests]
    std::vector<int32_t> row;     // [sum of tokens], request after request
    int32_t rows = 0;

    int32_t requests() const { return static_cast<int32_t>(tokens.size()); }
    int32_t max_tokens() const;
};

/// `requests` requests of `tokens` tokens that share nothing.
Sequences sequences_of(int32_t requests, int32_t tokens);

enum class Placing { whole, runs, pages, table };

/// The slot of each row.
struct Layout {
    Placing placing = Placing::whole;
    std::string name = {};  // of a table; else empty
    int32_t asked_run = 0;  // Placing::runs: the mean that was asked for
    int32_t page_size = 1;
    int32_t pool_slots = 0;
    std::vector<int32_t> slot = {};  // [rows]
};

const char* placing_name(Placing placing);
/// "whole", "runs of 31", "pages of 16", the table's name.
std::string label(const Layout& layout);

/// Row r in slot r: every request contiguous, as far as sharing lets it.
Layout whole(const Sequences& sequences, int32_t pool_slots);
/// Runs with geometric lengths of mean `mean_run` slots (an end is as likely after any slot), in
/// random order, with gaps between them that fill the pool evenly. mean_run >= 1.
Layout random_runs(const Sequences& sequences, int32_t pool_slots, int32_t mean_run);
/// Pages in random order, no two neighbours contiguous.
Layout random_pages(const Sequences& sequences, int32_t pool_slots, int32_t page_size);

/// Counted as the pool counts: each request on its own, full tiles only.
Fragmentation fragmentation_of(const Sequences& sequences, const Layout& layout);

/// Throws std::logic_error unless the rows have slots of their own, inside the pool, and a page's
/// rows lie in one page.
void check_layout(const Sequences& sequences, const Layout& layout);

struct Table {
    Sequences sequences;
    Layout layout;
};

/// Reads [{"name": "...", "slots": [[...], ...]}]: for each request the slots of its positions,
/// page size 1; a slot that stands in two requests is a shared row. Throws std::invalid_argument
/// with what is wrong and where.
std::vector<Table> read_tables(const std::string& path, int32_t pool_slots);

}  // namespace kd::kv_layout
