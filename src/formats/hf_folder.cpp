#include "formats/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"

namespace kd {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeights = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kPacked = ".weight_packed";

bool exists(const std::string& path) {
    std::error_code error;
    return fs::exists(path, error);
}

/// Names of what lies in the folder; empty if it cannot be listed.
std::vector<std::string> names_in(const std::string& folder) {
    std::error_code error;
    std::vector<std::string> names;
    // Not a range-for, whose increment throws.
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        names.push_back(at->path().filename().string());
    }
    return names;
}

[[noreturn]] void refuse_without_config(const std::string& folder) {
    const std::vector<std::string> names = names_in(folder);
    if (names.empty()) KD_THROW(not_found, "{}: is an empty folder", folder);
    const auto gguf = std::find_if(names.begin(), names.end(),
                                   [](const std::string& name) { return name.ends_with(".gguf"); });
    if (gguf != names.end()) {
        KD_THROW(not_found, "{}: has no config.json: give its file {} instead", folder,
                 printable(*gguf));
    }
    KD_THROW(not_found, "{}: has no config.json, so it is not a Hugging Face folder", folder);
}

bool is_shard_name(std::string_view name) {
    return is_plain_file_name(name) && name.ends_with(kShardSuffix);
}

int64_t blocks_of(int64_t elements, int32_t block) {
    return block == 0 ? 1 : (elements + block - 1) / block;
}

/// The two integers of X.weight_shape, of any of the types that are written; others if it is not
/// them.
std::vector<int64_t> read_integers(const SafetensorsEntry& entry) {
    std::vector<int64_t> values;
    const int64_t width = element_bytes(entry.type);
    if (entry.bytes > 2 * static_cast<int64_t>(sizeof(int64_t))) return {};
    for (int64_t at = 0; at < entry.bytes; at += width) {
        if (entry.type == SafetensorsType::i64) {
            std::memcpy(&values.emplace_back(), entry.data + at, sizeof(int64_t));
        } else if (entry.type == SafetensorsType::i32) {
            int32_t value;
            std::memcpy(&value, entry.data + at, sizeof value);
            values.push_back(value);
        } else {
            return {};
        }
    }
    return values;
}

}  // namespace

HfFolder::HfFolder(const std::string& path, ForeignTensors foreign) : path_(path) {
    while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
    const std::string config_path = path_ + "/config.json";
    if (!exists(config_path)) refuse_without_config(path_);
    config_ = read_json_file(config_path);
    open_weights();
    join_tensors(foreign);
}

std::string HfFolder::name() const {
    std::error_code error;
    return fs::absolute(path_, error).lexically_normal().filename().string();
}

std::vector<const MappedFile*> HfFolder::files() const {
    std::vector<const MappedFile*> files;
    for (const auto& shard : shards_) files.push_back(&shard->file());
    return files;
}

