#include "app/settings.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "app/output.h"
#include "app/progress.h"

namespace kd {

namespace {

bool g_verbose = false;

/// A TOML basic string.
std::string toml_string(std::string_view text) {
    std::string out = "\"";
    for (const char each : text) {
        const auto byte = static_cast<unsigned char>(each);
        if (each == '"' || each == '\\') {
            out += '\\';
            out += each;
        } else if (byte < 0x20 || byte == 0x7f) {
            out += fmt::format("\\u{:04x}", byte);
        } else {
            out += each;
        }
    }
    return out + '"';
}

/// Every field of `config`, a line each: `name = value`, as a --config file writes it (TOML).
std::string settings_text(const Config& config) {
    // A field added to Config does not compile here until it has its line below.
    const auto& [model, context_length, threads, max_running_requests, max_total_tokens,
                 chunked_prefill_size, page_size, radix_cache, kv_extent, kv_headroom,
                 kv_evict_batch, kv_relocate, reference_kernels, speculative_algorithm,
                 speculative_draft_model_path, max_draft_tokens] = config;
    std::string text;
    const auto put = [&](const char* name, const auto& value) {
        text += fmt::format("{} = {}\n", name, value);
    };
    put("model", toml_string(model));
    put("context_length", context_length);
    put("threads", threads);
    put("max_running_requests", max_running_requests);
    put("max_total_tokens", max_total_tokens);
    put("chunked_prefill_size", chunked_prefill_size);
    put("page_size", page_size);
    put("disable_radix_cache", !radix_cache);
    put("kv_extent", kv_extent);
    put("kv_headroom", kv_headroom);
    put("kv_evict_batch", kv_evict_batch);
    put("kv_relocate", kv_relocate);
    put("kernels", reference_kernels ? "\"ref\"" : "\"fast\"");
    put("speculative_algorithm", toml_string(name_of(speculative_algorithm)));
    put("speculative_draft_model_path", toml_string(speculative_draft_model_path));
    put("max_draft_tokens", max_draft_tokens);
    return text;
}

/// The same of a command's settings; an object as the array of "key=value" that its option takes.
std::string settings_text(const nlohmann::ordered_json& settings) {
    std::string text;
    for (const auto& [name, value] : settings.items()) {
        nlohmann::ordered_json shown = value;
        if (value.is_object()) {
            shown = nlohmann::ordered_json::array();
            for (const auto& [key, each] : value.items()) {
                shown.push_back(key + '=' + each.get<std::string>());
            }
        }
        // A float as it was given, not as the double next to it.
        text += fmt::format(
            "{} = {}\n", name,
            value.is_number_float() ? fmt::format("{}", value.get<float>()) : shown.dump());
    }
    return text;
}

}  // namespace

void set_verbose(bool verbose) {
    g_verbose = verbose;
}

std::unique_ptr<Engine> load_engine(const Config& config,
                                    const nlohmann::ordered_json& command_settings) {
    std::unique_ptr<Engine> engine;
    {
        const std::string name = std::filesystem::path(config.model).filename().string();
        Progress progress({.label = "loading " + name});
        engine = std::make_unique<Engine>(config);
    }
    if (g_verbose) write_err(settings_text(engine->config()) + settings_text(command_settings));
    return engine;
}

void measure_cost_now(Engine& engine) {
    Progress progress({.label = "measuring the cost of verification", .total = 1});
    engine.cost([&](double share) { progress.update(share); });
}

}  // namespace kd
