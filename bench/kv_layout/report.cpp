#include "kv_layout/report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attn_verify/device.h"
#include "kdtree/kernels.h"

namespace kd::kv_layout {

namespace {

using Json = nlohmann::ordered_json;

/// "0.1.0 (commit)" -> "commit".
std::string commit_of(const std::string& version) {
    const size_t open = version.find('(');
    const size_t close = version.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return version;
    return version.substr(open + 1, close - open - 1);
}

double rounded(double value, int digits) {
    const double unit = std::pow(10.0, digits);
    return std::round(value * unit) / unit;
}

double gb_s(const Row& row) {
    return row.bytes / row.us * 1e-3;
}

std::string shown_layout(const Row& row) {
    if (row.layout == "table") return row.table;
    if (row.layout == "runs") return "runs of " + std::to_string(*row.asked_run);
    if (row.layout == "pages") return "pages of " + std::to_string(row.page_size);
    return row.is_repeat ? row.layout + " again" : row.layout;
}

Json json_of(const Row& row) {
    Json json;
    json["part"] = row.part;
    json["op"] = row.op;
    json["kv_dtype"] = row.kv_dtype;
    json["row_bytes"] = row.row_bytes;
    json["buffers"] = row.buffers;
    json["tokens"] = row.tokens;
    if (row.part == "attention") {
        json["batch"] = row.batch;
        json["context"] = row.context;
        json["heads"] = row.heads;
        json["kv_heads"] = row.kv_heads;
        json["nodes"] = row.nodes;
    }
    if (row.tile_rows > 0) json["tile_rows"] = row.tile_rows;
    json["layout"] = row.layout;
    if (!row.table.empty()) json["table"] = row.table;
    if (row.asked_run) json["asked_run"] = *row.asked_run;
    json["page"] = row.page_size;
    json["pool_slots"] = row.pool_slots;
    json["mean_run"] = rounded(row.mean_run, 2);
    json["contiguous_tiles"] = rounded(row.contiguous_tiles, 4);
    json["us"] = rounded(row.us, 3);
    json["us_min"] = rounded(row.us_min, 3);
    json["gb_s"] = rounded(gb_s(row), 1);
    json["ratio"] = rounded(row.ratio, 4);
    json["repeat"] = row.is_repeat;
    json["same_output"] = row.same_output;
    json["launches"] = row.launches;
    json["pools"] = row.pools;
    return json;
}

void print_title(const Row& row) {
    printf("\n%s %s, %d x %d bytes, %lld tokens", row.op.c_str(), row.kv_dtype.c_str(), row.buffers,
           row.row_bytes, static_cast<long long>(row.tokens));
    if (row.part == "attention") {
        printf(", %d/%d heads x %d nodes, batch %d, context %d", row.heads, row.kv_heads, row.nodes,
               row.batch, row.context);
    }
    if (row.tile_rows > 0) printf(", copies of up to %d rows", row.tile_rows);
    printf("\n  %-24s%10s%8s%10s%10s%9s%8s\n", "layout", "mean run", "tiles", "us", "us min",
           "GB/s", "ratio");
}

}  // namespace

void describe(const Sequences& sequences, const Layout& layout, Row& row) {
    const Fragmentation counted = fragmentation_of(sequences, layout);
    row.layout = placing_name(layout.placing);
    row.table = layout.name;
    if (layout.placing == Placing::runs) row.asked_run = layout.asked_run;
    row.page_size = layout.page_size;
    row.pool_slots = layout.pool_slots;
    row.mean_run = counted.mean_run();
    row.contiguous_tiles = counted.contiguous_tiles();
}

void compare_with_whole(std::vector<Row>& rows) {
    const double whole_us = (rows.front().us + rows.back().us) / 2;
    for (Row& row : rows) row.ratio = row.us / whole_us;
    rows.back().is_repeat = true;
}

Report::Report() : json_(std::make_unique<Json>()) {
    int device = 0;
    cudaDeviceProp properties{};
    bench::check(cudaGetDevice(&device), "device");
    bench::check(cudaGetDeviceProperties(&properties, device), "device properties");
    printf("%s (%d multiprocessors, %.0f MiB L2), library %s\n", properties.name,
           properties.multiProcessorCount, properties.l2CacheSize / 1048576.0,
           kdt_kernels_version());
    *json_ = {{"schema", 1},
              {"commit", commit_of(kdt_kernels_version())},
              {"device", properties.name},
              {"rows", Json::array()}};
}

Report::~Report() = default;

void Report::add(const std::vector<Row>& rows) {
    print_title(rows.front());
    for (const Row& row : rows) {
        printf("  %-24s%10.1f%7.1f%%%10.2f%10.2f%9.0f%8.3f%s\n", shown_layout(row).c_str(),
               row.mean_run, 100 * row.contiguous_tiles, row.us, row.us_min, gb_s(row), row.ratio,
               row.same_output ? "" : "  WRONG");
        good_ = good_ && row.same_output;
        (*json_)["rows"].push_back(json_of(row));
    }
    fflush(stdout);
}

void Report::write(const std::string& path) const {
    FILE* file = fopen(path.c_str(), "w");
    if (!file) throw std::runtime_error("cannot write " + path);
    std::string text = "{\"schema\": 1, \"commit\": " + (*json_)["commit"].dump() +
                       ", \"device\": " + (*json_)["device"].dump() + ", \"rows\": [";
    const char* separator = "\n  ";
    for (const Json& row : (*json_)["rows"]) {
        text += separator + row.dump();
        separator = ",\n  ";
    }
    text += "\n]}\n";
    const bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
    if (fclose(file) != 0 || !written) throw std::runtime_error("cannot write " + path);
}

}  // namespace kd::kv_layout
