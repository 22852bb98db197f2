// include/kdtree/engine.h: RAII over the C ABI.
#include "abi/abi_support.h"
#include "kdtree/engine.h"

namespace kd {

namespace {

kdtree::Engine tiny_engine() {
    return kdtree::Engine({.model = tiny_model_path(),
                           .threads = 1,
                           .max_running_requests = 2,
                           .max_draft_tokens = 8});
}

kdtree::Prompt prompt(int32_t max_tokens) {
    kdtree::Prompt prompt;
    prompt.ids = {10, 20, 30, 10, 20};
    prompt.max_tokens = max_tokens;
    prompt.draft_tokens = 4;
    return prompt;
}

std::vector<int32_t> finish(kdtree::Engine& engine, kdtree::Request& request) {
    while (engine.step()) {
    }
    return request.poll(kdtree::kNow).ids;
}

TEST(EngineHeader, Generates) {
    kdtree::Engine engine = tiny_engine();
    kdtree::Request request = engine.submit(prompt(12));
    EXPECT_NE(request.id(), 0u);
    engine.start();
    std::vector<int32_t> ids;
    for (bool more = true; more;) {
        const kdtree::Delta delta = request.poll();
        ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
        more = !delta.finished();
    }
    engine.stop();
    EXPECT_EQ(request.id(), 0u);
    kdtree::Prompt plain = prompt(12);
    plain.draft_shape = KDTREE_DRAFT_PLAIN;
    kdtree::Request again = engine.submit(plain);
    EXPECT_EQ(finish(engine, again), ids);
    EXPECT_EQ(engine.stats().tokens, 24);
    EXPECT_EQ(engine.info().eos_token, 2);
}

TEST(EngineHeader, TokensAndTemplates) {
    const kdtree::Engine engine = tiny_engine();
    const std::vector<int32_t> ids = engine.tokenize("hello", false);
    EXPECT_EQ(engine.detokenize(ids), "hello");
    const std::vector<int32_t> chat =
        engine.apply_chat_template(R"([{"role": "user", "content": "hello"}])");
    EXPECT_GT(chat.size(), ids.size());
}

TEST(EngineHeader, RequestsThatGoAreDropped) {
    kdtree::Engine engine = tiny_engine();
    {
        std::vector<kdtree::Request> samples = engine.submit_n(prompt(50), 2);
        kdtree::Request moved = std::move(samples[0]);
        EXPECT_EQ(samples[0].id(), 0u);  // NOLINT(bugprone-use-after-move): what is tested
        engine.step();
    }
    EXPECT_EQ(engine.stats().dropped, 2);
    EXPECT_FALSE(engine.step());
    EXPECT_EQ(engine.stats().slots_used, 0);
}

TEST(EngineHeader, ErrorsThrow) {
    kdtree::Engine engine = tiny_engine();
    try {
        engine.submit({});
        FAIL();
    } catch (const kdtree::Error& error) {
        EXPECT_EQ(error.status, KDTREE_INVALID);
        EXPECT_STRNE(error.what(), "");
    }
    EXPECT_THROW(kdtree::Engine({.model = "no-such-model"}), kdtree::Error);
    EXPECT_THROW(engine.submit_n(prompt(1), -1), kdtree::Error);
    EXPECT_THROW(engine.wait(kdtree::kNow, 0), kdtree::Error);
}

TEST(EngineHeader, Masks) {
    kdtree::Engine engine = tiny_engine();
    auto counter = std::make_shared<int>(0);
    kdtree::Prompt masked = prompt(6);
    masked.logit_mask = [counter](std::span<const int32_t>, std::span<uint32_t> allowed) {
        ++*counter;
        for (uint32_t& word : allowed) word &= 0x55555555u;
    };
    kdtree::Request request = engine.submit(masked);
    for (const int32_t id : finish(engine, request)) EXPECT_EQ(id % 2, 0);
    EXPECT_GE(*counter, 6);
    masked.logit_mask = [](std::span<const int32_t>, std::span<uint32_t>) {
        throw std::runtime_error("no");
    };
    EXPECT_EQ(counter.use_count(), 1);  // the library let go of it
    kdtree::Request failing = engine.submit(masked);
    while (engine.step()) {
    }
    const kdtree::Delta delta = failing.poll();
    EXPECT_EQ(delta.finish_reason, KDTREE_FINISH_ERROR);
    EXPECT_EQ(delta.error, "the logit mask returned 1");
}

TEST(EngineHeader, WaitAndLogprobs) {
    kdtree::Engine engine = tiny_engine();
    kdtree::Prompt scored = prompt(3);
    scored.top_logprobs = 2;
    scored.top_prompt_logprobs = 0;
    kdtree::Request request = engine.submit(scored);
    EXPECT_TRUE(engine.wait(kdtree::kNow).empty());
    while (engine.step()) {
    }
    EXPECT_EQ(engine.wait(), std::vector<kdtree_request_id>{request.id()});
    const kdtree::Delta delta = request.poll();
    ASSERT_EQ(delta.logprobs.size(), 3u);
    EXPECT_EQ(delta.logprobs[0].top.size(), 2u);
    EXPECT_EQ(delta.prompt_logprobs.size(), 4u);
}

}  // namespace

}  // namespace kd
