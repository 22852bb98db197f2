// Two sampled answers to one prompt side by side, with the likeliest alternatives, from C++.
//
//     build/cpu/examples/generate_from_cpp [MODEL.gguf] PROMPT
//
// Without a model: smollm2, which ./quickstart fetches. Exit code 1 if a call fails.
#include <cmath>
#include <cstdio>

#include "kdtree/engine.h"

namespace {

void show(const kdtree::Engine& engine, const kdtree::Delta& answer) {
    std::printf("%s\n", answer.text.c_str());
    for (size_t i = 0; i < answer.ids.size() && i < 3; ++i) {
        std::printf("  %s (%.0f %%), or", engine.detokenize({&answer.ids[i], 1}, true).c_str(),
                    100 * std::exp(answer.logprobs[i].logprob));
        for (const kdtree_token_logprob& other : answer.logprobs[i].top) {
            std::printf(" %s", engine.detokenize({&other.token, 1}, true).c_str());
        }
        std::printf("\n");
    }
}

int run(const char* model, const char* prompt) {
    kdtree::Options options;
    if (model != nullptr) options.model = model;
    options.max_running_requests = 2;
    kdtree::Engine engine(options);

    kdtree::Prompt asked;
    asked.prompt = prompt;
    asked.max_tokens = 32;
    asked.sampling.temperature = 0.8f;
    asked.sampling.seed = 1;
    asked.top_logprobs = 3;
    std::vector<kdtree::Request> samples = engine.submit_n(asked, 2);
    while (engine.step()) {  // both in the same rounds
    }
    for (kdtree::Request& sample : samples) show(engine, sample.poll());
    const kdtree_engine_stats stats = engine.stats();
    std::printf("%lld tokens in %lld rounds\n", static_cast<long long>(stats.tokens),
                static_cast<long long>(stats.rounds));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3) {
        std::fputs("usage: generate_from_cpp [MODEL.gguf] PROMPT\n", stderr);
        return 2;
    }
    try {
        return run(argc == 3 ? argv[1] : nullptr, argv[argc - 1]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
