// The calls of kdtree.h on an engine: results, refusals, ends.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "abi/abi_support.h"

namespace kd {

namespace {

const std::vector<int32_t> kPrompt = {10, 20, 30, 10, 20};

class EngineAbi : public testing::Test {
  protected:
    AbiEngine engine_ = create(tiny_options());

    void expect_refused(const kdtree_request& request, const std::string& words) {
        kdtree_request_id id = 77;
        EXPECT_EQ(kdtree_submit(engine_.get(), &request, &id, 1), KDTREE_INVALID);
        EXPECT_NE(std::string(kdtree_last_error()).find(words), std::string::npos)
            << kdtree_last_error() << " has no " << words;
        EXPECT_EQ(id, 77u);
    }
    kdtree_engine_stats stats() {
        auto stats = zeroed<kdtree_engine_stats>();
        EXPECT_EQ(kdtree_stats(engine_.get(), &stats), KDTREE_OK);
        return stats;
    }
};

TEST_F(EngineAbi, GivesWhatTheEngineGives) {
    Engine engine({.model = tiny_model_path(),
                   .threads = 1,
                   .max_running_requests = 2,
                   .max_draft_tokens = 8});
    for (const bool tree : {false, true}) {
        Request plain = {.prompt = kPrompt, .max_tokens = 30};
        plain.speculation = {.shape = DraftShape::plain};
        const std::vector<Delta> expected = run_all(engine, {plain});
        kdtree_request request = request_of(kPrompt, 30);
        request.draft_shape = tree ? KDTREE_DRAFT_TREE : KDTREE_DRAFT_PLAIN;
        const AbiDelta delta = run_to_end(engine_.get(), submit(engine_.get(), request));
        EXPECT_EQ(ids_of(*delta), expected[0].ids);
        EXPECT_EQ(std::string(delta->text), expected[0].text);
        EXPECT_EQ(delta->stats.tokens, 30);
        EXPECT_EQ(delta->finish_reason, KDTREE_FINISH_LENGTH);
        EXPECT_STREQ(delta->error, "");
        EXPECT_EQ(delta->logprob_count, 0);
    }
    EXPECT_EQ(stats().finished, 2);
    EXPECT_EQ(stats().tokens, 60);
    EXPECT_EQ(stats().slots_used, 0);
    EXPECT_EQ(stats().unpolled, 0);
}

TEST_F(EngineAbi, SamplesDrawWithFollowingSeeds) {
    kdtree_request request = request_of(kPrompt, 12);
    request.sampling.temperature = 1;
    request.sampling.seed = 5;
    request.samples = 3;
    kdtree_request_id ids[3] = {};
    EXPECT_EQ(kdtree_submit(engine_.get(), &request, ids, 2), KDTREE_INVALID);
    ASSERT_EQ(kdtree_submit(engine_.get(), &request, ids, 3), KDTREE_OK);
    EXPECT_EQ(stats().submitted, 3);
    std::vector<std::vector<int32_t>> samples;
    for (const kdtree_request_id id : ids) {
        samples.push_back(ids_of(*run_to_end(engine_.get(), id)));
    }
    EXPECT_NE(samples[0], samples[1]);
    request.samples = 0;
    for (size_t i = 0; i < 3; ++i) {
        request.sampling.seed = 5 + i;
        EXPECT_EQ(ids_of(*run_to_end(engine_.get(), submit(engine_.get(), request))), samples[i]);
    }
}

TEST_F(EngineAbi, LaterPromptsStartFromTheCache) {
    const kdtree_request request = request_of(kPrompt, 12);
    const AbiDelta first = run_to_end(engine_.get(), submit(engine_.get(), request));
    EXPECT_EQ(first->stats.reused_tokens, 0);
    EXPECT_EQ(stats().slots_cached, 5 + 12 - 1);  // the last token's row was not computed
    const AbiDelta second = run_to_end(engine_.get(), submit(engine_.get(), request));
    EXPECT_EQ(second->stats.reused_tokens, 4);
    EXPECT_EQ(ids_of(*second), ids_of(*first));
    const kdtree_engine_stats now = stats();
    EXPECT_EQ(now.slots_free + now.slots_used + now.slots_cached, now.slots_total);
}

TEST_F(EngineAbi, PoolSettingsArrive) {
    kdtree_options options = tiny_options();
    options.max_total_tokens = 100;
    options.page_size = 16;
    options.disable_radix_cache = 1;
    const AbiEngine engine = create(options);
    auto info = zeroed<kdtree_model_info>();
    ASSERT_EQ(kdtree_engine_info(engine.get(), &info), KDTREE_OK);
    EXPECT_EQ(info.max_total_tokens, 112);
    for (int i = 0; i < 2; ++i) {
        const kdtree_request request = request_of(kPrompt, 4);
        EXPECT_EQ(run_to_end(engine.get(), submit(engine.get(), request))->stats.reused_tokens, 0);
    }
    auto now = zeroed<kdtree_engine_stats>();
    ASSERT_EQ(kdtree_stats(engine.get(), &now), KDTREE_OK);
    EXPECT_EQ(now.slots_cached, 0);
    EXPECT_EQ(now.slots_free, 112);
}

TEST_F(EngineAbi, LogprobsCome) {
    kdtree_request request = request_of(kPrompt, 5);
    request.logprobs = 1;
    request.top_logprobs = 2;
    request.prompt_logprobs = 1;
    const AbiDelta delta = run_to_end(engine_.get(), submit(engine_.get(), request));
    ASSERT_EQ(delta->logprob_count, 5);
    for (int32_t i = 0; i < 5; ++i) {
        const kdtree_position_logprobs& position = delta->logprobs[i];
        ASSERT_EQ(position.top_count, 2);
        EXPECT_EQ(position.top[0].token, delta->ids[i]);  // greedy
        EXPECT_EQ(position.top[0].logprob, position.logprob);
        EXPECT_GE(position.top[0].logprob, position.top[1].logprob);
    }
    ASSERT_EQ(delta->prompt_logprob_count, 4);
    EXPECT_LT(delta->prompt_logprobs[0].logprob, 0);
    EXPECT_EQ(delta->prompt_logprobs[0].top_count, 0);

    request.prompt_only = 1;
    request.logprobs = request.top_logprobs = 0;
    const AbiDelta scored = run_to_end(engine_.get(), submit(engine_.get(), request));
    EXPECT_EQ(scored->id_count, 0);
    EXPECT_EQ(scored->finish_reason, KDTREE_FINISH_LENGTH);
    ASSERT_EQ(scored->prompt_logprob_count, 4);
    EXPECT_EQ(scored->prompt_logprobs[3].logprob, delta->prompt_logprobs[3].logprob);
}

struct MaskProbe {
    int32_t result = 0;
    int32_t calls = 0;
    int32_t released = 0;
};

// Even tokens only.
int32_t even_tokens(void* user, const int32_t* answer, int64_t answer_tokens, uint32_t* allowed,
                    int64_t allowed_words) {
    auto& probe = *static_cast<MaskProbe*>(user);
    ++probe.calls;
    for (int64_t i = 0; i < answer_tokens; ++i) EXPECT_EQ(answer[i] % 2, 0);
    for (int64_t i = 0; i < allowed_words; ++i) {
        EXPECT_EQ(allowed[i], ~0u);
        allowed[i] = 0x55555555u;
    }
    return probe.result;
}

void release_probe(void* user) {
    static_cast<MaskProbe*>(user)->released += 1;
}

TEST_F(EngineAbi, MasksAreObeyedAndReleasedOnce) {
    MaskProbe probe;
    kdtree_request request = request_of(kPrompt, 20);
    request.logit_mask = even_tokens;
    request.logit_mask_user = &probe;
    request.logit_mask_release = release_probe;
    request.samples = 2;
    kdtree_request_id ids[2] = {};
    ASSERT_EQ(kdtree_submit(engine_.get(), &request, ids, 2), KDTREE_OK);
    EXPECT_EQ(probe.released, 0);
    const AbiDelta delta = run_to_end(engine_.get(), ids[0]);
    for (const int32_t id : ids_of(*delta)) EXPECT_EQ(id % 2, 0);
    EXPECT_GE(probe.calls, 20);
    EXPECT_EQ(probe.released, 1);

    probe = {.result = 9};
    request.samples = 1;
    const AbiDelta failed = run_to_end(engine_.get(), submit(engine_.get(), request));
    EXPECT_EQ(failed->finish_reason, KDTREE_FINISH_ERROR);
    EXPECT_STREQ(failed->error, "the logit mask returned 9");
    EXPECT_EQ(probe.released, 1);
    EXPECT_EQ(stats().failed, 1);

    probe = {};
    request.max_tokens = -1;  // refused: the pointer stays the caller's
    expect_refused(request, "-1");
    EXPECT_EQ(probe.released, 0);
    request.max_tokens = 5;
    submit(engine_.get(), request);
    engine_.reset();  // never stepped
    EXPECT_EQ(probe.released, 1);
}

TEST_F(EngineAbi, TextInAndOut) {
    kdtree_result* raw = nullptr;
    ASSERT_EQ(kdtree_tokenize(engine_.get(), "hello<|im_end|>", -1, 1, &raw), KDTREE_OK);
    const AbiResult tokens(raw);
    EXPECT_EQ(tokens->ids[tokens->id_count - 1], 2);
    EXPECT_EQ(tokens->text_bytes, 0);
    ASSERT_EQ(kdtree_detokenize(engine_.get(), tokens->ids, tokens->id_count, 1, &raw), KDTREE_OK);
    const AbiResult with(raw);
    EXPECT_STREQ(with->text, "hello<|im_end|>");
    ASSERT_EQ(kdtree_detokenize(engine_.get(), tokens->ids, tokens->id_count, 0, &raw), KDTREE_OK);
    const AbiResult without(raw);
    EXPECT_STREQ(without->text, "hello");
    ASSERT_EQ(kdtree_tokenize(engine_.get(), nullptr, 0, 0, &raw), KDTREE_OK);
    const AbiResult nothing(raw);
    EXPECT_EQ(nothing->id_count, 0);
    EXPECT_NE(nothing->ids, nullptr);

    const char* messages = R"([{"role": "user", "content": "hi"}])";
    ASSERT_EQ(kdtree_apply_chat_template(engine_.get(), messages, -1, 1, &raw), KDTREE_OK);
    const AbiResult prompt(raw);
    EXPECT_NE(std::strstr(prompt->text, "hi"), nullptr);
    EXPECT_GT(prompt->id_count, 0);
    const char* object = R"({"messages": [{"role": "user", "content": "hi"}],
                             "add_generation_prompt": false})";
    ASSERT_EQ(kdtree_apply_chat_template(engine_.get(), object, -1, 1, &raw), KDTREE_OK);
    const AbiResult bare(raw);
    EXPECT_LT(bare->text_bytes, prompt->text_bytes);

