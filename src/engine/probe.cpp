#include "engine/probe.h"

#include <map>

#include "backends/cpu/threads.h"
#include "base/error.h"
#include "formats/model_tokenizer.h"
#include "kernels/kv_view.h"
#include "kernels/simd/memory_read.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace kd {

namespace {

void add_foreign_types(const ModelFile& file, std::vector<std::string>& faults) {
    struct Found {
        int64_t count = 0;
        std::string_view first;
    };
    std::map<std::string_view, Found> by_type;
    for (const ForeignTensor& tensor : file.foreign_tensors()) {
        Found& found = by_type[tensor.type];
        if (found.count++ == 0) found.first = tensor.name;
    }
    for (const auto& [type, found] : by_type) {
        faults.push_back(fmt::format("{}: tensor type {} is not supported: {} tensor{}, '{}' first",
                                     file.path(), type, found.count, found.count == 1 ? "" : "s",
                                     printable(found.first)));
    }
}

/// All tensors but the embedding, of which a token reads one row; where it is the head as well, all
/// of it. Of routed experts those that a token uses.
int64_t decode_bytes(const ModelFile& file, const MoeShape& moe, bool has_head) {
    const std::string embedding = tensor_name(file, "token_embd.weight");
    int64_t bytes = 0;
    int64_t expert_bytes = 0;
    for (const FileTensor& tensor : file.tensors()) {
        const bool routed = tensor.name.find("_exps.") != tensor.name.npos ||
                            tensor.name.find(".mlp.experts.") != tensor.name.npos;
        if (routed) {
            expert_bytes += tensor.bytes;
        } else if (tensor.name != embedding || !has_head) {
            bytes += tensor.bytes;
        }
    }
    return moe.experts == 0 ? bytes : bytes + expert_bytes / moe.experts * moe.used;
}

}  // namespace

ModelProbe probe_model(const ModelFile& file) {
    ModelProbe probe;
    probe.config = probe_model_config(file, probe.faults);
    const ModelConfig& c = probe.config;
    probe.has_shape = c.rope_dim > 0 && c.vocabulary > 0;  // read last, after all sizes
    add_foreign_types(file, probe.faults);
    if (probe.has_shape) {
        check_tensors(file, c, probe.faults);
        probe.has_own_head = file.find_tensor(tensor_name(file, "output.weight")) != nullptr;
        probe.decode_bytes = decode_bytes(file, c.moe, probe.has_own_head);
        probe.kv_bytes = cache_view(c, DType::f16, 1).bytes();
    }
    try {
        read_tokenizer(file, probe.has_shape ? std::optional(c.vocabulary) : std::nullopt);
    } catch (const Error& error) {
        probe.faults.emplace_back(error.what());
    }
    return probe;
}

std::string kernel_target() {
    return dispatch_target();
}

double cgroup_cpus() {
    return cgroup_cpu_quota();
}

int usable_threads() {
    return default_threads();
}

std::vector<double> measure_memory_read(int threads, int64_t bytes, int runs) {
    ThreadPool pool(threads);
    return read_gb_s(pool, bytes, runs);
}

}  // namespace kd
