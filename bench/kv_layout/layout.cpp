#include "kv_layout/layout.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

namespace kd::kv_layout {

namespace {

using Json = nlohmann::json;

// What include/kdtree/kernels.h takes.
constexpr int32_t kMostRequests = 64;
constexpr int32_t kMostTokens = 262144;
constexpr int64_t kMostSlots = int64_t{1} << 30;

struct Run {
    int32_t row = 0;  // of its first token
    int32_t tokens = 0;
    int32_t pages = 0;
};

/// Cuts the requests into runs of `next_pages()` pages each, the last one of a request shorter.
std::vector<Run> cut(const Sequences& sequences, int32_t page_size,
                     const std::function<int32_t()>& next_pages) {
    std::vector<Run> runs;
    int32_t first = 0;
    for (const int32_t tokens : sequences.tokens) {
        for (int32_t at = 0; at < tokens;) {
            const int64_t wanted = int64_t{next_pages()} * page_size;
            const auto taken = static_cast<int32_t>(std::min<int64_t>(wanted, tokens - at));
            runs.push_back({first + at, taken, (taken + page_size - 1) / page_size});
            at += taken;
        }
        first += tokens;
    }
    return runs;
}

/// Puts the runs into the pool in random order, at least one page between two of them.
void scatter(std::vector<Run> runs, std::mt19937_64& random, Layout& layout) {
    const int32_t pool_pages = layout.pool_slots / layout.page_size;
    int64_t spare = pool_pages - static_cast<int64_t>(runs.size());
    for (const Run& run : runs) spare -= run.pages;
    if (spare < 0) throw std::logic_error("the pool is too small for runs with gaps");
    std::shuffle(runs.begin(), runs.end(), random);
    std::vector<int64_t> before(runs.size());  // spare pages before each run
    for (int64_t& each : before) each = std::uniform_int_distribution<int64_t>(0, spare)(random);
    std::sort(before.begin(), before.end());
    int64_t used = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
        const int64_t slot = (before[i] + used) * layout.page_size;
        for (int32_t t = 0; t < runs[i].tokens; ++t) {
            layout.slot[static_cast<size_t>(runs[i].row + t)] = static_cast<int32_t>(slot + t);
        }
        used += runs[i].pages + 1;
    }
}

[[noreturn]] void refuse(const std::string& message) {
    throw std::invalid_argument(message);
}

/// One session of a table, appended.
void add_session(const Json& slots, const std::string& where, Table& table,
                 std::unordered_map<int32_t, int32_t>& row_of_slot) {
    if (!slots.is_array()) refuse(where + " is not a list of slots");
    if (slots.size() > kMostTokens) {
        refuse(where + " has " + std::to_string(slots.size()) + " slots, " +
               std::to_string(kMostTokens) + " is the most");
    }
    std::unordered_set<int32_t> seen;
    for (const Json& value : slots) {
        if (!value.is_number_integer() || value < 0 || value >= kMostSlots) {
            refuse(where + ": " + value.dump() + " is not a slot in 0.." +
                   std::to_string(kMostSlots - 1));
        }
        const auto slot = value.get<int32_t>();
        if (!seen.insert(slot).second) {
            refuse(where + ": slot " + std::to_string(slot) + " stands in it twice");
        }
        const auto [at, is_new] = row_of_slot.try_emplace(slot, table.sequences.rows);
        if (is_new) {
            table.layout.slot.push_back(slot);
            table.sequences.rows += 1;
        }
        table.sequences.row.push_back(at->second);
    }
    table.sequences.tokens.push_back(static_cast<int32_t>(slots.size()));
}

Table table_of(const Json& entry, const std::string& where, int32_t pool_slots) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("slots") || !entry["slots"].is_array()) {
        refuse(where + " is not {\"name\": \"...\", \"slots\": [[...], ...]}");
    }
    const Json& sessions = entry["slots"];
    if (sessions.empty() || sessions.size() > kMostRequests) {
        refuse(where + " has " + std::to_string(sessions.size()) + " sessions, 1.." +
               std::to_string(kMostRequests) + " is possible");
    }
    Table table;
    table.layout.placing = Placing::table;
    table.layout.name = entry["name"];
    std::unordered_map<int32_t, int32_t> row_of_slot;
    for (size_t i = 0; i < sessions.size(); ++i) {
        add_session(sessions[i], where + ", session " + std::to_string(i), table, row_of_slot);
    }
    if (table.sequences.rows == 0) refuse(where + " has no slots at all");
    table.layout.pool_slots =
        std::max(pool_slots, *std::ranges::max_element(table.layout.slot) + 1);
    return table;
}

}  // namespace

int32_t Sequences::max_tokens() const {
    return *std::ranges::max_element(tokens);
}

Sequences sequences_of(int32_t requests, int32_t tokens) {
    Sequences sequences;
    sequences.tokens.assign(static_cast<size_t>(requests), tokens);
    sequences.rows = requests * tokens;
    sequences.row.resize(static_cast<size_t>(sequences.rows));
    std::iota(sequences.row.begin(), sequences.row.end(), 0);
    return sequences;
}