const FileTensor* HfFolder::find_tensor(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

/// Opens all shards and lists their tensors by name.
void HfFolder::open_weights() {
    const std::string whole = fmt::format("{}/{}", path_, kWeights);
    const std::string index = fmt::format("{}/{}", path_, kIndex);
    if (exists(whole)) {
        shards_.push_back(std::make_unique<SafetensorsFile>(whole));
    } else if (exists(index)) {
        open_shards(index);
    } else if (exists(path_ + "/pytorch_model.bin") ||
               exists(path_ + "/pytorch_model.bin.index.json")) {
        KD_THROW(unsupported, "{}: has its weights in pytorch_model.bin: only safetensors are read",
                 path_);
    } else {
        KD_THROW(not_found, "{}: has neither {} nor {}", path_, kWeights, kIndex);
    }
    for (size_t part = 0; part < shards_.size(); ++part) {
        for (const SafetensorsEntry& entry : shards_[part]->entries()) {
            placed_.push_back({.entry = &entry, .part = static_cast<int32_t>(part)});
        }
    }
    std::sort(placed_.begin(), placed_.end(),
              [](const Placed& a, const Placed& b) { return a.entry->name < b.entry->name; });
}

/// The files that the index names. Afterwards every tensor stands in exactly the shard where the
/// index has it, and nowhere else.
void HfFolder::open_shards(const std::string& index_path) {
    const Json index = read_json_file(index_path, kMaxLargeJsonBytes);
    const JsonNode weight_map = JsonNode(index, index_path).at("weight_map");
    if (!weight_map.json().is_object()) weight_map.refuse("an object");
    std::map<std::string_view, std::map<std::string_view, bool>> tensors;  // by file; found
    for (const auto& [name, value] : weight_map.json().items()) {
        if (!value.is_string() || !is_shard_name(value.get_ref<const std::string&>())) {
            JsonNode(value, fmt::format("{}: weight_map.{}", index_path, printable(name)))
                .refuse("the name of a .safetensors file in the folder");
        }
        tensors[value.get_ref<const std::string&>()].emplace(name, false);
    }
    for (auto& [file, names] : tensors) {
        const std::string path = fmt::format("{}/{}", path_, file);
        if (!exists(path)) {
            KD_THROW(not_found, "{}: shard {} is missing", index_path, printable(file));
        }
        shards_.push_back(std::make_unique<SafetensorsFile>(path));
        for (const SafetensorsEntry& entry : shards_.back()->entries()) {
            const auto found = names.find(entry.name);
            if (found == names.end()) {
                KD_THROW(corrupt, "{}: tensor {} is not where {} has it", path,
                         printable(entry.name), kIndex);
            }
            found->second = true;
        }
        for (const auto& [name, is_there] : names) {
            if (is_there) continue;
            KD_THROW(corrupt, "{}: tensor {} is missing, which {} has there", path, printable(name),
                     kIndex);
        }
    }
    for (const std::string& name : names_in(path_)) {
        if (name.starts_with("model-") && is_shard_name(name) && !tensors.contains(name)) {
            KD_THROW(corrupt, "{}: shard {} lies in the folder, but is not named", index_path,
                     printable(name));
        }
    }
}

HfFolder::Placed* HfFolder::find_placed(const std::string& name) {
    const auto found =
        std::lower_bound(placed_.begin(), placed_.end(), name,
                         [](const Placed& a, const std::string& b) { return a.entry->name < b; });
    return found == placed_.end() || found->entry->name != name ? nullptr : &*found;
}

/// "PATH: tensor NAME", for a message.
std::string HfFolder::where(const Placed& placed) const {
    return fmt::format("{}: tensor {}", shards_[static_cast<size_t>(placed.part)]->file().path(),
                       printable(placed.entry->name));
}

/// Everything but the type.
FileTensor HfFolder::file_tensor(const Placed& placed) const {
    const SafetensorsEntry& entry = *placed.entry;
    const MappedFile& file = shards_[static_cast<size_t>(placed.part)]->file();
    FileTensor tensor = {.name = entry.name,
                         .dims = {entry.shape.rbegin(), entry.shape.rend()},
                         .data = entry.data,
                         .bytes = entry.bytes,
                         .part = placed.part,
                         .file_offset = static_cast<uint64_t>(entry.data - file.data())};
    if (tensor.dims.empty()) tensor.dims = {1};
    return tensor;
}

/// The tensor BASE + SUFFIX that belongs to `weight`; it is used up.
const HfFolder::Placed& HfFolder::take_beside(const Placed& weight, std::string_view base,
                                              std::string_view suffix) {
    Placed* found = find_placed(fmt::format("{}{}", base, suffix));
    if (found == nullptr) {
        KD_THROW(corrupt, "{}: {}{} is missing", where(weight), printable(base), suffix);
    }
    found->used = true;
    return *found;
}

/// weight: its dims.
BlockScales HfFolder::read_scales(const FileTensor& weight, const Placed& scales,
                                  const HfQuantisationScheme& scheme) const {
    const std::optional<DType> type = dtype_of(scales.entry->type);
    if (!type) {
        KD_THROW(unsupported, "{}: scales of type {} are not supported", where(scales),
                 name_of(scales.entry->type));
    }
    const int64_t rows = blocks_of(weight.rows(), scheme.block_rows);
    const int64_t columns = blocks_of(weight.columns(), scheme.block_columns);
    const std::vector<int64_t>& shape = scales.entry->shape;
    // A single column or a single scale may be written without its dimension.
    const bool fits = shape == std::vector<int64_t>{rows, columns} ||
                      (columns == 1 && shape == std::vector<int64_t>{rows}) ||
                      (rows == 1 && columns == 1 && shape.empty());
    if (!fits) {
        KD_THROW(corrupt, "{}: shape [{}], expected [{}, {}]", where(scales),
                 fmt::join(shape, ", "), rows, columns);
    }
    return {.data = scales.entry->data,
            .type = *type,
            .block_rows =
                scheme.block_rows != 0 ? scheme.block_rows : static_cast<int32_t>(weight.rows()),
            .block_columns = scheme.block_columns != 0 ? scheme.block_columns
                                                       : static_cast<int32_t>(weight.columns())};
}

FileTensor HfFolder::join_fp8(const Placed& weight, const HfQuantisationScheme& scheme) {
    FileTensor tensor = file_tensor(weight);
    tensor.type = DType::f8_e4m3;
    const bool fits = tensor.dims.size() == 2 && tensor.rows() > 0 && tensor.columns() > 0 &&
                      tensor.rows() <= INT32_MAX && tensor.columns() <= INT32_MAX;
    if (!fits || !tensor.name.ends_with(".weight")) {
        KD_THROW(unsupported, "{}: F8_E4M3 [{}] is no weight matrix", where(weight),
                 fmt::join(weight.entry->shape, ", "));
    }
    if (scheme.kind != HfQuantisation::fp8_blocks &&
        scheme.kind != HfQuantisation::float_quantized) {
        KD_THROW(corrupt, "{}: F8_E4M3, but config.json has no quantization_config for it",
                 where(weight));
    }
    const std::string_view suffix =
        scheme.kind == HfQuantisation::fp8_blocks ? "_scale_inv" : "_scale";
    tensor.scales = read_scales(tensor, take_beside(weight, tensor.name, suffix), scheme);
    return tensor;
}

FileTensor HfFolder::join_packed(const Placed& packed, const HfQuantisationScheme& scheme) {
    FileTensor tensor = file_tensor(packed);
    tensor.type = DType::int4;
    tensor.name.remove_suffix(std::string_view("_packed").size());
    const Placed& shape = take_beside(packed, tensor.name, "_shape");
    const std::vector<int64_t> stated = read_integers(*shape.entry);
    constexpr int64_t kPerWord = 8;
    const bool fits = packed.entry->type == SafetensorsType::i32 && tensor.dims.size() == 2 &&
                      tensor.rows() > 0 && tensor.columns() > 0 && tensor.rows() <= INT32_MAX &&
                      tensor.columns() <= INT32_MAX / kPerWord && stated.size() == 2 &&
                      stated[0] == tensor.rows() && stated[1] == tensor.columns() * kPerWord &&
                      stated[1] % scheme.block_columns == 0;
    if (!fits) {
        KD_THROW(corrupt, "{}: {} [{}] does not hold the matrix [{}] in groups of {}",
                 where(packed), name_of(packed.entry->type), fmt::join(packed.entry->shape, ", "),
                 fmt::join(stated, ", "), scheme.block_columns);
    }
    tensor.dims[0] = stated[1];
    tensor.scales = read_scales(tensor, take_beside(packed, tensor.name, "_scale"), scheme);
    return tensor;
}

/// Makes tensors_ and foreign_ of what the shards hold.
void HfFolder::join_tensors(ForeignTensors foreign) {
    HfQuantisationScheme scheme;
    bool joins = true;
    try {
        scheme = read_hf_quantisation(config());
    } catch (const Error&) {
        if (foreign == ForeignTensors::refuse) throw;
        joins = false;  // read_model_config refuses it again
    }
    const auto is_fp8 = [&](const SafetensorsEntry& entry) {
        return joins && entry.type == SafetensorsType::f8_e4m3;
    };
    const auto is_packed = [&](const SafetensorsEntry& entry) {
        return scheme.kind == HfQuantisation::pack_quantized && entry.name.ends_with(kPacked);
    };
    // Weights first: what they use is then no tensor of its own.
    for (const Placed& placed : placed_) {
        if (is_fp8(*placed.entry)) {
            tensors_.push_back(join_fp8(placed, scheme));
        } else if (is_packed(*placed.entry)) {
            tensors_.push_back(join_packed(placed, scheme));
        }
    }
    for (const Placed& placed : placed_) {
        const SafetensorsEntry& entry = *placed.entry;
        if (is_fp8(entry) || is_packed(entry) || placed.used) continue;
        FileTensor tensor = file_tensor(placed);
        if (const std::optional<DType> type = dtype_of(entry.type)) {
            tensor.type = *type;
            tensors_.push_back(std::move(tensor));
        } else if (foreign == ForeignTensors::list) {
            foreign_.push_back({.name = tensor.name,
                                .type = std::string(name_of(entry.type)),
                                .dims = tensor.dims,
                                .part = tensor.part,
                                .file_offset = tensor.file_offset,
                                .bytes = tensor.bytes});
        } else {
            KD_THROW(unsupported, "{}: type {} is not supported", where(placed),
                     name_of(entry.type));
        }
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const FileTensor& a, const FileTensor& b) { return a.name < b.name; });
    for (size_t i = 0; i < tensors_.size(); ++i) {
        if (!index_.emplace(tensors_[i].name, i).second) {
            KD_THROW(corrupt, "{}: tensor {} stands there packed and whole", path_,
                     printable(tensors_[i].name));
        }
    }
    if (find_tensor("language_model.model.embed_tokens.weight") != nullptr) {
        prefix_ = "language_model.";
    }
}

}  // namespace kd
