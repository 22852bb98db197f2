#include "models/dflash_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>

#include "backends/cpu/lazy_array.h"
#include "base/error.h"
#include "kernels/embed/embed.h"
#include "models/layer_ops.h"

namespace kd {

namespace {

/// Takes tensors one by one; what nobody took is an error.
class Reader {
  public:
    explicit Reader(const DraftTensors& file) : file_(&file) {
        for (const DraftTensor& tensor : file.tensors()) {
            const auto [at, is_new] = tensors_.emplace(plain_name(tensor.name), Entry{&tensor});
            if (is_new) continue;
            KD_THROW(corrupt, "{}: tensors '{}' and '{}' are the same", file.path(),
                     printable(at->second.tensor->name), printable(tensor.name));
        }
    }

    bool has(std::string_view name) const { return tensors_.contains(name); }

    WeightView matrix(std::string_view name, int64_t rows, int64_t columns) {
        const DraftTensor& tensor = take(name, {columns, rows});
        return {.type = *tensor.type, .data = tensor.data, .rows = rows, .columns = columns};
    }

    std::vector<float> vector(std::string_view name, int64_t length) {
        const DraftTensor& tensor = take(name, {length});
        std::vector<float> values(static_cast<size_t>(length));
        dequantise(*tensor.type, tensor.data, length, values.data());
        return values;
    }

    /// Of a type that is not computed with.
    const DraftTensor& raw(std::string_view name, std::string_view type_name, int64_t length) {
        const DraftTensor& tensor = at(name);
        if (tensor.type_name != type_name || tensor.dims != std::vector<int64_t>{length}) {
            refuse_shape(tensor, type_name, {length});
        }
        return tensor;
    }

    /// It may be there, and is not used.
    void skip(std::string_view name) {
        const auto found = tensors_.find(name);
        if (found != tensors_.end()) found->second.taken = true;
    }

    void expect_all_taken() const {
        for (const auto& [name, entry] : tensors_) {
            if (entry.taken) continue;
            KD_THROW(unsupported,
                     "{}: tensor '{}' is not part of a DFlash drafter as its config "
                     "describes it",
                     file_->path(), printable(entry.tensor->name));
        }
    }

  private:
    struct Entry {
        const DraftTensor* tensor = nullptr;
        bool taken = false;
    };

    /// Some publishers put "model." before all names, early DSpark checkpoints "logit_head." before
    /// those of its heads.
    static std::string_view plain_name(std::string_view name) {
        for (const std::string_view prefix : {"model.", "logit_head."}) {
            if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
        }
        return name;
    }

    const DraftTensor& at(std::string_view name) {
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) {
            KD_THROW(corrupt, "{}: tensor {} is missing", file_->path(), name);
        }
        found->second.taken = true;
        return *found->second.tensor;
    }

    const DraftTensor& take(std::string_view name, const std::vector<int64_t>& dims) {
        const DraftTensor& tensor = at(name);
        if (!tensor.type || tensor.dims != dims) refuse_shape(tensor, "float", dims);
        check_finite({.name = tensor.name,
                      .type = *tensor.type,
                      .dims = tensor.dims,
                      .data = tensor.data,
                      .bytes = tensor.bytes},
                     file_->path());
        return tensor;
    }

    [[noreturn]] void refuse_shape(const DraftTensor& tensor, std::string_view type,
                                   std::vector<int64_t> dims) const {
        std::vector<int64_t> shape(tensor.dims.rbegin(), tensor.dims.rend());
        std::ranges::reverse(dims);
        KD_THROW(corrupt, "{}: tensor '{}' is {} [{}], expected {} [{}]", file_->path(),
                 printable(tensor.name), tensor.type_name, fmt::join(shape, ", "), type,
                 fmt::join(dims, ", "));
    }

