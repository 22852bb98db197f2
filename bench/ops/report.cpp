#include "ops/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/cpu/processor.h"
#include "base/error.h"
#include "kdtree_version.h"
#include "support/report.h"

namespace kd {

Report::Report(ThreadPool& threads, std::string filter)
    : threads_(threads.threads()),
      filter_(std::move(filter)),
      load_before_(load_average()),
      ceilings_(measure_ceilings(threads)) {}

bool Report::wants(std::string_view op, std::string_view name) const {
    return fmt::format("{} {}", op, name).find(filter_) != std::string::npos;
}

void Report::print_header() const {
    fmt::print(
        "{}, {} threads, target {}, load average {:.2f}\n"
        "ceilings: read {:.1f} GB/s, fp32 {:.0f} Gop/s, int8 {:.0f} Gop/s\n\n",
        processor_name(), threads_, dispatch_target(), load_before_, ceilings_.read_gb_s,
        ceilings_.fp32_gop_s, ceilings_.int8_gop_s);
    fmt::print("{:<16}{:<24}{:>11}{:>11}{:>9}{:>8}{:>10}{:>9}\n", "op", "case", "ms", "ms min",
               "GB/s", "of read", "Gop/s", "of comp.");
}

void Report::add(std::string_view op, std::string_view name, const Work& work,
                 const Timing& timing) {
    const double seconds = timing.median_ms * 1e-3;
    const double gb_s = work.bytes / seconds * 1e-9;
    const double gop_s = work.operations / seconds * 1e-9;
    const double peak =
        work.arithmetic == Arithmetic::int8 ? ceilings_.int8_gop_s : ceilings_.fp32_gop_s;
    const Row row = {.op = std::string(op),
                     .name = std::string(name),
                     .timing = timing,
                     .gb_s = gb_s,
                     .gop_s = gop_s,
                     .of_read = gb_s / ceilings_.read_gb_s,
                     .of_compute = gop_s / peak};
    fmt::print("{:<16}{:<24}{:>11.5f}{:>11.5f}{:>9.2f}{:>8.2f}{:>10.1f}{:>9.2f}\n", row.op,
               row.name, timing.median_ms, timing.min_ms, row.gb_s, row.of_read, row.gop_s,
               row.of_compute);
    std::fflush(stdout);
    rows_.push_back(row);
}

void Report::write(const std::string& path) const {
    nlohmann::ordered_json out = {{"schema", 1},
                                  {"commit", KDTREE_COMMIT},
                                  {"device", processor_name()},
                                  {"threads", threads_},
                                  {"target", dispatch_target()},
                                  {"load_average", {load_before_, load_average()}},
                                  {"ceilings",
                                   {{"read_gb_s", ceilings_.read_gb_s},
                                    {"fp32_gop_s", ceilings_.fp32_gop_s},
                                    {"int8_gop_s", ceilings_.int8_gop_s}}},
                                  {"rows", nlohmann::ordered_json::array()}};
    for (const Row& row : rows_) {
        out["rows"].push_back({{"op", row.op},
                               {"case", row.name},
                               {"ms", row.timing.median_ms},
                               {"ms_min", row.timing.min_ms},
                               {"gb_s", row.gb_s},
                               {"gop_s", row.gop_s},
                               {"of_ceiling", std::max(row.of_read, row.of_compute)},
                               {"of_read", row.of_read},
                               {"of_compute", row.of_compute}});
    }
    std::ofstream file(path);
    file << out.dump(1) << "\n";
    if (!file.flush()) KD_THROW(io, "cannot write {}", path);
}

}  // namespace kd
