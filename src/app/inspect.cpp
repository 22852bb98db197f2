#include "app/inspect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/inspect_drafter.h"
#include "app/inspect_report.h"
#include "app/output.h"
#include "app/text.h"
#include "base/error.h"
#include "engine/engine.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr size_t kMostTemplateLines = 3;  // shown without --template
constexpr size_t kMostFaults = 12;        // shown; the JSON has all

/// Of an array in a GGUF file; config.json has lists and objects of its own.
bool is_summary(const Json& value) {
    return value.is_object() && value.contains("array_of") && value["array_of"].is_string() &&
           value.contains("count") && value["count"].is_number_integer() &&
           value.contains("first") && value["first"].is_array();
}

std::string value_text(const Json& value) {
    if (value.is_null()) return "-";
    if (value.is_number_integer()) {
        return value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX
                   ? fmt::format("{}", value.get<uint64_t>())
                   : grouped(value.get<int64_t>());
    }
    if (value.is_number_float()) {
        const auto number = value.get<double>();
        const bool whole = std::abs(number) < 1e15 && number == std::floor(number);
        return whole ? grouped(static_cast<int64_t>(number)) : fmt::format("{:.7g}", number);
    }
    if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
    if (value.is_string()) return visible(value.get_ref<const std::string&>());
    if (!is_summary(value)) {
        return visible(value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
    }
    std::string text = fmt::format("{} {}:", grouped(value["count"].get<int64_t>()),
                                   value["array_of"].get_ref<const std::string&>());
    for (const Json& element : value["first"]) text.append(" ").append(value_text(element));
    return text;
}

class TextReport {
  public:
    void title(std::string_view text) { out_ += fmt::format("\n{}\n", text); }
    /// "  label              value", cut at the line's end.
    void line(std::string_view label, std::string_view value) {
        constexpr size_t kLabel = 18;
        const std::string shown = shortened(label, kLabel);
        out_ +=
            fmt::format("  {:<{}} {}\n", shown, kLabel, shortened(value, kColumns - kLabel - 3));
    }
    /// A sentence over as many lines as it takes, those after the first indented.
    void sentence(std::string_view first, std::string_view text) {
        const std::string blank(first.size(), ' ');
        bool begun = false;
        for (const std::string& each : wrapped(text, kColumns - first.size())) {
            out_ += fmt::format("{}{}\n", begun ? std::string_view(blank) : first, each);
            begun = true;
        }
    }
    void raw(std::string_view text) { out_ += text; }
    const std::string& text() const { return out_; }

  private:
    std::string out_;
};

std::string token_text(const Json& token) {
    if (token.is_null()) return "none";
    return fmt::format("{} {}", token["id"].get<int32_t>(),
                       visible(token["text"].get_ref<const std::string&>()));
}

std::string tokens_text(const Json& tokens) {
    std::string text;
    for (const Json& token : tokens) text += (text.empty() ? "" : ", ") + token_text(token);
    return text.empty() ? "none" : text;
}

/// Two to a line.
void add_fields(std::string_view title, const Json& fields, TextReport& out) {
    out.title(title);
    std::string left;
    for (const auto& [key, value] : fields.items()) {
        std::string label = key;
        std::replace(label.begin(), label.end(), '_', ' ');
        const std::string cell =
            fmt::format("  {:<18} {:<17}", label, shortened(value_text(value), 17));
        if (left.empty()) {
            left = cell;
            continue;
        }
        out.raw(left + cell.substr(0, cell.find_last_not_of(' ') + 1) + "\n");
        left.clear();
    }
    if (!left.empty()) out.raw(left.substr(0, left.find_last_not_of(' ') + 1) + "\n");
    if (fields.empty()) out.raw("  not given\n");
}

void add_weights(const Json& report, TextReport& out) {
    out.raw(
        fmt::format("\n{:<20} {:>8} {:>20} {:>20}\n", "Weights", "tensors", "parameters", "bytes"));
    int64_t bytes = 0;
    for (const Json& each : report["weights"]) {
        bytes += each["bytes"].get<int64_t>();
        out.raw(fmt::format("  {:<18} {:>8} {:>20} {:>20}\n", each["type"].get<std::string>(),
                            grouped(each["tensors"].get<int64_t>()),
                            grouped(each["parameters"].get<int64_t>()),
                            grouped(each["bytes"].get<int64_t>())));
    }
    out.raw(fmt::format("  {:<18} {:>8} {:>20} {:>20}\n", "all",
                        grouped(report["tensor_count"].get<int64_t>()),
                        grouped(report["parameters"].get<int64_t>()), grouped(bytes)));
    if (report.contains("quantisation") && !report["quantisation"].is_null()) {
        out.line("quantisation", value_text(report["quantisation"]));
    }
    const auto decode = report.value("decode_bytes_per_token", int64_t{0});
    if (decode == 0) return;
    const auto kv = report["kv_bytes_per_token"].get<int64_t>();
    out.line("read per token", fmt::format("{} of weights", bytes_text(decode)));
    const int64_t context = report["shape"]["context_length"].get<int64_t>();
    out.line("KV cache", fmt::format("{} a token, {} for a context of {}", bytes_text(kv),
                                     bytes_text(kv * context), grouped(context)));
}

void add_tokenizer(const Json& report, TextReport& out) {
    const Json& tokenizer = report["tokenizer"];
    out.title("Tokenizer");
    out.line("model", value_text(tokenizer["model"]));
    out.line("pre-tokenizer", value_text(tokenizer["pre"]));
    if (tokenizer.contains("error")) {
        out.line("not usable", "see below");
    } else {
        out.line("vocabulary",
                 fmt::format("{} tokens, {} of them control tokens",
                             value_text(tokenizer["vocabulary"]), tokenizer["control"].size()));
        out.line("bos, eos",
                 fmt::format("{}, {}", token_text(tokenizer["bos"]), token_text(tokenizer["eos"])));
        out.line("stops at", tokens_text(tokenizer["stop"]));
        out.line("control", tokens_text(tokenizer["control"]));
    }
}

void add_template(const Json& report, std::string_view source, TextReport& out) {
    const Json& chat = report["chat_template"];
    out.title("Chat template");
    if (chat.is_null()) {
        out.raw("  none: prompts need --raw\n");
        return;
    }
    out.line("source", fmt::format("{} bytes (--template prints it)", value_text(chat["bytes"])));
    const std::string error =
        chat["error"].is_null() ? "" : visible(chat["error"].get<std::string>());
    out.sentence("  one user message   ",
                 error.empty() ? "is rendered" : "is refused, prompts need --raw: " + error);
    for (size_t i = 0; i < kMostTemplateLines && !source.empty(); ++i) {
        const size_t end = std::min(source.find('\n'), source.size());
        out.raw(fmt::format("  | {}\n", shortened(visible(source.substr(0, end)), kColumns - 4)));
        source.remove_prefix(std::min(end + 1, source.size()));
    }
    if (!source.empty()) out.raw("  | ...\n");
}

void add_metadata(const Json& report, TextReport& out) {
    out.title("Metadata");
    size_t widest = 0;
    for (const auto& [key, value] : report["metadata"].items()) {
        widest = std::max(widest, std::min<size_t>(visible(key).size(), 42));
    }
    for (const auto& [key, value] : report["metadata"].items()) {
        out.raw(fmt::format("  {:<{}} {}\n", shortened(visible(key), widest), widest,
                            shortened(value_text(value), kColumns - widest - 3)));
    }
    if (report["metadata"].empty()) out.raw("  none\n");
}

void add_tensors(const std::vector<TensorRow>& rows, TextReport& out) {
    constexpr size_t kName = 30;
    out.raw(fmt::format("\n{:<{}} {:<7} {:>14} {:>12} {:>13}\n", "Tensors", kName, "type", "shape",
                        "bytes", "offset"));
    for (const TensorRow& row : rows) {
        std::string shape;
        for (auto dim = row.dims->rbegin(); dim != row.dims->rend(); ++dim) {
            shape += fmt::format("{}{}", shape.empty() ? "" : " x ", *dim);
        }
        out.raw(fmt::format("{:<{}} {:<7} {:>14} {:>12} {:>13}\n",
                            shortened(visible(row.name), kName), kName, row.type, shape,
                            row.bytes ? fmt::format("{}", *row.bytes) : "?", row.offset));
    }
}

void add_verdict(const Json& report, TextReport& out) {
    const Json& faults = report["faults"];
    const bool drafter = report.contains("drafter");
    if (faults.empty()) {
        out.raw(drafter
                    ? "\nA DFlash drafter: it drafts for the model that it was made for (run's\n"
                      "--speculative-algorithm dflash), whose shape its tensors are held against.\n"
                    : "\nThis build can run the model.\n");
        return;
    }
    out.raw(fmt::format(
        "\nThis build cannot {}, for {}:\n", drafter ? "use the DFlash drafter" : "run the model",
        faults.size() == 1 ? "one reason" : fmt::format("{} reasons", grouped(faults.size()))));
    for (size_t i = 0; i < std::min(faults.size(), kMostFaults); ++i) {
        out.sentence("  - ", visible(faults[i].get_ref<const std::string&>()));
    }
    if (faults.size() > kMostFaults) {
        out.raw(fmt::format("  - and {} more (--json lists them)\n",
                            grouped(faults.size() - kMostFaults)));
    }
}

std::string text_of(const Json& report, std::string_view chat_template,
                    const std::vector<TensorRow>* tensors) {
    TextReport out;
    // A path is worth its whole length.
    out.raw(fmt::format("{}\n", visible(report["path"].get_ref<const std::string&>())));
    out.line("format", fmt::format("{}, {} bytes", report["format"].get<std::string>(),
                                   value_text(report["bytes"])));
    out.line("architecture", value_text(report["architecture"]));
    out.line("name", value_text(report["name"]));
    if (report.contains("drafter")) {
        add_fields("Drafter", report["drafter"], out);
        add_weights(report, out);
    } else {
        add_fields("Shape", report["shape"], out);
        add_weights(report, out);
        add_tokenizer(report, out);
        add_template(report, chat_template, out);
    }
    add_metadata(report, out);
    if (tensors != nullptr) add_tensors(*tensors, out);
    add_verdict(report, out);
    return out.text();
}

/// The source as it is, so that it can be kept; made harmless where a person reads it.
void print_template(const ModelFile& file) {
    const std::string source = template_source(file);
    if (source.empty()) KD_THROW(not_found, "{}: has no chat template", file.path());
    if (isatty(STDOUT_FILENO) != 0) {
        write_out(visible(source, /*multi_line=*/true) + "\n");
    } else {
        write_out(source);
    }
}

/// ASCII only: what a terminal shows of it is harmless too.
void write_json(const Json& report, const std::string& path) {
    const std::string text =
        report.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
    if (path == "-") {
        write_out(text);
    } else {
        write_file(path, text);
    }
}

int exit_code(const Json& report) {
    return report["supported"].get<bool>() ? 0 : kUnsupportedExitCode;
}

int inspect_drafter(const std::string& path, const InspectOptions& options) {
    const DraftFolder folder(path);
    if (options.chat_template) KD_THROW(not_found, "{}: a drafter has no chat template", path);
    const std::vector<TensorRow> rows = folder.tensor_rows();
    Json report = folder.report(rows);
    if (options.json != "-") write_out(text_of(report, "", options.tensors ? &rows : nullptr));
    if (options.tensors) report["tensors"] = tensors_json(rows);
    if (!options.json.empty()) write_json(report, options.json);
    return exit_code(report);
}

}  // namespace

int inspect(const InspectOptions& options) {
    if (!options.json.empty() && options.json != "-") expect_writable(options.json);
    const std::string path = resolve_model(options.model);
    if (is_dflash_folder(path)) return inspect_drafter(path, options);
    const ModelFile file(path, ForeignTensors::list);
    const std::vector<TensorRow> rows = tensor_rows(file);
    Json report = inspect_report(file, rows);
    if (options.json == "-") {
        // Nothing else goes there.
    } else if (options.chat_template) {
        print_template(file);
    } else {
        write_out(text_of(report, template_source(file), options.tensors ? &rows : nullptr));
    }
    if (options.tensors) report["tensors"] = tensors_json(rows);
    if (options.chat_template) report["chat_template"]["source"] = template_source(file);
    if (!options.json.empty()) write_json(report, options.json);
    return exit_code(report);
}

}  // namespace kd
