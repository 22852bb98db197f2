#include "app/inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "engine/probe.h"
#include "formats/chat_template.h"
#include "formats/gguf.h"
#include "formats/hf_folder.h"
#include "formats/model_tokenizer.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostElements = 8;  // of an array

const char* element_kind(uint32_t type) {
    switch (static_cast<GgufValueType>(type)) {
        case GgufValueType::string:
            return "strings";
        case GgufValueType::boolean:
            return "bools";
        case GgufValueType::f32:
        case GgufValueType::f64:
            return "floats";
        default:
            return "integers";
    }
}

template <class T>
void append_numbers(const GgufArray& array, Json& out) {
    for (uint64_t i = 0; i < std::min(array.count, kMostElements); ++i) {
        T value;
        std::memcpy(&value, array.data + i * sizeof value, sizeof value);
        out.push_back(value);
    }
}

Json first_elements(const GgufArray& array) {
    Json out = Json::array();
    switch (static_cast<GgufValueType>(array.element_type)) {
        case GgufValueType::u8:
            append_numbers<uint8_t>(array, out);
            break;
        case GgufValueType::i8:
            append_numbers<int8_t>(array, out);
            break;
        case GgufValueType::u16:
            append_numbers<uint16_t>(array, out);
            break;
        case GgufValueType::i16:
            append_numbers<int16_t>(array, out);
            break;
        case GgufValueType::u32:
            append_numbers<uint32_t>(array, out);
            break;
        case GgufValueType::i32:
            append_numbers<int32_t>(array, out);
            break;
        case GgufValueType::u64:
            append_numbers<uint64_t>(array, out);
            break;
        case GgufValueType::i64:
            append_numbers<int64_t>(array, out);
            break;
        case GgufValueType::f32:
            append_numbers<float>(array, out);
            break;
        case GgufValueType::f64:
            append_numbers<double>(array, out);
            break;
        case GgufValueType::boolean:
            append_numbers<bool>(array, out);
            break;
        case GgufValueType::string:
            for (uint64_t i = 0; i < std::min(array.count, kMostElements); ++i) {
                out.push_back(array.strings[i]);
            }
            break;
        case GgufValueType::array:
            break;  // the parser refuses arrays of arrays
    }
    return out;
}

/// A metadata value; of an array its kind, its length and the first elements.
Json json_of(const GgufValue& value) {
    if (const auto* array = std::get_if<GgufArray>(&value)) {
        return {{"array_of", element_kind(array->element_type)},
                {"count", array->count},
                {"first", first_elements(*array)}};
    }
    return std::visit(
        [](const auto& plain) -> Json {
            if constexpr (std::is_same_v<std::decay_t<decltype(plain)>, GgufArray>) {
                return nullptr;
            } else {
                return plain;
            }
        },
        value);
}

Json shape_of(const ModelConfig& c, bool own_head) {
    Json shape = {{"layers", c.layers},
                  {"hidden", c.hidden},
                  {"intermediate", c.intermediate},
                  {"heads", c.heads},
                  {"kv_heads", c.kv_heads},
                  {"head_dim", c.head_dim},
                  {"vocabulary", c.vocabulary},
                  {"context_length", c.context_length},
                  {"rope_dim", c.rope_dim},
                  {"rope_base", c.rope_base},
                  {"rope_scaling", name_of(c.rope_scaling.type)},
                  {"norm_epsilon", c.norm_epsilon},
                  {"head", own_head ? "own" : "shared"}};
    if (c.mla.kv_lora > 0) {
        shape["q_lora"] = c.mla.q_lora;
        shape["kv_lora"] = c.mla.kv_lora;
        shape["value_dim"] = c.mla.value;
    }
    if (c.moe.experts > 0) {
        shape["experts"] = c.moe.experts;
        shape["experts_used"] = c.moe.used;
        shape["shared_experts"] = c.moe.shared;
        shape["expert_ffn"] = c.moe.intermediate;
        shape["dense_layers"] = c.moe.first_dense;
    }
    return shape;
}

/// Whatever the architecture: the keys that most of them have, as they stand there.
Json stated_shape(const GgufFile& gguf) {
    const GgufValue* value = gguf.find("general.architecture");
    const auto* name = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
    Json shape = Json::object();
    for (const auto& [label, key] : std::initializer_list<std::pair<const char*, const char*>>{
             {"layers", "block_count"},
             {"hidden", "embedding_length"},
             {"intermediate", "feed_forward_length"},
             {"heads", "attention.head_count"},
             {"kv_heads", "attention.head_count_kv"},
             {"head_dim", "attention.key_length"},
             {"vocabulary", "vocab_size"},
             {"context_length", "context_length"},
             {"rope_dim", "rope.dimension_count"},
             {"rope_base", "rope.freq_base"},
             {"rope_scaling", "rope.scaling.type"},
             {"experts", "expert_count"},
             {"experts_used", "expert_used_count"}}) {
        if (name == nullptr) break;
        const GgufValue* found = gguf.find(fmt::format("{}.{}", *name, key));
        if (found != nullptr) shape[label] = json_of(*found);
    }
    return shape;
}

