// What inspect says about a folder that holds a DFlash drafter, as a JSON object.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/inspect_report.h"
#include "formats/dflash_config.h"
#include "formats/draft_tensors.h"

namespace kd {

/// A drafter as far as it is known without its target.
class DraftFolder {
  public:
    /// Throws what read_json_file and DraftTensors throw; a configuration that is refused is a
    /// fault.
    explicit DraftFolder(const std::string& path);

    /// In the order of their data. Valid as long as this is.
    std::vector<TensorRow> tensor_rows() const;
    /// rows: those. docs/inspect.md describes it.
    nlohmann::ordered_json report(const std::vector<TensorRow>& rows) const;

  private:
    nlohmann::ordered_json fields() const;

    std::string path_;
    DflashConfig config_;  // without a fault
    std::string fault_;    // why it is refused; or empty
    std::unique_ptr<DraftTensors> weights_;
};

}  // namespace kd
