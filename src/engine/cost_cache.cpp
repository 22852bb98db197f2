#include "engine/cost_cache.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backends/cpu/processor.h"
#include "base/error.h"
#include "engine/cost_measure.h"
#include "kernels/simd/memory_read.h"

namespace kd {

namespace {

constexpr int kSchema = 2;

/// Of a file as it is now.
std::string identity(const std::string& path) {
    struct stat status {};
    stat(path.c_str(), &status);
    return fmt::format("{}|{}|{}.{:09}", path, status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
}

/// The program or shared object that holds this code.
std::string program_path() {
    static constexpr char kHere = 0;
    Dl_info info;
    link_map* object = nullptr;
    dladdr1(&kHere, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP);
    const bool library = object != nullptr && object->l_name[0] != '\0';
    return library ? object->l_name : "/proc/self/exe";
}

}  // namespace

std::string cost_key(const ModelFile& model, int threads, int32_t max_rows, int32_t max_context) {
    std::string key = identity(program_path());
    for (const MappedFile* file : model.files()) {
        key += fmt::format("|{}", identity(file->path()));
    }
    return key + fmt::format("|{}|{}|{}|{}|{}", threads, max_rows,
                             std::min(max_context, kFarContext), processor_name(),
                             dispatch_target());
}

std::string cost_cache_path(const std::string& cache_folder, const std::string& key) {
    return fmt::format("{}/cost-{:016x}.json", cache_folder, std::hash<std::string>{}(key));
}

CostTable load_cost(const std::string& path, const std::string& key) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    const auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
    CostTable table;
    try {
        if (!json.is_object() || json.at("schema") != kSchema) return {};
        if (json.at("key") != key) return {};
        json.at("rows").get_to(table.rows);
        json.at("contexts").get_to(table.contexts);
        json.at("seconds").get_to(table.seconds);
        table.correction.assign(table.rows.size(), 1.0);
        table.validate();
    } catch (const nlohmann::json::exception&) {
        return {};
    } catch (const Error&) {
        return {};
    }
    return table;
}

std::string save_cost(const CostTable& table, const std::string& path, const std::string& key) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    const std::string text = nlohmann::json{
        {"schema", kSchema},
        {"key", key},
        {"rows", table.rows},
        {"contexts", table.contexts},
        {"seconds",
         table.seconds}}.dump();
    const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
    std::FILE* out = std::fopen(temporary.c_str(), "w");
    bool written = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
    int why = written ? 0 : errno;
    if (out != nullptr && std::fclose(out) != 0) {
        why = written ? errno : why;
        written = false;
    }
    if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
    if (why == 0) why = errno;
    unlink(temporary.c_str());
    return fmt::format("cannot keep the cost table in {}: {}", path, std::strerror(why));
}

}  // namespace kd
