// The C ABI under odd arguments: the bytes choose a sequence of calls, and in each null pointers,
// wrong struct sizes, negative and huge counts, unknown ids and random values. What a caller
// promises is kept: an array has as many elements as its count says, unless the count is one that
// has to be refused unread. Every call returns a status; a refusal has a one-line message; what was
// built and accepted is a tree and a path in it; and at the end, with all requests dropped, the
// books balance and every logit mask was released.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "fuzz/memory_file.h"
#include "kdtree/kdtree.h"
#include "support/tiny_model.h"

namespace kd {
namespace {

constexpr int32_t kContext = 48;
constexpr int kMostCalls = 24;

int masks_alive = 0;

/// A function of the answer alone: the user pointer picks one of a few rules.
int32_t mask(void* user, const int32_t* answer, int64_t tokens, uint32_t* allowed, int64_t words) {
    const auto rule = reinterpret_cast<uintptr_t>(user);
    if (rule == 1 && tokens == 2) return -1;
    for (int64_t word = 0; word < words; ++word) {
        if (rule == 2) allowed[word] = 0;  // nothing may follow
        if (rule == 3 && tokens > 0)
            allowed[word] &= static_cast<uint32_t>(answer[0]) * 2654435761u;
    }
    return 0;
}

void release(void* /*user*/) {
    --masks_alive;
}

/// One run: the engine lives as long as the process, the requests do not.
class Caller {
  public:
    Caller(const uint8_t* data, size_t bytes) : input_(data, bytes) {}

    void run();

  private:
    static kdtree_engine* shared_engine();

