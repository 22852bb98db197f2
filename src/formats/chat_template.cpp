#include "formats/chat_template.h"

#include "base/error.h"
#include "formats/jinja_eval.h"
#include "formats/jinja_parser.h"

namespace kd {

struct ChatTemplate::Impl {
    std::string name;
    jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name)
    : impl_(std::make_unique<Impl>()) {
    impl_->name = jinja::one_line(name);
    if (source.size() > kMaxTemplateBytes) {
        KD_THROW(unsupported, "{}: a template of {} bytes, more than {}", impl_->name,
                 source.size(), kMaxTemplateBytes);
    }
    jinja::Context context(impl_->name);
    impl_->block = jinja::parse(context, source);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables,
                                 std::chrono::system_clock::time_point now) const {
    jinja::Context context(impl_->name, now);
    const jinja::Value values = jinja::value_of(context, variables);
    if (values.dict() == nullptr) {
        KD_THROW(invalid_argument, "{}: the variables must be an object, not {}", impl_->name,
                 values.kind());
    }
    return jinja::run(context, impl_->block, *values.dict());
}

}  // namespace kd