/// The same of a folder.
Json stated_shape(const HfFolder& folder) {
    const Json& config = folder.config().json();
    Json shape = Json::object();
    for (const auto& [label, key] : std::initializer_list<std::pair<const char*, const char*>>{
             {"layers", "num_hidden_layers"},
             {"hidden", "hidden_size"},
             {"intermediate", "intermediate_size"},
             {"heads", "num_attention_heads"},
             {"kv_heads", "num_key_value_heads"},
             {"head_dim", "head_dim"},
             {"vocabulary", "vocab_size"},
             {"context_length", "max_position_embeddings"},
             {"rope_base", "rope_theta"},
             {"experts", "n_routed_experts"},
             {"experts_used", "num_experts_per_tok"}}) {
        const auto found = config.find(key);
        if (found != config.end() && found->is_primitive()) shape[label] = *found;
    }
    return shape;
}

Json shape_of(const ModelFile& file, const ModelProbe& probe) {
    if (probe.has_shape) return shape_of(probe.config, probe.has_own_head);
    return file.gguf() != nullptr ? stated_shape(*file.gguf()) : stated_shape(*file.folder());
}

int64_t elements_of(const TensorRow& row) {
    int64_t elements = 1;
    for (const int64_t dim : *row.dims) elements *= dim;
    return elements;
}