    const DraftTensors* file_;
    std::map<std::string_view, Entry> tensors_;  // by plain name
};

/// Parts of one linear layer are all quantised or none of them.
LinearWeights linear_weights(std::initializer_list<WeightView> parts, const std::string& path,
                             std::string_view name, Stream& stream) {
    for (const WeightView& part : parts) {
        if (is_quantised(part.type) == is_quantised(parts.begin()->type)) continue;
        KD_THROW(unsupported, "{}: {}: {} and {} weights in one linear layer", path, name,
                 name_of(parts.begin()->type), name_of(part.type));
    }
    return LinearWeights(std::span(parts.begin(), parts.size()), stream);
}

std::unique_ptr<LinearWeights> linear_of(const WeightView& view, Stream& stream) {
    return std::make_unique<LinearWeights>(std::span(&view, 1), stream);
}

DflashLayer read_layer(Reader& reader, const DflashConfig& c, const std::string& path, size_t index,
                       Stream& stream) {
    const std::string prefix = fmt::format("layers.{}.", index);
    const auto name = [&](std::string_view part) { return prefix + std::string(part); };
    const int64_t q_width = int64_t{c.heads} * c.head_dim;
    const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
    const auto matrix = [&](std::string_view part, int64_t rows, int64_t columns) {
        return reader.matrix(name(part) + ".weight", rows, columns);
    };
    const auto linear = [&](std::initializer_list<WeightView> parts, std::string_view part) {
        return linear_weights(parts, path, name(part), stream);
    };
    DflashLayer layer = {
        .input_norm = reader.vector(name("input_layernorm.weight"), c.hidden),
        .attention_norm = reader.vector(name("post_attention_layernorm.weight"), c.hidden),
        .q_norm = reader.vector(name("self_attn.q_norm.weight"), c.head_dim),
        .k_norm = reader.vector(name("self_attn.k_norm.weight"), c.head_dim),
        .q = linear({matrix("self_attn.q_proj", q_width, c.hidden)}, "self_attn.q_proj"),
        .kv = linear({matrix("self_attn.k_proj", kv_width, c.hidden),
                      matrix("self_attn.v_proj", kv_width, c.hidden)},
                     "self_attn.k_proj"),
        .output = linear({matrix("self_attn.o_proj", c.hidden, q_width)}, "self_attn.o_proj"),
        .gate_up = linear({matrix("mlp.gate_proj", c.intermediate, c.hidden),
                           matrix("mlp.up_proj", c.intermediate, c.hidden)},
                          "mlp.gate_proj"),
        .down = linear({matrix("mlp.down_proj", c.hidden, c.intermediate)}, "mlp.down_proj")};
    if (!c.attention_bias) return layer;
    layer.q_bias = reader.vector(name("self_attn.q_proj.bias"), q_width);
    layer.kv_bias = reader.vector(name("self_attn.k_proj.bias"), kv_width);
    const std::vector<float> v = reader.vector(name("self_attn.v_proj.bias"), kv_width);
    layer.kv_bias.insert(layer.kv_bias.end(), v.begin(), v.end());
    layer.output_bias = reader.vector(name("self_attn.o_proj.bias"), c.hidden);
    return layer;
}

/// d2t holds target id - draft id.
std::vector<int32_t> read_offsets(Reader& reader, const DflashConfig& c, const std::string& path) {
    const DraftTensor& offsets = reader.raw("d2t", "I64", c.draft_vocabulary);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < c.draft_vocabulary; ++i) {
        int64_t offset = 0;
        std::memcpy(&offset, offsets.data + int64_t{i} * 8, sizeof offset);
        // Ascending, so that no token stands there twice.
        const int64_t least = ids.empty() ? 0 : ids.back() + 1;
        if (offset < least - i || offset >= c.vocabulary - i) {
            KD_THROW(corrupt, "{}: d2t[{}] is {}: token {} is outside {}..{}", path, i, offset,
                     static_cast<int64_t>(static_cast<uint64_t>(offset) + static_cast<uint64_t>(i)),
                     least, c.vocabulary - 1);
        }
        ids.push_back(static_cast<int32_t>(offset + i));
    }
    return ids;
}

/// Target ids by d2t. t2d, where it is there, marks those that are drafted. Of a whole vocabulary
/// both may be absent, and must not rearrange it.
std::vector<int32_t> read_target_ids(Reader& reader, const DflashConfig& c,
                                     const std::string& path) {
    const bool whole = c.draft_vocabulary == c.vocabulary;
    std::vector<int32_t> ids(static_cast<size_t>(c.draft_vocabulary));
    if (whole && !reader.has("d2t")) {
        std::iota(ids.begin(), ids.end(), 0);
    } else {
        ids = read_offsets(reader, c, path);
    }
    if (reader.has("t2d")) {
        const DraftTensor& marks = reader.raw("t2d", "BOOL", c.vocabulary);
        auto next = ids.begin();
        for (int32_t token = 0; token < c.vocabulary; ++token) {
            const bool drafted = next != ids.end() && *next == token;
            if (drafted) ++next;
            if ((marks.data[token] != std::byte{0}) != drafted) {
                KD_THROW(corrupt, "{}: t2d[{}] contradicts {}", path, token,
                         whole ? "the whole vocabulary" : "d2t");
            }
        }
    }
    return whole ? std::vector<int32_t>() : ids;
}

