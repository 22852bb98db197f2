// The table on standard output and the JSON of bench/results/kv_layout-<device>.json.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kv/fragmentation.h"
#include "kv_layout/layout.h"

namespace kd::kv_layout {

/// One timed cell; what does not apply stays empty.
struct Row {
    std::string part = {};  // "probe", "attention", "move"
    std::string op = {};
    std::string kv_dtype = {};
    int32_t row_bytes = 0;  // of a slot in one buffer
    int32_t buffers = 1;    // caches, planes or buffers of a launch
    int32_t batch = 1;
    int32_t context = 0;  // tokens of the longest request; 0: not attention
    int32_t heads = 0, kv_heads = 0, nodes = 0;
    int64_t tokens = 0;       // rows read in one buffer; of a move: moved
    int32_t tile_rows = 0;    // the longest run that is one copy; 0: no bulk copies
    std::string layout = {};  // as Placing; "copy" for one cudaMemcpy
    std::string table = {};
    std::optional<int32_t> asked_run = {};
    int32_t page_size = 1;
    int32_t pool_slots = 0;
    double mean_run = 0;
    double contiguous_tiles = 0;
    double us = 0, us_min = 0;
    int32_t launches = 0, pools = 0;
    double bytes = 0;        // of a launch: cache rows read; of a move read and written
    double ratio = 0;        // us by us of the layout that it is compared with
    bool is_repeat = false;  // "whole" once more, after the others
    bool same_output = false;
};

/// Fills in what the layout says.
void describe(const Sequences& sequences, const Layout& layout, Row& row);

/// Rows of one case, "whole" first and last: ratios to the mean of the two.
void compare_with_whole(std::vector<Row>& rows);

class Report {
  public:
    /// Asks the current device for its name.
    Report();
    ~Report();
    Report(const Report&) = delete;
    Report& operator=(const Report&) = delete;

    void add(const std::vector<Row>& rows);
    /// False if an output differed.
    bool good() const { return good_; }
    void write(const std::string& path) const;

  private:
    std::unique_ptr<nlohmann::ordered_json> json_;
    bool good_ = true;
};

}  // namespace kd::kv_layout