/// By type, the one with most bytes first.
Json weights_of(const std::vector<TensorRow>& rows) {
    struct Sum {
        int64_t tensors = 0;
        int64_t parameters = 0;
        int64_t bytes = 0;
    };
    std::map<std::string, Sum> by_type;
    for (const TensorRow& row : rows) {
        Sum& sum = by_type[row.type];
        ++sum.tensors;
        // Only the bytes of known types have to fit into the file.
        if (__builtin_add_overflow(sum.parameters, elements_of(row), &sum.parameters)) {
            sum.parameters = INT64_MAX;
        }
        sum.bytes += row.bytes.value_or(0);
    }
    std::vector<std::pair<std::string, Sum>> sorted(by_type.begin(), by_type.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
    Json out = Json::array();
    for (const auto& [type, sum] : sorted) {
        out.push_back({{"type", type},
                       {"tensors", sum.tensors},
                       {"parameters", sum.parameters},
                       {"bytes", sum.bytes}});
    }
    return out;
}

Json token_json(const Tokenizer& tokenizer, int32_t id) {
    if (id < 0) return nullptr;
    return {{"id", id}, {"text", tokenizer.bytes_of_token(id)}};
}

/// A metadata value of a GGUF file; null if it is not there, or for a folder.
Json metadata_or_null(const ModelFile& file, const std::string& key) {
    const GgufValue* value = file.gguf() == nullptr ? nullptr : file.gguf()->find(key);
    return value == nullptr ? Json() : json_of(*value);
}

Json tokenizer_of(const ModelFile& file) {
    Json out = Json::object();
    for (const char* key : {"model", "pre"}) {
        out[key] = metadata_or_null(file, fmt::format("tokenizer.ggml.{}", key));
    }
    for (const char* name : {"tiktoken.model", "tokenizer.json"}) {
        std::error_code error;
        const bool there =
            file.folder() != nullptr && std::filesystem::exists(file.path() + "/" + name, error);
        if (there) out["model"] = name;  // the second wins
    }
    try {
        const Tokenizer tokenizer = read_tokenizer(file);
        Json control = Json::array();
        for (int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
            if (tokenizer.is_control(id)) control.push_back(token_json(tokenizer, id));
        }
        Json stops = Json::array();
        for (const int32_t id : tokenizer.stop_ids()) stops.push_back(token_json(tokenizer, id));
        out["vocabulary"] = tokenizer.vocabulary();
        out["bos"] = token_json(tokenizer, tokenizer.bos());
        out["eos"] = token_json(tokenizer, tokenizer.eos());
        out["stop"] = stops;
        out["control"] = control;
    } catch (const Error& error) {
        out["error"] = error.what();
    }
    return out;
}

Json template_of(const ModelFile& file) {
    const std::string source = template_source(file);
    if (source.empty()) return nullptr;
    Json out = {{"bytes", source.size()}, {"error", nullptr}};
    try {
        const ChatTemplate parsed(source);
        parsed.render({{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                       {"add_generation_prompt", true},
                       {"bos_token", ""},
                       {"eos_token", ""}});
    } catch (const Error& error) {
        out["error"] = error.what();
    }
    return out;
}

/// All metadata of a GGUF file, or the config.json of a folder.
Json metadata_of(const ModelFile& file) {
    if (file.folder() != nullptr) return file.folder()->config().json();
    // Past the search for an equal key: the file's keys are distinct, and may be a million.
    Json::object_t metadata;
    for (const auto& [key, value] : file.gguf()->metadata()) {
        metadata.Container::emplace_back(std::string(key), json_of(value));
    }
    return metadata;
}

/// How a folder's weights are quantised; null: not, or a GGUF file, whose types say it.
Json quantisation_of(const ModelFile& file) {
    if (file.folder() == nullptr) return nullptr;
    HfQuantisationScheme scheme;
    try {
        scheme = read_hf_quantisation(file.folder()->config());
    } catch (const Error&) {
        return "not supported";  // the faults say why
    }
    const auto size = [](int32_t of) { return of == 0 ? "all" : fmt::format("{}", of); };
    const std::string block =
        fmt::format(", a scale for {} x {}", size(scheme.block_rows), size(scheme.block_columns));
    switch (scheme.kind) {
        case HfQuantisation::none:
            return nullptr;
        case HfQuantisation::fp8_blocks:
            return "fp8" + block;
        case HfQuantisation::float_quantized:
            return "float-quantized" + block;
        case HfQuantisation::pack_quantized:
            return "pack-quantized, 4 bits" + block;
    }
    return nullptr;
}

Json architecture_of(const ModelFile& file) {
    if (file.gguf() != nullptr) return metadata_or_null(file, "general.architecture");
    return class_of(file.folder()->config().json());
}

Json name_of(const ModelFile& file) {
    if (file.gguf() != nullptr) return metadata_or_null(file, "general.name");
    return file.folder()->name();
}

}  // namespace

std::vector<TensorRow> tensor_rows(const ModelFile& file) {
    std::vector<TensorRow> rows;
    for (const FileTensor& t : file.tensors()) {
        rows.push_back({.name = t.name,
                        .type = std::string(name_of(t.type)),
                        .dims = &t.dims,
                        .bytes = t.bytes,
                        .part = t.part,
                        .offset = t.file_offset});
    }
    for (const ForeignTensor& t : file.foreign_tensors()) {
        rows.push_back({.name = t.name,
                        .type = t.type,
                        .dims = &t.dims,
                        .bytes = t.bytes,
                        .part = t.part,
                        .offset = t.file_offset});
    }
    std::stable_sort(rows.begin(), rows.end(), [](const TensorRow& a, const TensorRow& b) {
        return std::pair(a.part, a.offset) < std::pair(b.part, b.offset);
    });
    return rows;
}

std::string template_source(const ModelFile& file) {
    if (file.gguf() != nullptr) {
        const GgufValue* value = file.gguf()->find("tokenizer.chat_template");
        const auto* text = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
        return text == nullptr ? std::string() : std::string(*text);
    }
    try {
        return read_tokenizer(file).chat_template();
    } catch (const Error&) {
        return {};  // the tokenizer's section says why
    }
}

nlohmann::ordered_json tensors_json(const std::vector<TensorRow>& rows) {
    Json out = Json::array();
    for (const TensorRow& row : rows) {
        out.push_back({{"name", row.name},
                       {"type", row.type},
                       {"dims", *row.dims},
                       {"bytes", row.bytes ? Json(*row.bytes) : Json()},
                       {"offset", row.offset}});
    }
    return out;
}

nlohmann::ordered_json weights_report(const std::vector<TensorRow>& rows) {
    const Json weights = weights_of(rows);
    int64_t parameters = 0;
    for (const Json& each : weights) {
        const auto more = each["parameters"].get<int64_t>();
        if (__builtin_add_overflow(parameters, more, &parameters)) parameters = INT64_MAX;
    }
    return {{"parameters", parameters}, {"tensor_count", rows.size()}, {"weights", weights}};
}

nlohmann::ordered_json class_of(const nlohmann::ordered_json& config) {
    const auto classes = config.find("architectures");
    if (classes == config.end() || !classes->is_array() || classes->empty()) return nullptr;
    return classes->front().is_string() ? classes->front() : Json();
}

std::string without_path(const std::string& message, const std::string& path) {
    for (const char* const between : {": ", "/"}) {
        if (message.starts_with(path + between)) {
            return message.substr(path.size() + std::string_view(between).size());
        }
    }
    return message;
}

nlohmann::ordered_json inspect_report(const ModelFile& file, const std::vector<TensorRow>& rows) {
    const ModelProbe probe = probe_model(file);
    const std::string& path = file.path();
    Json faults = Json::array();
    for (const std::string& fault : probe.faults) {
        faults.push_back(without_path(fault, path));
    }
    Json report = {{"schema", 1},
                   {"path", path},
                   {"bytes", file.bytes()},
                   {"format", file.format()},
                   {"architecture", architecture_of(file)},
                   {"name", name_of(file)},
                   {"supported", faults.empty()},
                   {"faults", faults},
                   {"shape", shape_of(file, probe)},
                   {"quantisation", quantisation_of(file)}};
    report.update(weights_report(rows));
    report.update(Json{{"decode_bytes_per_token", probe.decode_bytes},
                       {"kv_bytes_per_token", probe.kv_bytes},
                       {"tokenizer", tokenizer_of(file)},
                       {"chat_template", template_of(file)},
                       {"metadata", metadata_of(file)}});
    return report;
}

}  // namespace kd
