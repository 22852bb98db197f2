#include "app/doctor.h"

#include <fmt/format.h>

#include "app/doctor_parts.h"
#include "app/output.h"
#include "app/text.h"
#include "base/error.h"
#include "kdtree_version.h"

namespace kd {

namespace {

std::string verdict(int problems, int warnings) {
    const std::string warned = plural(warnings, "warning");
    if (problems > 0) {
        return fmt::format("{} to solve before the model runs, {}", plural(problems, "problem"),
                           warned);
    }
    return warnings > 0 ? fmt::format("Everything needed is in order; {}", warned)
                        : "Everything is in order";
}

void check_folder(Findings& findings) {
    try {
        check_cache_folder(read_environment().cache_folder, findings);
    } catch (const Error& error) {
        findings.warning("cache folder", error.what(), "set KDTREE_CACHE to a folder of yours");
    }
}

}  // namespace

int doctor(const DoctorOptions& options) {
    validate(options.config);
    const bool to_file = !options.json.empty() && options.json != "-";
    if (to_file) expect_writable(options.json);
    const int threads = options.config.threads > 0 ? options.config.threads : usable_threads();
    Findings findings(options.json != "-");

    findings.begin_section("Machine");
    const Machine machine = read_machine(allowed_cpu_ids());
    check_machine(machine, threads, cgroup_cpus(), kernel_target(), findings);
    const GpuReport gpus = read_gpus();
    check_gpus(gpus, findings);
    check_folder(findings);
    findings.begin_section("Model");
    const std::optional<ModelProbe> model = check_model(options, machine, findings);
    findings.begin_section("Speed");
    // A drafter that cannot be loaded is reported; the rest is measured without any.
    const bool measurable = findings.count(Level::problem) == 0;
    const nlohmann::ordered_json speed =
        check_speed(options, machine, measurable ? model : std::nullopt, threads, findings);

    const int problems = findings.count(Level::problem);
    const int warnings = findings.count(Level::warning);
    if (!options.json.empty()) {
        const nlohmann::ordered_json report = {{"schema", 1},
                                               {"version", KDTREE_VERSION},
                                               {"commit", KDTREE_COMMIT},
                                               {"problems", problems},
                                               {"warnings", warnings},
                                               {"checks", findings.json()},
                                               {"machine", machine_json(machine)},
                                               {"kernel_target", kernel_target()},
                                               {"gpus", gpus_json(gpus)},
                                               {"speed", speed}};
        // ASCII only: what a terminal shows of it is harmless.
        const std::string text = report.dump(2, ' ', /*ensure_ascii=*/true,
                                             nlohmann::ordered_json::error_handler_t::replace) +
                                 "\n";
        to_file ? write_file(options.json, text) : write_out(text);
    }
    if (options.json != "-") write_out(fmt::format("\n{}.\n", verdict(problems, warnings)));
    return problems > 0 ? 1 : 0;
}

}  // namespace kd
