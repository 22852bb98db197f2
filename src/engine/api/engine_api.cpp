// The calls of kdtree.h on an engine.
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/api/api_error.h"
#include "engine/api/api_request.h"
#include "engine/api/api_result.h"
#include "engine/service.h"
#include "formats/chat_template.h"
#include "kdtree/kdtree.h"
#include "kdtree_version.h"

struct kdtree_engine {
    explicit kdtree_engine(const kd::Config& config)
        : service(std::make_unique<kd::Engine>(config)) {}
    kd::Service service;
};

namespace {

using kd::api::fail;
using kd::api::guarded;

kdtree_status closed() {
    return fail(KDTREE_CLOSED, "the engine is being freed");
}

kd::Service::Timeout timeout_of(int64_t timeout_ms) {
    kd::api::expect_range("timeout_ms", timeout_ms, -1, std::numeric_limits<int64_t>::max());
    return timeout_ms;
}

/// The template's variables: those given, and what every template expects.
nlohmann::ordered_json chat_variables(std::string_view json, bool add_generation_prompt,
                                      const kd::Tokenizer& tokenizer) {
    nlohmann::ordered_json given;
    try {
        given = nlohmann::ordered_json::parse(json);
    } catch (const nlohmann::json::exception& error) {
        KD_THROW(invalid_argument, "the messages are no JSON: {}", error.what());
    }
    nlohmann::ordered_json variables;
    if (given.is_array()) {
        variables["messages"] = std::move(given);
    } else if (given.is_object() && given.contains("messages") && given["messages"].is_array()) {
        variables = std::move(given);
    } else {
        KD_THROW(invalid_argument,
                 "the messages are neither a JSON array nor an object with \"messages\"");
    }
    const auto add = [&](const char* name, const auto& value) {
        if (!variables.contains(name)) variables[name] = value;
    };
    add("add_generation_prompt", add_generation_prompt);
    add("bos_token", tokenizer.token_text(tokenizer.bos()));
    add("eos_token", tokenizer.token_text(tokenizer.eos()));
    return variables;
}

}  // namespace

const char* kdtree_version(void) {
    return KDTREE_VERSION " (" KDTREE_COMMIT ")";
}

// --- the engine -----------------------------------------------------------------------------

kdtree_status kdtree_engine_create(const kdtree_options* options, kdtree_engine** engine) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        *engine = nullptr;
        kd::Config config;
        if (options != nullptr) {
            config = kd::api::config_of(kd::api::expect_struct("options", options));
        }
        *engine = std::make_unique<kdtree_engine>(config).release();
        return KDTREE_OK;
    });
}

void kdtree_engine_free(kdtree_engine* engine) {
    guarded([&] {
        delete engine;
        return KDTREE_OK;
    });
}

kdtree_status kdtree_engine_info(const kdtree_engine* engine, kdtree_model_info* info) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_struct("info", info);
        const kd::Engine& loaded = engine->service.engine();
        const kd::Config& config = loaded.config();
        *info = {.struct_bytes = sizeof *info,
                 .vocabulary = loaded.model_config().vocabulary,
                 .context_length = config.context_length,
                 .max_running_requests = config.max_running_requests,
                 .max_total_tokens = config.max_total_tokens,
                 .max_draft_tokens = config.max_draft_tokens,
                 .threads = config.threads,
                 .bos_token = loaded.tokenizer().bos(),
                 .eos_token = loaded.tokenizer().eos(),
                 .has_chat_template = loaded.tokenizer().chat_template().empty() ? 0 : 1};
        return KDTREE_OK;
    });
}

// --- text and tokens ------------------------------------------------------------------------

kdtree_status kdtree_tokenize(const kdtree_engine* engine, const char* text, int64_t text_bytes,
                              int32_t parse_special, kdtree_result** result) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_pointer("result", result);
        *result = nullptr;
        kd::api::expect_range("parse_special", parse_special, 0, 1);
        const std::string_view given = kd::api::text_of("text", text, text_bytes);
        const kd::Tokenizer& tokenizer = engine->service.engine().tokenizer();
        *result = kd::api::new_result(tokenizer.encode(given, parse_special != 0), {});
        return KDTREE_OK;
    });
}

kdtree_status kdtree_detokenize(const kdtree_engine* engine, const int32_t* ids, int64_t id_count,
                                int32_t with_special, kdtree_result** result) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_pointer("result", result);
        *result = nullptr;
        kd::api::expect_range("with_special", with_special, 0, 1);
        kd::api::expect_array("ids", ids, id_count, kd::api::kMaxTextBytes);
        const kd::Tokenizer& tokenizer = engine->service.engine().tokenizer();
        *result = kd::api::new_result(
            {}, tokenizer.decode({ids, static_cast<size_t>(id_count)}, with_special != 0));
        return KDTREE_OK;
    });
}

