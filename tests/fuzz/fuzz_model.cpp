// Arbitrary bytes as a model file: its tensors are held against its shape, then loaded and run: one
// chunk through one forward pass. As in fuzz_gguf.cpp, a file may be refused with kd::Error in one
// line, and nothing else may happen.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "base/check.h"
#include "base/error.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "fuzz/memory_file.h"
#include "models/model.h"

namespace kd {
namespace {

constexpr int32_t kRows = 3;

/// Holds the tensors against the shape of the model.
void check_against_shape(const ModelFile& file) {
    std::vector<std::string> faults;
    const ModelConfig config = read_model_config(file);
    check_tensors(file, config, faults);
    for (const std::string& fault : faults) {
        KD_CHECK(!fault.empty() && fault.find('\n') == fault.npos, "fault: {}", fault);
    }
}

/// Loads the weights and runs one causal chunk on an empty cache.
void run_model(const ModelFile& model_file) {
    static ThreadPool threads(1);
    Stream stream{.threads = &threads};
    const auto model =
        load_model(model_file, {.rows = kRows, .logit_rows = kRows, .keys = kRows}, stream);
    const ModelConfig& config = model->config;
    KvView kv{.type = DType::f16,
              .layers = config.layers,
              .slots = kRows,
              .kv_heads = config.kv_heads,
              .head_dim = config.head_dim};
    const LazyArray<std::byte> memory(kv.bytes());
    kv.data = memory.data();
    const std::vector<int32_t> tokens(kRows, config.vocabulary - 1);
    const std::vector<int32_t> rows = {0, 1, 2};  // positions, slots and rows with logits
    const AttnSegment segment{.first_row = 0, .rows = kRows, .context = {}, .slots = rows};
    std::vector<float> logits(static_cast<size_t>(kRows) * static_cast<size_t>(config.vocabulary));
    model->forward({.tokens = tokens,
                    .positions = rows,
                    .slots = rows,
                    .segments = {&segment, 1},
                    .logit_rows = rows,
                    .kv = kv,
                    .logits = {.data = logits.data(),
                               .rows = kRows,
                               .columns = config.vocabulary,
                               .stride = config.vocabulary}},
                   stream);
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    static MemoryFile file;
    file.set({data, bytes});
    try {
        const ModelFile model_file(file.path());
        check_against_shape(model_file);
        run_model(model_file);
    } catch (const Error& error) {
        const std::string_view message = error.what();
        KD_CHECK(!message.empty() && message.find('\n') == message.npos, "message: {}", message);
    }
    return 0;
}
