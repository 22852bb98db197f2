// What the engine's tests share: models, drafters that misbehave, and running requests to their
// end.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "models/drafter.h"

namespace kd {

/// A random two-layer model, written once a process to a temporary folder.
const std::string& tiny_model_path();

/// SmolLM2 in the cache folder, if it was fetched.
std::optional<std::string> smollm2_path();

/// Proposes random tokens with random edges and probabilities, whatever the text.
class NonsenseDrafter final : public Drafter {
  public:
    NonsenseDrafter(int32_t depths, int32_t states, int32_t vocabulary, uint32_t seed)
        : Drafter(depths, states), vocabulary_(vocabulary), random_(seed) {}

    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override;

  private:
    void fill(const LatticeView& lattice, int32_t depths);

    int32_t vocabulary_;
    std::mt19937 random_;
};

/// What a call throws.
template <class Call>
std::string error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

/// Steps until nothing is left and returns each request's whole output in order. Checks the books
/// after every round.
std::vector<Delta> run_all(Engine& engine, const std::vector<Request>& requests);

/// Everything a user sees is equal: ids, text, logprobs to the bit, how it ended.
void expect_same_output(const Delta& actual, const Delta& expected);
void expect_same_logprobs(const std::vector<PositionLogprobs>& actual,
                          const std::vector<PositionLogprobs>& expected);

/// `count` random prompts of 1 to `max_tokens` tokens below `vocabulary`; some repeat a phrase, so
/// that prompt lookup finds something.
std::vector<std::vector<int32_t>> random_prompts(int32_t count, int32_t max_tokens,
                                                 int32_t vocabulary, uint32_t seed);

/// The same behind one of four common beginnings of 20 to 50 tokens, or behind a piece of one.
std::vector<std::vector<int32_t>> sharing_prompts(int32_t count, int32_t max_tokens,
                                                  int32_t vocabulary, uint32_t seed);

/// Writes `text` to a new file in the temporary folder and returns its path.
std::string write_temporary(const std::string& name, const std::string& text);

/// A profile of the oracle drafter: hit rates by rank for each of `depths` depths.
std::string oracle_profile(const std::string& name, const std::vector<std::vector<float>>& hit);

}  // namespace kd
