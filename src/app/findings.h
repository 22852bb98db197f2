// The checks of doctor and what they found.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kd {

enum class Level { ok, warning, problem };

struct Finding {
    std::string name;
    Level level = Level::ok;
    std::string text;    // what is so
    std::string advice;  // what to do about it; empty with ok
};

/// Shows each finding as it comes, at 80 columns: strings from outside are made harmless here.
class Findings {
  public:
    explicit Findings(bool show) : show_(show) {}

    /// Further findings belong to this part ("Machine").
    void begin_section(const std::string& title);
    void ok(const std::string& name, const std::string& text) {
        add({.name = name, .level = Level::ok, .text = text, .advice = {}});
    }
    void warning(const std::string& name, const std::string& text, const std::string& advice) {
        add({.name = name, .level = Level::warning, .text = text, .advice = advice});
    }
    void problem(const std::string& name, const std::string& text, const std::string& advice) {
        add({.name = name, .level = Level::problem, .text = text, .advice = advice});
    }
    int count(Level level) const;
    /// [{"section", "name", "level", "text", "advice"}]
    nlohmann::ordered_json json() const;

  private:
    void add(const Finding& finding);

    bool show_;
    std::string section_;
    std::vector<std::pair<std::string, Finding>> all_;  // section, finding
};

}  // namespace kd