    // The text of a request is what kdtree_tokenize makes of it.
    auto request = zeroed<kdtree_request>();
    request.sampling.struct_bytes = sizeof request.sampling;
    request.prompt_text = "hello<|im_end|>";
    request.prompt_text_bytes = -1;
    request.parse_special = 1;
    request.max_tokens = 1;
    request.draft_shape = KDTREE_DRAFT_PLAIN;
    const AbiDelta delta = run_to_end(engine_.get(), submit(engine_.get(), request));
    EXPECT_EQ(delta->stats.prompt_tokens, tokens->id_count);
}

TEST_F(EngineAbi, BadTextIsRefused) {
    kdtree_result* raw = nullptr;
    EXPECT_EQ(kdtree_tokenize(engine_.get(), nullptr, -1, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_tokenize(engine_.get(), "x", -2, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_tokenize(engine_.get(), "x", INT64_MAX, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_tokenize(engine_.get(), "x", 1, 0, nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_tokenize(nullptr, "x", 1, 0, &raw), KDTREE_INVALID);
    const int32_t bad[] = {-1};
    EXPECT_EQ(kdtree_detokenize(engine_.get(), bad, 1, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_detokenize(engine_.get(), bad, -1, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_detokenize(engine_.get(), bad, INT64_MAX, 0, &raw), KDTREE_INVALID);
    EXPECT_EQ(kdtree_detokenize(engine_.get(), nullptr, 1, 0, &raw), KDTREE_INVALID);
    for (const char* json : {"", "{", "3", "{\"messages\": 3}", "[{\"role\": \"user\"", "\xff"}) {
        EXPECT_EQ(kdtree_apply_chat_template(engine_.get(), json, -1, 1, &raw), KDTREE_INVALID)
            << json;
        EXPECT_EQ(raw, nullptr);
        EXPECT_EQ(std::strchr(kdtree_last_error(), '\n'), nullptr);
    }
}

TEST_F(EngineAbi, BadRequestsAreRefused) {
    const kdtree_request good = request_of(kPrompt, 5);
    using Change = void (*)(kdtree_request&);
    const std::pair<Change, const char*> cases[] = {
        {[](kdtree_request& r) { r.struct_bytes -= 8; }, "request.struct_bytes"},
        {[](kdtree_request& r) { r.sampling.struct_bytes = 0; }, "request.sampling.struct_bytes"},
        {[](kdtree_request& r) { r.samples = -1; }, "request.samples is -1"},
        {[](kdtree_request& r) { r.samples = INT32_MAX; }, "request.samples"},
        {[](kdtree_request& r) { r.prompt_id_count = -1; }, "request.prompt_ids"},
        {[](kdtree_request& r) { r.prompt_id_count = INT64_MAX; }, "request.prompt_ids"},
        {[](kdtree_request& r) { r.prompt_id_count = 0; }, "prompt is empty"},
        {[](kdtree_request& r) { r.prompt_ids = nullptr; }, "request.prompt_ids is NULL"},
        {[](kdtree_request& r) { r.prompt_text = "both"; }, "both"},
        {[](kdtree_request& r) { r.max_tokens = -3; }, "-3"},
        {[](kdtree_request& r) { r.min_tokens = -1; }, "min tokens -1"},
        {[](kdtree_request& r) { r.ignore_eos = 2; }, "request.ignore_eos is 2"},
        {[](kdtree_request& r) { r.sampling.temperature = NAN; }, "temperature"},
        {[](kdtree_request& r) { r.sampling.top_p = 1.5f; }, "top_p 1.5"},
        {[](kdtree_request& r) { r.sampling.repetition_penalty = -1; }, "repetition penalty"},
        {[](kdtree_request& r) { r.stop_count = 1; }, "request.stop is NULL"},
        {[](kdtree_request& r) { r.stop_count = -1; }, "request.stop"},
        {[](kdtree_request& r) { r.stop_count = INT32_MAX; }, "request.stop"},
        {[](kdtree_request& r) { r.logit_bias_count = 1; }, "request.logit_bias is NULL"},
        {[](kdtree_request& r) { r.logit_bias_count = INT32_MIN; }, "request.logit_bias"},
        {[](kdtree_request& r) { r.top_logprobs = 5; }, "request.logprobs is 0"},
        {[](kdtree_request& r) { r.logprobs = 1, r.top_logprobs = 129; }, "129"},
        {[](kdtree_request& r) { r.prompt_logprobs = -1; }, "request.prompt_logprobs is -1"},
        {[](kdtree_request& r) { r.prompt_only = 7; }, "request.prompt_only is 7"},
        {[](kdtree_request& r) { r.draft_shape = 3; }, "request.draft_shape 3"},
        {[](kdtree_request& r) { r.draft_tokens = 9; }, "9"},
        {[](kdtree_request& r) { r.known_continuation_count = 1; }, "request.known_continuation"},
    };
    for (const auto& [change, words] : cases) {
        kdtree_request request = good;
        change(request);
        SCOPED_TRACE(words);
        expect_refused(request, words);
    }
    const char* stops[] = {nullptr, ""};
    kdtree_request request = good;
    request.stop = stops;
    request.stop_count = 1;
    expect_refused(request, "NULL");
    request.stop = stops + 1;
    expect_refused(request, "stop string is empty");
    request = good;
    const std::vector<int32_t> outside = {1 << 20};
    request.prompt_ids = outside.data();
    request.prompt_id_count = 1;
    expect_refused(request, "outside the vocabulary");
    EXPECT_EQ(kdtree_submit(engine_.get(), nullptr, nullptr, 1), KDTREE_INVALID);
    EXPECT_EQ(kdtree_submit(engine_.get(), &good, nullptr, 1), KDTREE_INVALID);
    EXPECT_EQ(stats().submitted, 0);
}

TEST_F(EngineAbi, BadOptionsAreRefused) {
    const auto expect_status = [](kdtree_status status, auto change) {
        kdtree_options options = tiny_options();
        change(options);
        auto* engine = reinterpret_cast<kdtree_engine*>(&options);
        EXPECT_EQ(kdtree_engine_create(&options, &engine), status) << kdtree_last_error();
        EXPECT_EQ(engine, nullptr);
        EXPECT_STRNE(kdtree_last_error(), "");
    };
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.struct_bytes = 3; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.drafter = 5; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.threads = -1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.max_running_requests = -1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.context_length = 1 << 20; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.reference_kernels = 2; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.page_size = 8; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.disable_radix_cache = -1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.kv_extent = -1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.kv_relocate = -1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.kv_evict_batch = 1.1; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.kv_evict_batch = std::nan(""); });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.drafter = KDTREE_DRAFTER_ORACLE; });
    expect_status(KDTREE_INVALID, [](kdtree_options& o) { o.drafter = KDTREE_DRAFTER_DFLASH; });
    expect_status(KDTREE_NOT_FOUND, [](kdtree_options& o) {
        o.drafter = KDTREE_DRAFTER_DFLASH;
        o.draft_model_path = "/nowhere";
    });
    EXPECT_NE(std::strstr(kdtree_last_error(), "/nowhere/config.json"), nullptr);
    expect_status(KDTREE_NOT_FOUND, [](kdtree_options& o) { o.model = "no\nsuch"; });
    EXPECT_EQ(std::strchr(kdtree_last_error(), '\n'), nullptr);
    EXPECT_EQ(kdtree_engine_create(nullptr, nullptr), KDTREE_INVALID);
}

TEST_F(EngineAbi, NullAndWrongArguments) {
    kdtree_delta* delta = nullptr;
    kdtree_request_id id = 0;
    int32_t count = 0;
    auto stats = zeroed<kdtree_engine_stats>();
    auto info = zeroed<kdtree_model_info>();
    EXPECT_EQ(kdtree_poll(nullptr, 1, 0, &delta), KDTREE_INVALID);
    EXPECT_EQ(kdtree_poll(engine_.get(), 1, 0, nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_wait(nullptr, 0, &id, 1, &count), KDTREE_INVALID);
    EXPECT_EQ(kdtree_wait(engine_.get(), 0, nullptr, 1, &count), KDTREE_INVALID);
    EXPECT_EQ(kdtree_wait(engine_.get(), 0, &id, 0, &count), KDTREE_INVALID);
    EXPECT_EQ(kdtree_wait(engine_.get(), 0, &id, 1, nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_wait(engine_.get(), -2, &id, 1, &count), KDTREE_INVALID);
    EXPECT_EQ(kdtree_step(nullptr, nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_start(nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_stop(nullptr), KDTREE_INVALID);
    EXPECT_EQ(kdtree_cancel(nullptr, 1), KDTREE_INVALID);
    EXPECT_EQ(kdtree_drop(nullptr, 1), KDTREE_INVALID);
    EXPECT_EQ(kdtree_stats(nullptr, &stats), KDTREE_INVALID);
    EXPECT_EQ(kdtree_stats(engine_.get(), nullptr), KDTREE_INVALID);
    stats.struct_bytes += 1;
    EXPECT_EQ(kdtree_stats(engine_.get(), &stats), KDTREE_INVALID);
    EXPECT_EQ(kdtree_engine_info(engine_.get(), nullptr), KDTREE_INVALID);
    info.struct_bytes = 0;
    EXPECT_EQ(kdtree_engine_info(engine_.get(), &info), KDTREE_INVALID);
    kdtree_engine_free(nullptr);
    kdtree_delta_free(nullptr);
    kdtree_result_free(nullptr);
    EXPECT_EQ(kdtree_abi(), KDTREE_ABI);
    EXPECT_NE(std::strchr(kdtree_version(), '('), nullptr);
}

TEST_F(EngineAbi, IdsEndWithTheirLastDelta) {
    const kdtree_request request = request_of(kPrompt, 3);
    const kdtree_request_id id = submit(engine_.get(), request);
    kdtree_delta* raw = nullptr;
    ASSERT_EQ(kdtree_poll(engine_.get(), id, 0, &raw), KDTREE_OK);
    EXPECT_EQ(AbiDelta(raw)->id_count, 0);
    ASSERT_EQ(kdtree_poll(engine_.get(), id, 5, &raw), KDTREE_OK);  // a timeout
    EXPECT_EQ(AbiDelta(raw)->finish_reason, KDTREE_FINISH_NONE);
    EXPECT_EQ(run_to_end(engine_.get(), id)->finish_reason, KDTREE_FINISH_LENGTH);
    EXPECT_EQ(kdtree_poll(engine_.get(), id, -1, &raw), KDTREE_NOT_FOUND);
    EXPECT_EQ(raw, nullptr);
    EXPECT_EQ(kdtree_cancel(engine_.get(), id), KDTREE_NOT_FOUND);
    EXPECT_EQ(kdtree_drop(engine_.get(), id), KDTREE_NOT_FOUND);
    EXPECT_EQ(kdtree_cancel(engine_.get(), 0), KDTREE_NOT_FOUND);
    EXPECT_EQ(kdtree_poll(engine_.get(), UINT64_MAX, 0, &raw), KDTREE_NOT_FOUND);
    EXPECT_STREQ(kdtree_last_error(), "no request 18446744073709551615");
}

TEST_F(EngineAbi, CancelAndDrop) {
    const kdtree_request request = request_of(kPrompt, 50);
    const kdtree_request_id waiting = submit(engine_.get(), request);
    EXPECT_EQ(kdtree_cancel(engine_.get(), waiting), KDTREE_OK);
    EXPECT_EQ(kdtree_cancel(engine_.get(), waiting), KDTREE_OK);
    int32_t ran = 1;
    ASSERT_EQ(kdtree_step(engine_.get(), &ran), KDTREE_OK);
    EXPECT_EQ(ran, 0);
    EXPECT_EQ(run_to_end(engine_.get(), waiting)->finish_reason, KDTREE_FINISH_ABORT);

    const kdtree_request_id running = submit(engine_.get(), request);
    const kdtree_request_id dropped = submit(engine_.get(), request);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(kdtree_step(engine_.get(), &ran), KDTREE_OK);
    EXPECT_EQ(stats().running, 2);
    EXPECT_GT(stats().slots_used, 0);
    EXPECT_EQ(kdtree_cancel(engine_.get(), running), KDTREE_OK);
    EXPECT_EQ(kdtree_drop(engine_.get(), dropped), KDTREE_OK);
    kdtree_delta* raw = nullptr;
    EXPECT_EQ(kdtree_poll(engine_.get(), dropped, 0, &raw), KDTREE_NOT_FOUND);
    const AbiDelta delta = run_to_end(engine_.get(), running);
    EXPECT_EQ(delta->finish_reason, KDTREE_FINISH_ABORT);
    EXPECT_GT(delta->id_count, 0);
    EXPECT_EQ(delta->id_count, delta->stats.tokens);
    const kdtree_engine_stats end = stats();
    EXPECT_GT(end.slots_cached, 0);
    EXPECT_EQ(end.slots_free + end.slots_cached, end.slots_total);
    EXPECT_EQ(end.aborted, 2);
    EXPECT_EQ(end.dropped, 1);
    EXPECT_EQ(end.unfinished, 0);
    EXPECT_EQ(end.unpolled, 0);
    EXPECT_EQ(end.slots_used, 0);
    EXPECT_EQ(end.running, 0);
}

TEST_F(EngineAbi, WaitNamesWhoHasNewsInOrder) {
    kdtree_request_id ids[4] = {};
    int32_t count = 5;
    ASSERT_EQ(kdtree_wait(engine_.get(), 1, ids, 4, &count), KDTREE_OK);
    EXPECT_EQ(count, 0);
    const kdtree_request_id first = submit(engine_.get(), request_of(kPrompt, 2));
    const kdtree_request_id second = submit(engine_.get(), request_of(kPrompt, 2));
    const AbiDelta delta = run_to_end(engine_.get(), first);
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(kdtree_wait(engine_.get(), -1, ids, 4, &count), KDTREE_OK);
        ASSERT_EQ(count, 1);
        EXPECT_EQ(ids[0], second);
    }
    run_to_end(engine_.get(), second);
    ASSERT_EQ(kdtree_wait(engine_.get(), 0, ids, 4, &count), KDTREE_OK);
    EXPECT_EQ(count, 0);
}

TEST_F(EngineAbi, BackgroundThread) {
    ASSERT_EQ(kdtree_start(engine_.get()), KDTREE_OK);
    EXPECT_EQ(kdtree_start(engine_.get()), KDTREE_BUSY);
    EXPECT_EQ(kdtree_step(engine_.get(), nullptr), KDTREE_BUSY);
    EXPECT_EQ(stats().background, 1);
    const kdtree_request_id id = submit(engine_.get(), request_of(kPrompt, 10));
    int64_t tokens = 0;
    for (bool more = true; more;) {
        kdtree_delta* raw = nullptr;
        ASSERT_EQ(kdtree_poll(engine_.get(), id, -1, &raw), KDTREE_OK);
        const AbiDelta delta(raw);
        tokens += delta->id_count;
        more = delta->finish_reason == KDTREE_FINISH_NONE;
    }
    EXPECT_EQ(tokens, 10);
    EXPECT_EQ(kdtree_stop(engine_.get()), KDTREE_OK);
    EXPECT_EQ(kdtree_stop(engine_.get()), KDTREE_OK);
    EXPECT_EQ(stats().background, 0);
    EXPECT_EQ(kdtree_step(engine_.get(), nullptr), KDTREE_OK);
    ASSERT_EQ(kdtree_start(engine_.get()), KDTREE_OK);
    submit(engine_.get(), request_of(kPrompt, 400));
    engine_.reset();  // in the middle of it
}

TEST_F(EngineAbi, BackgroundThreadGoesOnWithWhatWasBegun) {
    const kdtree_request_id id = submit(engine_.get(), request_of(kPrompt, 40));
    ASSERT_EQ(kdtree_step(engine_.get(), nullptr), KDTREE_OK);
    ASSERT_EQ(kdtree_start(engine_.get()), KDTREE_OK);
    for (int64_t tokens = 0; tokens < 40;) {
        kdtree_delta* raw = nullptr;
        ASSERT_EQ(kdtree_poll(engine_.get(), id, 60000, &raw), KDTREE_OK);
        const AbiDelta delta(raw);
        ASSERT_GT(delta->id_count, 0) << "nobody steps";
        tokens += delta->id_count;
    }
}

struct Reentry {
    kdtree_engine* engine;
    kdtree_request_id other;
    kdtree_status step, stop, poll, cancel;
};

int32_t call_back_in(void* user, const int32_t*, int64_t, uint32_t*, int64_t) {
    auto& seen = *static_cast<Reentry*>(user);
    seen.step = kdtree_step(seen.engine, nullptr);
    seen.stop = kdtree_stop(seen.engine);
    kdtree_delta* delta = nullptr;
    seen.poll = kdtree_poll(seen.engine, seen.other, 0, &delta);
    kdtree_delta_free(delta);
    seen.cancel = kdtree_cancel(seen.engine, seen.other);
    return 0;
}

TEST_F(EngineAbi, MasksMayCallBackIn) {
    Reentry seen = {};
    seen.engine = engine_.get();
    seen.other = submit(engine_.get(), request_of(kPrompt, 400));
    kdtree_request request = request_of(kPrompt, 1);
    request.logit_mask = call_back_in;
    request.logit_mask_user = &seen;
    const kdtree_request_id id = submit(engine_.get(), request);
    ASSERT_EQ(kdtree_start(engine_.get()), KDTREE_OK);
    kdtree_delta* raw = nullptr;
    ASSERT_EQ(kdtree_poll(engine_.get(), id, -1, &raw), KDTREE_OK);
    kdtree_delta_free(raw);
    ASSERT_EQ(kdtree_stop(engine_.get()), KDTREE_OK);
    EXPECT_EQ(seen.step, KDTREE_BUSY);
    EXPECT_EQ(seen.stop, KDTREE_INVALID);
    EXPECT_EQ(seen.poll, KDTREE_OK);
    EXPECT_EQ(seen.cancel, KDTREE_OK);
    EXPECT_EQ(run_to_end(engine_.get(), seen.other)->finish_reason, KDTREE_FINISH_ABORT);
}

TEST_F(EngineAbi, FreeWakesWhoWaits) {
    const kdtree_request_id id = submit(engine_.get(), request_of(kPrompt, 5));
    kdtree_status polled = KDTREE_OK;
    kdtree_status waited = KDTREE_OK;
    std::atomic<int> inside = 0;
    std::thread poller([&] {
        kdtree_delta* delta = nullptr;
        ++inside;
        polled = kdtree_poll(engine_.get(), id, -1, &delta);
    });
    std::thread waiter([&] {
        kdtree_request_id ids[1];
        int32_t count = 0;
        ++inside;
        waited = kdtree_wait(engine_.get(), -1, ids, 1, &count);
    });
    // Nothing tells from outside that a thread has begun to wait; this is far longer than it takes.
    while (inside < 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kdtree_engine_free(engine_.get());
    poller.join();
    waiter.join();
    (void)engine_.release();
    EXPECT_EQ(polled, KDTREE_CLOSED);
    EXPECT_EQ(waited, KDTREE_CLOSED);
}

TEST_F(EngineAbi, MessagesAreOfTheirThread) {
    EXPECT_EQ(kdtree_cancel(engine_.get(), 123), KDTREE_NOT_FOUND);
    std::thread([&] {
        EXPECT_STREQ(kdtree_last_error(), "");
        EXPECT_EQ(kdtree_cancel(engine_.get(), 456), KDTREE_NOT_FOUND);
    }).join();
    EXPECT_STREQ(kdtree_last_error(), "no request 123");
}

}  // namespace

}  // namespace kd