/// The drafter's own head, its vocabulary's rows of the target's, or the target's as it is.
void read_output(Reader& reader, const DflashConfig& c, const SharedWeights& shared,
                 DflashWeights& weights, Stream& stream) {
    if (reader.has("lm_head.weight")) {
        weights.output_rows = reader.matrix("lm_head.weight", c.draft_vocabulary, c.hidden);
    } else if (weights.target_ids.empty()) {
        weights.output = shared.head;
        weights.output_rows = shared.head->parts()[0];
        return;
    } else {
        const WeightView all = shared.head->parts()[0];
        if (all.scales.data != nullptr) {
            KD_THROW(unsupported, "{}: draft_vocab_size {}: rows of a head of {} cannot be chosen",
                     c.path, c.draft_vocabulary, name_of(all.type));
        }
        std::vector<std::byte>& rows =
            weights.storage.emplace_back(static_cast<size_t>(c.draft_vocabulary * all.row_bytes()));
        std::byte* to = rows.data();
        for (const int32_t id : weights.target_ids) {
            to = std::copy_n(all.row(id), all.row_bytes(), to);
        }
        weights.output_rows = {.type = all.type,
                               .data = rows.data(),
                               .rows = c.draft_vocabulary,
                               .columns = all.columns};
    }
    weights.own_head = linear_of(weights.output_rows, stream);
    weights.output = weights.own_head.get();
}

/// [rows, columns] floats of any type as [columns, rows].
std::vector<float> transposed(const WeightView& view) {
    std::vector<float> row(static_cast<size_t>(view.columns));
    std::vector<float> out(static_cast<size_t>(view.rows * view.columns));
    for (int64_t r = 0; r < view.rows; ++r) {
        dequantise_row(view, r, row.data());
        for (int64_t c = 0; c < view.columns; ++c) {
            out[static_cast<size_t>(c * view.rows + r)] = row[static_cast<size_t>(c)];
        }
    }
    return out;
}

template <class T>
std::byte* put(T value, std::byte* to) {
    std::memcpy(to, &value, sizeof value);
    return to + sizeof value;
}

/// matrix table[id] of every id: f16 for the fast kernels, as the cache is.
WeightView projected(const WeightView& table, std::span<const int32_t> ids,
                     const WeightView& matrix, std::vector<std::vector<std::byte>>& storage,
                     const Stream& engine) {
    // Without the engine's arena: the packed matrix is wanted here alone.
    Stream stream = {.threads = engine.threads, .kernels = engine.kernels};
    constexpr size_t kRows = 256;
    const bool rounds = stream.kernels == Kernels::fast;
    WeightView result = {
        .type = rounds ? DType::f16 : DType::f32, .rows = std::ssize(ids), .columns = matrix.rows};
    std::byte* to =
        storage.emplace_back(static_cast<size_t>(result.rows * result.row_bytes())).data();
    result.data = to;
    const LinearWeights weights(std::span(&matrix, 1), stream);
    std::vector<float> x(kRows * static_cast<size_t>(matrix.columns));
    std::vector<float> y(kRows * static_cast<size_t>(matrix.rows));
    const LazyArray<std::byte> quantised(
        static_cast<int64_t>(QuantRows::bytes(kRows, matrix.columns)));
    for (size_t begin = 0; begin < ids.size(); begin += kRows) {
        const auto part = ids.subspan(begin, std::min(kRows, ids.size() - begin));
        embed({.table = table, .tokens = part, .out = x.data()}, stream);
        linear_of_floats(
            {.weights = &weights, .x = x.data(), .rows = std::ssize(part), .y = y.data()},
            quantised.span(), stream);
        for (const float value :
             std::span(y).first(part.size() * static_cast<size_t>(matrix.rows))) {
            to = rounds ? put(f32_to_f16(value), to) : put(value, to);
        }
    }
    return result;
}

void read_markov_head(Reader& reader, const DflashConfig& c, DflashHead& head, Stream& stream) {
    head.rank = c.head_rank;
    head.previous = reader.matrix("markov_head.markov_w1.weight", c.vocabulary, head.rank);
    head.next = reader.matrix("markov_head.markov_w2.weight", c.draft_vocabulary, head.rank);
    head.bias = linear_of(head.next, stream);
    if (head.type != DraftHeadType::gated_markov) return;
    head.gate = linear_of(
        reader.matrix("markov_head.gate_proj.weight", head.rank, c.hidden + head.rank), stream);
    head.gate_bias = reader.vector("markov_head.gate_proj.bias", head.rank);
}

