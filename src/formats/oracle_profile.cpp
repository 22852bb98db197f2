#include "formats/oracle_profile.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/views.h"
#include "formats/gguf.h"

namespace kd {

OracleProfile read_oracle_profile(const std::string& path) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.bytes());
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("hit") || !json["hit"].is_array()) {
        KD_THROW(corrupt, "{}: expected an object with a list \"hit\"", path);
    }
    OracleProfile profile;
    for (const auto& ranks : json["hit"]) {
        const size_t depth = profile.hit.size() + 1;
        if (!ranks.is_array() || ranks.empty() || ranks.size() > kMaxDraftStates) {
            KD_THROW(corrupt, "{}: hit, depth {}: expected a list of 1 to {} numbers", path, depth,
                     kMaxDraftStates);
        }
        std::vector<float>& row = profile.hit.emplace_back();
        double sum = 0;
        for (const auto& value : ranks) {
            if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1)) {
                KD_THROW(corrupt, "{}: hit, depth {}: {} is no probability", path, depth,
                         value.dump());
            }
            sum += value.get<double>();
            row.push_back(value.get<float>());
        }
        if (sum > 1 + 1e-6) {
            KD_THROW(corrupt, "{}: hit, depth {}: probabilities sum to {}, above 1", path, depth,
                     sum);
        }
    }
    if (profile.hit.empty() || profile.hit.size() > kMaxDraftDepths) {
        KD_THROW(corrupt, "{}: hit has {} depths, expected 1 to {}", path, profile.hit.size(),
                 kMaxDraftDepths);
    }
    return profile;
}

}  // namespace kd
