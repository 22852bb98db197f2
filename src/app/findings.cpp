#include "app/findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/output.h"
#include "app/text.h"

namespace kd {

namespace {

const char* name_of(Level level) {
    return level == Level::ok ? "ok" : level == Level::warning ? "warning" : "problem";
}

}  // namespace

void Findings::begin_section(const std::string& title) {
    if (show_) write_out(fmt::format("{}{}\n", all_.empty() ? "" : "\n", title));
    section_ = title;
}

void Findings::add(const Finding& finding) {
    constexpr size_t kColumns = 80;
    constexpr size_t kText = 26;  // where it begins
    all_.emplace_back(section_, finding);
    if (!show_) return;
    std::string lines;
    for (const std::string& line : wrapped(visible(finding.text), kColumns - kText)) {
        lines += lines.empty()
                     ? fmt::format("  {:<9}{:<15}{}\n", name_of(finding.level), finding.name, line)
                     : fmt::format("{:{}}{}\n", "", kText, line);
    }
    bool begun = false;
    if (!finding.advice.empty()) {
        for (const std::string& line : wrapped(visible(finding.advice), kColumns - kText - 3)) {
            lines += fmt::format("{:{}}{}{}\n", "", kText, begun ? "   " : "-> ", line);
            begun = true;
        }
    }
    write_out(lines);
}

int Findings::count(Level level) const {
    return static_cast<int>(std::count_if(
        all_.begin(), all_.end(), [&](const auto& each) { return each.second.level == level; }));
}

nlohmann::ordered_json Findings::json() const {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const auto& [section, finding] : all_) {
        out.push_back({{"section", section},
                       {"name", finding.name},
                       {"level", name_of(finding.level)},
                       {"text", finding.text},
                       {"advice", finding.advice}});
    }
    return out;
}

}  // namespace kd
