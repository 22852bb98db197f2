#include <fmt/format.h>

#include <algorithm>

#include "app/doctor_parts.h"
#include "app/text.h"
#include "base/error.h"
#include "engine/engine.h"
#include "formats/dflash_config.h"
#include "formats/oracle_profile.h"

namespace kd {

namespace {

/// "smollm2 (/path/of/it)" or the path alone.
std::string where(const std::string& model, const std::string& path) {
    return model == path ? path : fmt::format("{} ({})", model, path);
}

/// The message of an error without the path in front, which the line names already.
std::string without_path(const std::string& message, const std::string& path) {
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

void check_fit(const ModelProbe& model, const Config& config, const Machine& machine,
               Findings& findings) {
    if (machine.available_bytes == 0) return;  // not known
    const int64_t context =
        config.context_length > 0 ? config.context_length : model.config.context_length;
    const int64_t pool = context * model.kv_bytes;
    const int64_t left = machine.available_bytes - model.decode_bytes;
    const std::string text =
        fmt::format("{} of weights, {} of K/V for a context of {}; {} available",
                    bytes_text(model.decode_bytes), bytes_text(pool), grouped(context),
                    bytes_text(machine.available_bytes));
    if (left <= 0) {
        findings.problem("memory", text, "free memory, or use a model with smaller weights");
    } else if (pool > left) {
        findings.warning("memory", text,
                         fmt::format("a long text will not fit: use --context-length {}",
                                     std::max<int64_t>(1, left / model.kv_bytes)));
    } else {
        findings.ok("memory", text);
    }
}

/// What the drafter is. model: null if it is not usable. Throws what reading its files throws.
std::string drafter_text(const Config& config, const ModelProbe* model) {
    const std::string& path = config.speculative_draft_model_path;
    switch (config.speculative_algorithm) {
        case SpeculativeAlgorithm::oracle:
            return fmt::format("oracle: {}, {} depths", path, read_oracle_profile(path).hit.size());
        case SpeculativeAlgorithm::dflash: {
            const DflashConfig drafter = read_dflash_config(path);
            if (model != nullptr) check_dflash_target(drafter, model->config);
            return fmt::format("dflash: {}, {} layers of {}, {} depths{}", path,
                               drafter.layers.size(), drafter.hidden, drafter.drafts,
                               drafter.head == DraftHeadType::none ? "" : ", conditional head");
        }
        default:
            return fmt::format("{}: needs no file", name_of(config.speculative_algorithm));
    }
}

void check_drafter(const Config& config, const ModelProbe* model, Findings& findings) {
    try {
        findings.ok("drafter", drafter_text(config, model));
    } catch (const Error& error) {
        findings.problem("drafter", error.what(),
                         "correct it, or choose another with --speculative-algorithm");
    }
}

}  // namespace

std::optional<ModelProbe> check_model(const DoctorOptions& options, const Machine& machine,
                                      Findings& findings) {
    const Config& config = options.config;
    std::optional<ModelProbe> usable;
    try {
        const std::string path = resolve_model(config.model);
        const ModelFile file(path, ForeignTensors::list);
        findings.ok("file", fmt::format("{}, {}, {}", where(config.model, path), file.format(),
                                        bytes_text(static_cast<int64_t>(file.bytes()))));
        const ModelProbe model = probe_model(file);
        constexpr size_t kShown = 3;
        for (size_t i = 0; i < std::min(model.faults.size(), kShown); ++i) {
            findings.problem("support", without_path(model.faults[i], path),
                             "this build cannot run the file: kdtree inspect says more");
        }
        if (model.faults.empty()) {
            findings.ok("support",
                        fmt::format("{}, {} layers of {}: can be run", model.config.architecture,
                                    model.config.layers, model.config.hidden));
            if (config.context_length > model.config.context_length) {
                findings.problem(
                    "context",
                    fmt::format("{} is beyond the model's {}", grouped(config.context_length),
                                grouped(model.config.context_length)),
                    "use a smaller --context-length");
            } else {
                usable = model;
            }
            check_fit(model, config, machine, findings);
        }
    } catch (const Error& error) {
        findings.problem("file", error.what(),
                         error.code == ErrorCode::not_found
                             ? "kdtree fetch smollm2 downloads a small model; --model FILE.gguf "
                               "names another"
                             : "download the file again, or name another with --model");
    }
    check_drafter(config, usable ? &*usable : nullptr, findings);
    return usable;
}

}  // namespace kd