void read_residual_head(const DflashConfig& c, DflashWeights& weights, Stream& stream) {
    const DraftTensors& file = *weights.head_file;
    Reader reader(file);
    DflashHead& head = weights.head;
    const DraftTensor* first = file.find("cond_h.weight");
    if (first == nullptr || first->dims.size() != 2 || first->dims[1] > c.hidden) {
        KD_THROW(corrupt, "{}: no matrix cond_h.weight of at most {} rows", file.path(), c.hidden);
    }
    head.rank = first->dims[1];
    head.from_hidden = linear_of(reader.matrix("cond_h.weight", head.rank, c.hidden), stream);
    const WeightView from_previous = reader.matrix("cond_e.weight", head.rank, c.hidden);
    const WeightView to_next = reader.matrix("cond_o.weight", c.hidden, head.rank);
    reader.expect_all_taken();
    // Once for every token of the draft vocabulary: a draft would multiply hundreds of rows, in
    // about the time of all its layers.
    std::vector<int32_t> ids(static_cast<size_t>(c.draft_vocabulary));
    std::iota(ids.begin(), ids.end(), 0);
    const std::span<const int32_t> target_ids =
        weights.target_ids.empty() ? ids : weights.target_ids;
    head.previous =
        projected(weights.embedding, target_ids, from_previous, weights.storage, stream);
    const std::vector<float> floats = transposed(to_next);
    const WeightView from_next = {.type = DType::f32,
                                  .data = reinterpret_cast<const std::byte*>(floats.data()),
                                  .rows = to_next.columns,
                                  .columns = to_next.rows};
    head.next = projected(weights.output_rows, ids, from_next, weights.storage, stream);
}

std::string weights_path(const std::string& folder, const DflashConfig& c) {
    if (!c.weights.empty()) return folder + "/" + c.weights;
    const std::string path = folder + "/model.safetensors", index = path + ".index.json";
    std::error_code error;
    if (!std::filesystem::exists(path, error) && std::filesystem::exists(index, error)) {
        KD_THROW(unsupported, "{}: a drafter in several safetensors files is not supported", index);
    }
    return path;
}

}  // namespace

DflashWeights load_dflash_weights(const std::string& folder, const DflashConfig& c,
                                  const ModelConfig& target, const SharedWeights& shared,
                                  Stream& stream) {
    DflashWeights weights;
    weights.file = std::make_unique<DraftTensors>(weights_path(folder, c));
    const std::string& path = weights.file->path();
    Reader reader(*weights.file);
    const auto features = std::ssize(c.target_layers) * int64_t{c.target_hidden};
    weights.fuse = linear_of(reader.matrix("fc.weight", c.hidden, features), stream);
    weights.feature_norm = reader.vector("hidden_norm.weight", c.hidden);
    weights.output_norm = reader.vector("norm.weight", c.hidden);
    for (size_t i = 0; i < c.layers.size(); ++i) {
        weights.layers.push_back(read_layer(reader, c, path, i, stream));
    }
    const bool own_embedding = reader.has("embed_tokens.weight");
    if (c.hidden != target.hidden && !(own_embedding && reader.has("lm_head.weight"))) {
        KD_THROW(invalid_argument,
                 "{}: hidden_size {}, the target's is {}, and the drafter has no "
                 "embed_tokens.weight and lm_head.weight of its own",
                 c.path, c.hidden, target.hidden);
    }
    weights.embedding = own_embedding ? reader.matrix("embed_tokens.weight", c.vocabulary, c.hidden)
                                      : shared.embedding;
    weights.target_ids = read_target_ids(reader, c, path);
    read_output(reader, c, shared, weights, stream);
    weights.head.type = c.head;
    if (c.head == DraftHeadType::residual) {
        weights.head_file = std::make_unique<DraftTensors>(folder + "/" + c.residual_head);
        read_residual_head(c, weights, stream);
    } else if (c.head != DraftHeadType::none) {
        read_markov_head(reader, c, weights.head, stream);
    }
    if (c.confidence_head) {
        reader.skip("confidence_head.proj.weight");
        reader.skip("confidence_head.proj.bias");
    }
    reader.expect_all_taken();
    if (stream.kernels == Kernels::fast) weights.file->release();
    return weights;
}

}  // namespace kd
