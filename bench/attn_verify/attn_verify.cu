// Times the tree-verify attention kernels against what this device can do at most; see --help.
// Talks to the kernels through include/kdtree/kernels.h alone, as any host would.
#include <cstdio>
#include <exception>
#include <optional>

#include "attn_verify/report.h"

namespace {

using kd::bench::Case;

void list(const kd::bench::Options& options) {
    for (const Case& c : options.cases) {
        printf(
            "%-16s %-10s batch %d, context %d, %s, page %d, %s, splits %d: %.2f MB, %.2f GFLOP\n",
            kd::bench::op_name(c), kd::bench::shape_name(c).c_str(), c.batch, c.context,
            kd::bench::format_name(c.kv_format), c.page_size,
            c.shuffled ? "shuffled" : "contiguous", c.splits, c.min_bytes() * 1e-6,
            c.flops() * 1e-9);
    }
    printf("%zu cases\n", options.cases.size());
}

bool run(const kd::bench::Options& options) {
    kd::bench::Measurement measurement(options);
    kd::bench::Report report(
        options, kd::bench::measure_ceilings(measurement.memory(), measurement.stream()));
    // Before the cases, so that a wrong path costs nothing, and after each, so that a run that is
    // cut short leaves what it has.
    if (!options.json.empty()) report.write(options.json);
    for (const Case& c : options.cases) {
        try {
            report.add(c, measurement.run(c, report.floor_us(c)));
        } catch (const kd::bench::Refused& refused) {
            report.refused(c, refused.what());
        }
        if (!options.json.empty()) report.write(options.json);
    }
    return report.good();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::optional<kd::bench::Options> options = kd::bench::parse(argc, argv);
        if (!options) {
            printf("%s", kd::bench::kHelp);
            return 0;
        }
        if (options->list) {
            list(*options);
            return 0;
        }
        return run(*options) ? 0 : 1;
    } catch (const std::exception& error) {
        fprintf(stderr, "error: %s\n", error.what());
    }
    return 1;
}