    // Odd values.
    // Rare enough that a request of forty values is often good; never once the bytes are used up.
    static constexpr int kSeldom = 64;
    bool chance(int one_in) { return input_.ConsumeIntegralInRange(1, one_in) == one_in; }
    template <class T>
    T* maybe(T* pointer) {
        return chance(kSeldom) ? nullptr : pointer;
    }
    kdtree_engine* engine() { return maybe(shared_engine()); }
    template <class Struct>
    void set_size(Struct& value) {
        value.struct_bytes =
            chance(kSeldom) ? input_.ConsumeIntegral<uint32_t>() : uint32_t{sizeof value};
    }
    int32_t small(int32_t least, int32_t most) {
        return chance(kSeldom) ? input_.ConsumeIntegral<int32_t>()
                               : input_.ConsumeIntegralInRange(least, most);
    }
    float number(float usual) {
        if (!chance(4)) return usual;
        if (!chance(4)) return input_.ConsumeFloatingPointInRange(0.0f, 1.5f);
        const auto bits = input_.ConsumeIntegral<uint32_t>();
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    /// The true count, or one that must be refused before anything is read.
    template <class Count>
    Count count_of(size_t elements) {
        if (!chance(kSeldom)) return static_cast<Count>(elements);
        return chance(2) ? Count{-2} : std::numeric_limits<Count>::max();
    }
    std::vector<int32_t> ids(size_t most) {
        std::vector<int32_t> ids(input_.ConsumeIntegralInRange<size_t>(0, most));
        for (int32_t& id : ids) id = small(0, 319);
        return ids;
    }
    kdtree_request_id known_or_any() {
        if (known_.empty() || chance(8)) return input_.ConsumeIntegralInRange<uint64_t>(0, 1000);
        auto at = known_.begin();
        std::advance(at, input_.ConsumeIntegralInRange<size_t>(0, known_.size() - 1));
        return *at;
    }

    /// Every status comes through here.
    bool ok(kdtree_status status);

    void create();
    void submit();
    void fill(kdtree_request& request);
    void poll(kdtree_request_id id, int64_t timeout_ms);
    void wait();
    void look();
    void convert();
    void build_tree();
    void accept_tree();
    void settle();

    FuzzedDataProvider input_;
    std::set<kdtree_request_id> known_;  // submitted and not forgotten
};

bool Caller::ok(kdtree_status status) {
    KD_CHECK(status >= KDTREE_OK && status < KDTREE_INTERNAL, "status {}: {}",
             static_cast<int>(status), kdtree_last_error());
    if (status == KDTREE_OK) return true;
    const std::string_view message = kdtree_last_error();
    KD_CHECK(!message.empty() && message.find('\n') == message.npos, "message: {}", message);
    return false;
}

const std::string& model_path() {
    static MemoryFile file;
    static const std::string path = [] {
        const std::string bytes =
            tiny_model({.layers = 1, .hidden = 32, .intermediate = 32}).bytes();
        file.set({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
        return file.path();
    }();
    return path;
}

kdtree_engine* Caller::shared_engine() {
    static kdtree_engine* const engine = [] {
        const kdtree_options options = {.struct_bytes = sizeof options,
                                        .model = model_path().c_str(),
                                        .context_length = kContext,
                                        .threads = 1,
                                        .max_running_requests = 2,
                                        .chunked_prefill_size = 16,
                                        .max_draft_tokens = 8};
        kdtree_engine* loaded = nullptr;
        const kdtree_status status = kdtree_engine_create(&options, &loaded);
        KD_CHECK(status == KDTREE_OK, "{}", kdtree_last_error());
        return loaded;
    }();
    return engine;
}

/// An engine of odd settings, freed at once.
void Caller::create() {
    // A large pool that is in range is a fair wish, and its books take memory.
    constexpr int32_t kOutOfRange[] = {-1, std::numeric_limits<int32_t>::max()};
    const int32_t pool = chance(kSeldom) ? input_.PickValueInArray(kOutOfRange)
                                         : input_.ConsumeIntegralInRange(0, 512);
    kdtree_options options = {.drafter = small(0, 3),
                              .model = chance(4) ? "/no/such.gguf" : model_path().c_str(),
                              .draft_model_path = chance(2) ? nullptr : "/no/such.json",
                              .context_length = small(0, 512),
                              .threads = chance(8) ? -1 : 1,
                              .max_running_requests = small(0, 4),
                              .max_total_tokens = pool,
                              .chunked_prefill_size = small(0, 64),
                              .max_draft_tokens = small(0, 128),
                              .reference_kernels = small(0, 1)};
    set_size(options);
    kdtree_engine* loaded = nullptr;
    if (ok(kdtree_engine_create(&options, maybe(&loaded)))) kdtree_engine_free(loaded);
}

void Caller::fill(kdtree_request& request) {
    request.samples = small(0, 2);
    request.parse_special = small(0, 1);
    request.max_tokens = small(1, 6);
    request.min_tokens = small(0, 2);
    request.ignore_eos = small(0, 1);
    request.sampling = {.temperature = number(0),
                        .top_k = small(0, 8),
                        .top_p = number(1),
                        .min_p = number(0),
                        .repetition_penalty = number(0),
                        .presence_penalty = number(0),
                        .frequency_penalty = number(0),
                        .seed = input_.ConsumeIntegral<uint64_t>()};
    set_size(request.sampling);
    request.logprobs = small(0, 1);
    request.top_logprobs = request.logprobs == 0 ? 0 : small(0, 4);
    request.prompt_logprobs = small(0, 1);
    request.top_prompt_logprobs = request.prompt_logprobs == 0 ? 0 : small(0, 4);
    request.prompt_only = chance(4) ? small(0, 1) : 0;
    request.draft_shape = small(0, 2);
    request.draft_tokens = small(0, 8);
}

void Caller::submit() {
    kdtree_request request = {};
    set_size(request);
    fill(request);
    const std::vector<int32_t> prompt = ids(8);
    const std::string text = input_.ConsumeRandomLengthString(8);
    if (chance(2)) {
        request.prompt_ids = maybe(prompt.data());
        request.prompt_id_count = count_of<int64_t>(prompt.size());
    }
    if (request.prompt_ids == nullptr || chance(kSeldom)) {
        request.prompt_text = maybe(text.c_str());
        request.prompt_text_bytes = chance(4) ? -1 : count_of<int64_t>(text.size());
    }
    const std::string stop_text = input_.ConsumeRandomLengthString(3);
    const char* const stop[] = {maybe(stop_text.c_str())};
    request.stop = maybe(&stop[0]);
    request.stop_count = chance(4) ? count_of<int32_t>(1) : 0;
    std::vector<kdtree_logit_bias> bias(input_.ConsumeIntegralInRange<size_t>(0, 3));
    for (kdtree_logit_bias& each : bias) each = {.token = small(0, 319), .bias = number(-1)};
    request.logit_bias = maybe(bias.data());
    request.logit_bias_count = count_of<int32_t>(bias.size());
    const std::vector<int32_t> continuation = ids(3);
    request.known_continuation = maybe(continuation.data());
    request.known_continuation_count = count_of<int64_t>(continuation.size());
    if (chance(4)) {
        request.logit_mask = mask;
        request.logit_mask_user = reinterpret_cast<void*>(input_.ConsumeIntegralInRange(0, 3));
        request.logit_mask_release = maybe(&release);
    }
    std::vector<kdtree_request_id> made(chance(8) ? 1 : 3);
    const auto capacity = chance(kSeldom) ? int32_t{-1} : static_cast<int32_t>(made.size());
    if (!ok(kdtree_submit(engine(), maybe(&request), maybe(made.data()), capacity))) return;
    if (request.logit_mask != nullptr && request.logit_mask_release != nullptr) ++masks_alive;
    const size_t samples = request.samples == 0 ? 1 : static_cast<size_t>(request.samples);
    KD_CHECK(samples <= made.size(), "{} samples for {} ids", samples, made.size());
    for (size_t i = 0; i < samples; ++i) {
        KD_CHECK(made[i] != 0 && known_.insert(made[i]).second, "id {}", made[i]);
    }
}

void Caller::poll(kdtree_request_id id, int64_t timeout_ms) {
    kdtree_delta* delta = nullptr;
    if (!ok(kdtree_poll(engine(), id, timeout_ms, maybe(&delta)))) {
        KD_CHECK(delta == nullptr, "a failed poll of {} left a delta", id);
        return;
    }
    KD_CHECK(known_.contains(id), "polled the unknown id {}", id);
    KD_CHECK(delta->text[delta->text_bytes] == '\0', "the text of {} does not end", id);
    KD_CHECK(delta->logprob_count == 0 || delta->logprob_count == delta->id_count,
             "{} logprobs for {} ids", delta->logprob_count, delta->id_count);
    for (int64_t i = 0; i < delta->logprob_count; ++i) {
        const kdtree_position_logprobs& position = delta->logprobs[i];
        KD_CHECK(position.logprob <= 1e-4f, "logprob {}", position.logprob);
        for (int32_t k = 1; k < position.top_count; ++k) {
            KD_CHECK(position.top[k - 1].logprob >= position.top[k].logprob, "top {} of {}", k, id);
        }
    }
    const std::string_view error = delta->error;
    KD_CHECK(error.empty() == (delta->finish_reason != KDTREE_FINISH_ERROR), "error '{}'", error);
    if (delta->finish_reason != KDTREE_FINISH_NONE) known_.erase(id);
    kdtree_delta_free(delta);
}

void Caller::wait() {
    std::vector<kdtree_request_id> ready(input_.ConsumeIntegralInRange<size_t>(0, 3));
    int32_t count = 0;
    const int64_t timeout_ms = chance(kSeldom) ? std::numeric_limits<int64_t>::min() : 0;
    const auto capacity = chance(kSeldom) ? int32_t{-1} : static_cast<int32_t>(ready.size());
    if (!ok(kdtree_wait(engine(), timeout_ms, maybe(ready.data()), capacity, maybe(&count)))) {
        return;
    }
    KD_CHECK(count >= 0 && count <= capacity, "{} ids in {}", count, capacity);
    for (int32_t i = 0; i < count; ++i) {
        KD_CHECK(known_.contains(ready[static_cast<size_t>(i)]), "news of an unknown id");
    }
}

void Caller::look() {
    kdtree_model_info info = {};
    set_size(info);
    if (ok(kdtree_engine_info(engine(), maybe(&info)))) {
        KD_CHECK(info.vocabulary == 320 && info.context_length == kContext, "vocabulary {}",
                 info.vocabulary);
    }
    kdtree_engine_stats stats = {};
    set_size(stats);
    if (ok(kdtree_stats(engine(), maybe(&stats)))) {
        KD_CHECK(stats.slots_free + stats.slots_used + stats.slots_cached == stats.slots_total,
                 "{} + {} + {} of {} slots", stats.slots_free, stats.slots_used, stats.slots_cached,
                 stats.slots_total);
    }
}

/// Text, ids and conversations.
void Caller::convert() {
    const std::string text = input_.ConsumeRandomLengthString(24);
    const std::vector<int32_t> tokens = ids(8);
    const auto text_bytes = chance(4) ? int64_t{-1} : count_of<int64_t>(text.size());
    kdtree_result* result = nullptr;
    kdtree_status status = KDTREE_INVALID;
    switch (input_.ConsumeIntegralInRange(0, 2)) {
        case 0:
            status = kdtree_tokenize(engine(), maybe(text.c_str()), text_bytes, small(0, 1),
                                     maybe(&result));
            break;
        case 1:
            status =
                kdtree_detokenize(engine(), maybe(tokens.data()), count_of<int64_t>(tokens.size()),
                                  small(0, 1), maybe(&result));
            break;
        default: {
            const std::string json = chance(2) ? text : R"([{"role": "user", "content": "hi"}])";
            status =
                kdtree_apply_chat_template(engine(), maybe(json.c_str()),
                                           chance(4) ? int64_t{-1} : count_of<int64_t>(json.size()),
                                           small(0, 1), maybe(&result));
        }
    }
    if (!ok(status)) {
        KD_CHECK(result == nullptr, "a failed call left a result");
        return;
    }
    KD_CHECK(result->ids != nullptr && result->text != nullptr, "null in a result");
    KD_CHECK(result->text[result->text_bytes] == '\0', "a text does not end");
    kdtree_result_free(result);
}

void Caller::build_tree() {
    kdtree_lattice lattice = {.depths = small(0, 6), .states = small(1, 5)};
    set_size(lattice);
    const bool sane =
        lattice.depths >= 0 && lattice.depths <= 64 && lattice.states >= 1 && lattice.states <= 64;
    const size_t depths = sane ? static_cast<size_t>(lattice.depths) : 0;
    const size_t states = sane ? static_cast<size_t>(lattice.states) : 0;
    std::vector<int32_t> state_count(depths);
    for (int32_t& count : state_count) count = small(0, lattice.states);
    std::vector<int32_t> token(depths * states);
    for (int32_t& each : token) each = small(0, 5);
    std::vector<float> log_prob(depths * states);
    for (float& each : log_prob) each = number(-1);
    std::vector<float> edge(chance(2) ? depths * states * states : 0);
    for (float& each : edge) each = number(-1);
    lattice.state_count = maybe(state_count.data());
    lattice.token = maybe(token.data());
    lattice.log_prob = maybe(log_prob.data());
    lattice.edge = edge.empty() ? nullptr : edge.data();

    kdtree_tree tree = {.capacity = small(1, 12)};
    set_size(tree);
    const int32_t nodes = std::clamp(tree.capacity, 0, 128);  // no more are written
    std::vector<int32_t> node_token(static_cast<size_t>(nodes)), parent(node_token), depth(parent);
    std::vector<float> log_score(node_token.size());
    std::vector<uint64_t> ancestors(2 * node_token.size());
    tree.token = maybe(node_token.data());
    tree.parent = maybe(parent.data());
    tree.depth = maybe(depth.data());
    tree.log_score = maybe(log_score.data());
    tree.ancestors = maybe(ancestors.data());
    const int32_t root = input_.ConsumeIntegral<int32_t>();
    const int32_t max_nodes = small(1, 12);
    if (!ok(kdtree_build_tree(maybe(&lattice), root, max_nodes, maybe(&tree)))) return;

    KD_CHECK(tree.count >= 1 && tree.count <= std::min(nodes, max_nodes), "{} nodes of {}",
             tree.count, nodes);
    KD_CHECK(node_token[0] == root && parent[0] == -1, "root {}", node_token[0]);
    std::set<std::pair<int32_t, int32_t>> children;
    for (size_t i = 1; i < static_cast<size_t>(tree.count); ++i) {
        KD_CHECK(parent[i] >= 0 && parent[i] < static_cast<int32_t>(i), "parent {}", parent[i]);
        KD_CHECK(children.insert({parent[i], node_token[i]}).second, "twin sibling {}", i);
        if (tree.log_score == nullptr) continue;
        KD_CHECK(log_score[i] <= log_score[i - 1], "score {} after {}", log_score[i],
                 log_score[i - 1]);
    }
}

void Caller::accept_tree() {
    kdtree_tree tree = {.capacity = small(1, 8)};
    set_size(tree);
    tree.count = small(1, std::clamp(tree.capacity, 1, 8));
    // What a sane count may read; the others are refused.
    const auto nodes = static_cast<size_t>(std::clamp(tree.count, 0, 128));
    std::vector<int32_t> token(nodes), parent(nodes);
    for (size_t i = 0; i < nodes; ++i) {
        token[i] = small(0, 3);
        parent[i] = i == 0 ? (chance(kSeldom) ? 0 : -1) : small(0, static_cast<int32_t>(i) - 1);
    }
    tree.token = maybe(token.data());
    tree.parent = maybe(parent.data());
    const int32_t vocabulary =
        chance(kSeldom) ? (chance(2) ? -1 : 1 << 30) : input_.ConsumeIntegralInRange(1, 5);
    const size_t columns = vocabulary > 0 && vocabulary < 100 ? static_cast<size_t>(vocabulary) : 0;
    std::vector<float> logits(nodes * columns);
    for (float& each : logits) each = number(1);
    kdtree_sampling sampling = {.temperature = number(0),
                                .top_k = small(0, 4),
                                .top_p = number(1),
                                .min_p = number(0),
                                .repetition_penalty = chance(kSeldom) ? 1.5f : 0.0f};
    set_size(sampling);
    std::vector<double> draws(input_.ConsumeIntegralInRange<size_t>(0, 9));
    for (double& draw : draws) draw = chance(kSeldom) ? 1.0 : input_.ConsumeProbability<double>();
    kdtree_accepted accepted = {.capacity = small(1, 9)};
    set_size(accepted);
    const auto room = static_cast<size_t>(std::clamp(accepted.capacity, 0, 128));
    std::vector<int32_t> path(room), emitted(room);
    accepted.path = maybe(path.data());
    accepted.emitted = maybe(emitted.data());
    const int64_t stride = chance(kSeldom) ? vocabulary - 1 : vocabulary;
    const auto draw_count = chance(kSeldom) ? int32_t{-1} : static_cast<int32_t>(draws.size());
    if (!ok(kdtree_accept_tree(maybe(&tree), maybe(logits.data()), vocabulary, stride,
                               maybe(&sampling), maybe(draws.data()), draw_count,
                               maybe(&accepted)))) {
        return;
    }
    KD_CHECK(accepted.count >= 1 && accepted.count <= accepted.capacity, "{} accepted",
             accepted.count);
    KD_CHECK(path[0] == 0, "the path begins at {}", path[0]);
    for (size_t i = 0; i < static_cast<size_t>(accepted.count); ++i) {
        KD_CHECK(emitted[i] >= 0 && emitted[i] < vocabulary, "emitted {}", emitted[i]);
        if (i == 0) continue;
        const auto node = static_cast<size_t>(path[i]);
        KD_CHECK(node < nodes && parent[node] == path[i - 1], "node {} on the path", node);
        KD_CHECK(token[node] == emitted[i - 1], "node {} was not drawn", node);
    }
}

/// Drops every request; then nothing runs, nothing is kept and the books balance.
void Caller::settle() {
    kdtree_engine* engine = shared_engine();
    for (const kdtree_request_id id : known_) ok(kdtree_drop(engine, id));
    int32_t ran = 1;
    while (ran != 0) KD_CHECK(kdtree_step(engine, &ran) == KDTREE_OK, "{}", kdtree_last_error());
    kdtree_engine_stats stats = {.struct_bytes = sizeof stats};
    KD_CHECK(kdtree_stats(engine, &stats) == KDTREE_OK, "{}", kdtree_last_error());
    KD_CHECK(stats.running == 0 && stats.unfinished == 0 && stats.unpolled == 0,
             "{} running, {} unfinished, {} unpolled", stats.running, stats.unfinished,
             stats.unpolled);
    KD_CHECK(stats.slots_used == 0 && stats.slots_free + stats.slots_cached == stats.slots_total,
             "{} slots in use", stats.slots_used);
    KD_CHECK(stats.submitted == stats.finished + stats.aborted + stats.failed + stats.dropped,
             "{} submitted, {} + {} + {} + {} ended", stats.submitted, stats.finished,
             stats.aborted, stats.failed, stats.dropped);
    KD_CHECK(masks_alive == 0, "{} logit masks were not released", masks_alive);
}

void Caller::run() {
    for (int call = 0; call < kMostCalls && input_.remaining_bytes() > 0; ++call) {
        switch (input_.ConsumeIntegralInRange(0, 15)) {
            case 0:
            case 1:
            case 2:
                submit();
                break;
            case 3:
            case 4:
            case 5:
                ok(kdtree_step(engine(), nullptr));
                break;
            case 6:
                // -1 would wait for ever where nobody steps.
                poll(known_or_any(), chance(kSeldom) ? -2 : 0);
                break;
            case 7:
                ok(kdtree_cancel(engine(), known_or_any()));
                break;
            case 8: {
                const kdtree_request_id id = known_or_any();
                if (ok(kdtree_drop(engine(), id))) known_.erase(id);
                break;
            }
            case 9:
                wait();
                break;
            case 10:
                look();
                break;
            case 11:
                convert();
                break;
            case 12:
                build_tree();
                break;
            case 13:
                accept_tree();
                break;
            case 14:
                ok(kdtree_start(engine()));
                ok(kdtree_stop(shared_engine()));
                break;
            default:
                if (chance(8)) create();
        }
    }
    settle();
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    kd::Caller(data, bytes).run();
    return 0;
}