const char* placing_name(Placing placing) {
    switch (placing) {
        case Placing::whole:
            return "whole";
        case Placing::runs:
            return "runs";
        case Placing::pages:
            return "pages";
        case Placing::table:
            return "table";
    }
    return "?";
}

std::string label(const Layout& layout) {
    const std::string placing = placing_name(layout.placing);
    switch (layout.placing) {
        case Placing::whole:
            return placing;
        case Placing::runs:
            return placing + " of " + std::to_string(layout.asked_run);
        case Placing::pages:
            return placing + " of " + std::to_string(layout.page_size);
        case Placing::table:
            return layout.name;
    }
    return "?";
}

Layout whole(const Sequences& sequences, int32_t pool_slots) {
    Layout layout{.placing = Placing::whole, .pool_slots = pool_slots};
    layout.slot.resize(static_cast<size_t>(sequences.rows));
    std::iota(layout.slot.begin(), layout.slot.end(), 0);
    return layout;
}

Layout random_runs(const Sequences& sequences, int32_t pool_slots, int32_t mean_run) {
    Layout layout{.placing = Placing::runs,
                  .asked_run = mean_run,
                  .pool_slots = pool_slots,
                  .slot = std::vector<int32_t>(static_cast<size_t>(sequences.rows), -1)};
    std::mt19937_64 random(7);
    std::geometric_distribution<int32_t> more(mean_run > 1 ? 1.0 / mean_run : 0.5);
    auto next_pages = [&] { return mean_run > 1 ? 1 + more(random) : 1; };
    std::vector<Run> runs = cut(sequences, 1, next_pages);
    scatter(std::move(runs), random, layout);
    return layout;
}

Layout random_pages(const Sequences& sequences, int32_t pool_slots, int32_t page_size) {
    Layout layout{.placing = Placing::pages,
                  .page_size = page_size,
                  .pool_slots = pool_slots,
                  .slot = std::vector<int32_t>(static_cast<size_t>(sequences.rows), -1)};
    std::mt19937_64 random(7);
    scatter(cut(sequences, page_size, [] { return 1; }), random, layout);
    return layout;
}

Fragmentation fragmentation_of(const Sequences& sequences, const Layout& layout) {
    Fragmentation total;
    const int32_t* row = sequences.row.data();
    for (const int32_t tokens : sequences.tokens) {
        auto slot = [&](int32_t position) {
            return layout.slot[static_cast<size_t>(row[position])];
        };
        int32_t run_begin = 0;
        for (int32_t position = 0; position < tokens; ++position) {
            if (position == 0 || slot(position) != slot(position - 1) + 1) {
                total.runs += 1;
                run_begin = position;
            }
            if ((position + 1) % kTileTokens == 0) {
                total.tiles += 1;
                total.whole_tiles += run_begin <= position + 1 - kTileTokens ? 1 : 0;
            }
        }
        total.sessions += tokens > 0 ? 1 : 0;
        total.tokens += tokens;
        row += tokens;
    }
    return total;
}

void check_layout(const Sequences& sequences, const Layout& layout) {
    const std::string name = "layout " + label(layout);
    if (layout.slot.size() != static_cast<size_t>(sequences.rows)) {
        throw std::logic_error(name + ": not one slot a row");
    }
    std::vector<bool> taken(static_cast<size_t>(layout.pool_slots));
    for (const int32_t slot : layout.slot) {
        if (slot < 0 || slot >= layout.pool_slots) {
            throw std::logic_error(name + ": slot " + std::to_string(slot) + " of " +
                                   std::to_string(layout.pool_slots));
        }
        if (taken[static_cast<size_t>(slot)]) {
            throw std::logic_error(name + ": two rows in slot " + std::to_string(slot));
        }
        taken[static_cast<size_t>(slot)] = true;
    }
    const int32_t* row = sequences.row.data();
    for (const int32_t tokens : sequences.tokens) {
        for (int32_t position = 0; position < tokens; ++position) {
            const int32_t in_page = position % layout.page_size;
            const int32_t slot = layout.slot[static_cast<size_t>(row[position])];
            const int32_t first = layout.slot[static_cast<size_t>(row[position - in_page])];
            if (first % layout.page_size != 0 || slot != first + in_page) {
                throw std::logic_error(name + ": position " + std::to_string(position) +
                                       " is not in its page");
            }
        }
        row += tokens;
    }
}

std::vector<Table> read_tables(const std::string& path, int32_t pool_slots) {
    std::ifstream file(path);
    if (!file) refuse("cannot read " + path);
    Json json;
    try {
        json = Json::parse(file);
    } catch (const Json::parse_error& error) {
        refuse(path + " is not JSON: " + error.what());
    }
    if (!json.is_array() || json.empty()) refuse(path + " is not a list of page tables");
    std::vector<Table> tables;
    for (size_t i = 0; i < json.size(); ++i) {
        tables.push_back(table_of(json[i], path + ", table " + std::to_string(i), pool_slots));
    }
    return tables;
}

}  // namespace kd::kv_layout