kdtree_status kdtree_apply_chat_template(const kdtree_engine* engine, const char* json,
                                         int64_t json_bytes, int32_t add_generation_prompt,
                                         kdtree_result** result) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_pointer("result", result);
        *result = nullptr;
        kd::api::expect_range("add_generation_prompt", add_generation_prompt, 0, 1);
        const std::string_view given = kd::api::text_of("json", json, json_bytes);
        const kd::Tokenizer& tokenizer = engine->service.engine().tokenizer();
        if (tokenizer.chat_template().empty()) {
            KD_THROW(unsupported, "the model has no chat template");
        }
        std::string text =
            kd::ChatTemplate(tokenizer.chat_template())
                .render(chat_variables(given, add_generation_prompt != 0, tokenizer));
        std::vector<int32_t> ids = tokenizer.encode(text, /*parse_special=*/true);
        *result = kd::api::new_result(std::move(ids), std::move(text));
        return KDTREE_OK;
    });
}

// --- requests -------------------------------------------------------------------------------

kdtree_status kdtree_submit(kdtree_engine* engine, const kdtree_request* request,
                            kdtree_request_id* ids, int32_t id_capacity) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_struct("request", request);
        kd::api::expect_pointer("ids", ids);
        kd::api::RequestCopies copies =
            kd::api::requests_of(*request, engine->service.engine(), id_capacity);
        // Before the first sample can end on another thread.
        if (copies.mask != nullptr) copies.mask->armed = true;
        try {
            const std::vector<kd::RequestId> queued =
                engine->service.submit(std::move(copies.samples));
            std::copy(queued.begin(), queued.end(), ids);
        } catch (...) {
            if (copies.mask != nullptr) copies.mask->armed = false;
            throw;
        }
        return KDTREE_OK;
    });
}

kdtree_status kdtree_cancel(kdtree_engine* engine, kdtree_request_id id) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        engine->service.cancel(id);
        return KDTREE_OK;
    });
}

kdtree_status kdtree_drop(kdtree_engine* engine, kdtree_request_id id) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        engine->service.drop(id);
        return KDTREE_OK;
    });
}

kdtree_status kdtree_poll(kdtree_engine* engine, kdtree_request_id id, int64_t timeout_ms,
                          kdtree_delta** delta) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_pointer("delta", delta);
        *delta = nullptr;
        std::optional<kd::Delta> news = engine->service.poll(id, timeout_of(timeout_ms));
        if (!news.has_value()) return closed();
        *delta = kd::api::new_delta(std::move(*news));
        return KDTREE_OK;
    });
}

kdtree_status kdtree_wait(kdtree_engine* engine, int64_t timeout_ms, kdtree_request_id* ids,
                          int32_t id_capacity, int32_t* id_count) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_pointer("ids", ids);
        kd::api::expect_pointer("id_count", id_count);
        *id_count = 0;
        kd::api::expect_range("id_capacity", id_capacity, 1, std::numeric_limits<int32_t>::max());
        const std::optional<size_t> count =
            engine->service.wait({ids, static_cast<size_t>(id_capacity)}, timeout_of(timeout_ms));
        if (!count.has_value()) return closed();
        *id_count = static_cast<int32_t>(*count);
        return KDTREE_OK;
    });
}

// --- stepping -------------------------------------------------------------------------------

kdtree_status kdtree_step(kdtree_engine* engine, int32_t* ran) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        if (ran != nullptr) *ran = 0;
        const kd::StepResult result = engine->service.step();
        if (result == kd::StepResult::busy) return fail(KDTREE_BUSY, "another thread steps");
        if (ran != nullptr) *ran = result == kd::StepResult::ran ? 1 : 0;
        return KDTREE_OK;
    });
}

kdtree_status kdtree_start(kdtree_engine* engine) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        if (!engine->service.start()) return fail(KDTREE_BUSY, "another thread steps");
        return KDTREE_OK;
    });
}

kdtree_status kdtree_stop(kdtree_engine* engine) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        engine->service.stop();
        return KDTREE_OK;
    });
}

kdtree_status kdtree_stats(const kdtree_engine* engine, kdtree_engine_stats* stats) {
    return guarded([&] {
        kd::api::expect_pointer("engine", engine);
        kd::api::expect_struct("stats", stats);
        const kd::ServiceStats now = engine->service.stats();
        *stats = {.struct_bytes = sizeof *stats,
                  .background = now.background ? 1 : 0,
                  .running = now.running,
                  .slots_total = now.slots_total,
                  .slots_used = now.slots_used,
                  .slots_free = now.slots_free,
                  .slots_cached = now.slots_cached,
                  .reserved = 0,
                  .submitted = now.submitted,
                  .unfinished = now.unfinished,
                  .finished = now.finished,
                  .aborted = now.aborted,
                  .failed = now.failed,
                  .dropped = now.dropped,
                  .unpolled = now.unpolled,
                  .tokens = now.tokens,
                  .rounds = now.rounds,
                  .busy_s = now.busy_s,
                  .last_round = kd::api::round_stats_of(now.last_round)};
        return KDTREE_OK;
    });
}
