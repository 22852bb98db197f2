// Chat templates: a small Jinja interpreter over JSON values.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kd {

/// Largest template that is read. Published ones have up to 17 KB.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

/// A parsed template. Rendered as transformers configures jinja2 (docs/chat-templates.md):
/// trim_blocks and lstrip_blocks on, undefined variables print as nothing, `raise_exception` throws
/// kd::Error with its message as one line of some 1,000 bytes at most.
class ChatTemplate {
  public:
    /// Throws kd::Error naming the construct and its line if the template is malformed, uses a
    /// part of Jinja that is not supported or exceeds kMaxTemplateBytes. `name` appears in
    /// messages.
    explicit ChatTemplate(std::string_view source, const std::string& name = "chat template");
    ~ChatTemplate();
    ChatTemplate(ChatTemplate&&) noexcept;
    ChatTemplate& operator=(ChatTemplate&&) noexcept;

    /// variables: an object, usually {"messages": [{"role", "content"}...], "tools",
    /// "add_generation_prompt", "bos_token", "eos_token"} and what else the template reads.
    /// `now`: what strftime_now prints, as local time. Output, steps and depth are bounded: a
    /// template that exceeds them throws.
    std::string render(
        const nlohmann::ordered_json& variables,
        std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace kd
