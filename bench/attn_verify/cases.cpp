#include "attn_verify/cases.h"

#include <getopt.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace kd::bench {

const char* const kHelp =
    "usage: attn_verify [OPTION...]\n"
    "\n"
    "Times the tree-verify attention of libkdtree_kernels.so (attention and combine; the plan "
    "once,\n"
    "ahead) under graph replay with cold L2, against ceilings that it measures first.\n"
    "\n"
    "  --json FILE         write all figures to FILE\n"
    "  --ops LIST          of mla,gqa (default: both)\n"
    "  --heads LIST        8 means MLA with 8 heads, 32/8 GQA with 32 query and 8 K/V heads\n"
    "  --head-dim N        of GQA: 64, 96, 128 or 256 (default 128)\n"
    "  --nodes LIST        tree sizes T, 1..128\n"
    "  --contexts LIST     tokens, such as 4k,64k,1000\n"
    "  --kv-format LIST    of bf16,fp8,fp8_mla656\n"
    "  --batch LIST        requests, 1..64\n"
    "  --page N            page size 1, 16, 32 or 64 (default 1)\n"
    "  --slots KIND        contiguous or shuffled pages (default shuffled)\n"
    "  --splits LIST       0: planned (default); n: each request's keys cut into n parts\n"
    "  --path NAME         auto, wgmma or mma_sync (default auto)\n"
    "  --mode NAME         fast or deterministic (default fast)\n"
    "  --repeat N          graph replays a case (default 40)\n"
    "  --check             compare the first layer with a float computation (rel_l2)\n"
    "  --quick             a few cases, 10 replays\n"
    "  --list              print the cases and exit; needs no device\n"
    "\n"
    "Any of --heads, --nodes, --contexts, --kv-format and --batch replaces the default list by "
    "the\n"
    "product of what is given (default of the others: 8 and 32/8, 8, 64k, bf16, 1).\n"
    "us is the median of one layer: graph time by layers; floor = max(min bytes / read ceiling,\n"
    "flops / bf16 ceiling).\n";

int64_t Case::slot_bytes() const {
    if (kv_format == KDT_KV_FP8_MLA656) return 656;
    const int64_t values = kind == KDT_ATTN_MLA ? kMlaDim : int64_t{kv_heads} * head_dim;
    return values * (kv_format == KDT_KV_BF16 ? 2 : 1);
}

double Case::min_bytes() const {
    const double cache = double(batch) * double(keys()) * double(slot_bytes()) * caches();
    const double q_and_out = double(rows()) * (head_dim + value_dim()) * 2;
    return cache + q_and_out;
}

double Case::flops() const {
    return 2.0 * double(rows()) * double(keys()) * (head_dim + value_dim());
}

const char* op_name(const Case& c) {
    return c.kind == KDT_ATTN_MLA ? "attn_verify_mla" : "attn_verify_gqa";
}

const char* format_name(kdt_kv_format format) {
    switch (format) {
        case KDT_KV_BF16:
            return "bf16";
        case KDT_KV_FP8:
            return "fp8";
        case KDT_KV_FP8_MLA656:
            return "fp8_mla656";
    }
    return "?";
}

const char* path_name(kdt_attn_path path) {
    switch (path) {
        case KDT_PATH_AUTO:
            return "auto";
        case KDT_PATH_WGMMA:
            return "wgmma";
        case KDT_PATH_MMA_SYNC:
            return "mma_sync";
    }
    return "?";
}

std::string shape_name(const Case& c) {
    std::string name = std::to_string(c.heads);
    if (c.kind == KDT_ATTN_GQA) name += "/" + std::to_string(c.kv_heads);
    return name + " x " + std::to_string(c.nodes);
}

namespace {

[[noreturn]] void refuse(const std::string& message) {
    throw std::invalid_argument(message);
}

std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> parts;
    for (size_t begin = 0;;) {
        const size_t end = text.find(',', begin);
        parts.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) return parts;
        begin = end + 1;
    }
}

/// A number in low..high; "4k" is 4096.
int32_t number(const std::string& option, const std::string& text, int64_t low, int64_t high) {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop + 1 == end && (*stop == 'k' || *stop == 'K')) {
        value *= 1024;
        ++stop;
    }
    if (error != std::errc() || stop != end || value < low || value > high) {
        refuse("--" + option + " " + text + " is not in " + std::to_string(low) + ".." +
               std::to_string(high));
    }
    return static_cast<int32_t>(value);
}

std::vector<int32_t> numbers(const std::string& option, const std::string& text, int64_t low,
                             int64_t high) {
    std::vector<int32_t> values;
    for (const std::string& part : split_list(text)) {
        values.push_back(number(option, part, low, high));
    }
    return values;
}

template <class Value>
struct Named {
    const char* name;
    Value value;
};

template <class Value, size_t kCount>
Value by_name(const std::string& option, const std::string& text,
              const Named<Value> (&names)[kCount]) {
    std::string known;
    for (const auto& [name, value] : names) {
        if (text == name) return value;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    refuse("--" + option + " " + text + " is none of " + known);
}

constexpr Named<kdt_kv_format> kFormats[] = {
    {"bf16", KDT_KV_BF16}, {"fp8", KDT_KV_FP8}, {"fp8_mla656", KDT_KV_FP8_MLA656}};
constexpr Named<kdt_attn_path> kPaths[] = {
    {"auto", KDT_PATH_AUTO}, {"wgmma", KDT_PATH_WGMMA}, {"mma_sync", KDT_PATH_MMA_SYNC}};
constexpr Named<kdt_attn_mode> kModes[] = {{"fast", KDT_ATTN_FAST},
                                           {"deterministic", KDT_ATTN_DETERMINISTIC}};
constexpr Named<kdt_attn_kind> kOps[] = {{"mla", KDT_ATTN_MLA}, {"gqa", KDT_ATTN_GQA}};
constexpr Named<bool> kSlots[] = {{"shuffled", true}, {"contiguous", false}};

struct Heads {
    int32_t heads;
    int32_t kv_heads;  // 0: MLA
};

Heads heads_of(const std::string& text) {
    const size_t slash = text.find('/');
    const int32_t heads = number("heads", text.substr(0, slash), 1, 128);
    if (slash == std::string::npos) return {heads, 0};
    return {heads, number("heads", text.substr(slash + 1), 1, 128)};
}

/// What the command line says of the list; empty: not given.
struct Selection {
    std::vector<kdt_attn_kind> ops{KDT_ATTN_MLA, KDT_ATTN_GQA};
    std::vector<Heads> heads;
    std::vector<int32_t> nodes, contexts, batches;
    std::vector<kdt_kv_format> formats;
    std::vector<int32_t> splits{0};
    int32_t head_dim = 128;
    int32_t page_size = 1;
    bool shuffled = true;
    bool quick = false;
};

/// Appends what the product of the lists names, once each.
void add(std::vector<Case>& cases, const Selection& s, const std::vector<Heads>& heads,
         const std::vector<int32_t>& nodes, const std::vector<int32_t>& contexts,
         kdt_kv_format format = KDT_KV_BF16, int32_t batch = 1) {
    for (const Heads h : heads) {
        for (const int32_t t : nodes) {
            for (const int32_t context : contexts) {
                for (const int32_t splits : s.splits) {
                    const bool gqa = h.kv_heads > 0;
                    const Case c{.kind = gqa ? KDT_ATTN_GQA : KDT_ATTN_MLA,
                                 .heads = h.heads,
                                 .kv_heads = gqa ? h.kv_heads : 1,
                                 .head_dim = gqa ? s.head_dim : kMlaDim,
                                 .nodes = t,
                                 .context = context,
                                 .kv_format = format,
                                 .batch = batch,
                                 .page_size = s.page_size,
                                 .shuffled = s.shuffled,
                                 .splits = splits};
                    if (gqa && format == KDT_KV_FP8_MLA656) continue;
                    if (std::ranges::find(s.ops, c.kind) == s.ops.end()) continue;
                    if (std::ranges::find(cases, c) == cases.end()) cases.push_back(c);
                }
            }
        }
    }
}

std::vector<Case> default_cases(const Selection& s) {
    constexpr int32_t k = 1024;
    const std::vector<int32_t> contexts{4 * k, 16 * k, 64 * k, 128 * k};
    const std::vector<int32_t> adjacent{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32};
    std::vector<Case> cases;
    if (s.quick) {
        add(cases, s, {{8, 0}}, {1, 8, 32}, {4 * k, 64 * k});
        add(cases, s, {{64, 0}}, {32}, {64 * k});
        add(cases, s, {{8, 0}}, {8}, {64 * k}, KDT_KV_FP8);
        add(cases, s, {{8, 0}}, {8}, {16 * k}, KDT_KV_BF16, 8);
        add(cases, s, {{32, 8}}, {8}, {64 * k});
        return cases;
    }
    add(cases, s, {{8, 0}}, {1, 8, 16, 32, 64}, contexts);
    add(cases, s, {{64, 0}}, {32}, contexts);
    add(cases, s, {{8, 0}}, adjacent, {16 * k, 64 * k});
    for (const kdt_kv_format format : {KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        add(cases, s, {{8, 0}}, {1, 4, 8, 16}, {16 * k, 64 * k, 128 * k}, format);
    }
    add(cases, s, {{8, 0}}, {8}, {16 * k}, KDT_KV_BF16, 8);
    add(cases, s, {{8, 0}}, {8}, {16 * k}, KDT_KV_FP8, 8);
    add(cases, s, {{32, 8}}, {1, 8, 16, 32}, {64 * k});
    return cases;
}

std::vector<Case> case_list(Selection s) {
    const bool given = !s.heads.empty() || !s.nodes.empty() || !s.contexts.empty() ||
                       !s.batches.empty() || !s.formats.empty();
    if (!given) return default_cases(s);
    if (s.heads.empty()) s.heads = {{8, 0}, {32, 8}};
    if (s.nodes.empty()) s.nodes = {8};
    if (s.contexts.empty()) s.contexts = {65536};
    if (s.batches.empty()) s.batches = {1};
    if (s.formats.empty()) s.formats = {KDT_KV_BF16};
    std::vector<Case> cases;
    for (const int32_t batch : s.batches) {
        for (const kdt_kv_format format : s.formats) {
            add(cases, s, s.heads, s.nodes, s.contexts, format, batch);
        }
    }
    return cases;
}

}  // namespace

std::optional<Options> parse(int argc, char** argv) {
    static constexpr option kOptions[] = {{"json", required_argument, nullptr, 'j'},
                                          {"ops", required_argument, nullptr, 'o'},
                                          {"heads", required_argument, nullptr, 'H'},
                                          {"head-dim", required_argument, nullptr, 'd'},
                                          {"nodes", required_argument, nullptr, 'n'},
                                          {"contexts", required_argument, nullptr, 'c'},
                                          {"kv-format", required_argument, nullptr, 'k'},
                                          {"batch", required_argument, nullptr, 'b'},
                                          {"page", required_argument, nullptr, 'p'},
                                          {"slots", required_argument, nullptr, 's'},
                                          {"splits", required_argument, nullptr, 'S'},
                                          {"path", required_argument, nullptr, 'P'},
                                          {"mode", required_argument, nullptr, 'm'},
                                          {"repeat", required_argument, nullptr, 'r'},
                                          {"check", no_argument, nullptr, 'C'},
                                          {"quick", no_argument, nullptr, 'q'},
                                          {"list", no_argument, nullptr, 'l'},
                                          {"help", no_argument, nullptr, 'h'},
                                          {nullptr, 0, nullptr, 0}};
    Options options;
    Selection s;
    std::optional<int32_t> repeat;
    for (int flag; (flag = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
        const std::string text = optarg ? optarg : "";
        switch (flag) {
            case 'j':
                options.json = text;
                break;
            case 'o':
                s.ops.clear();
                for (const std::string& part : split_list(text)) {
                    s.ops.push_back(by_name("ops", part, kOps));
                }
                break;
            case 'H':
                for (const std::string& part : split_list(text)) s.heads.push_back(heads_of(part));
                break;
            case 'd':
                s.head_dim = number("head-dim", text, 64, 256);
                break;
            case 'n':
                s.nodes = numbers("nodes", text, 1, 128);
                break;
            case 'c':
                s.contexts = numbers("contexts", text, 0, 262144);
                break;
            case 'k':
                for (const std::string& part : split_list(text)) {
                    s.formats.push_back(by_name("kv-format", part, kFormats));
                }
                break;
            case 'b':
                s.batches = numbers("batch", text, 1, 64);
                break;
            case 'p':
                s.page_size = number("page", text, 1, 64);
                break;
            case 's':
                s.shuffled = by_name("slots", text, kSlots);
                break;
            case 'S':
                s.splits = numbers("splits", text, 0, 4096);
                break;
            case 'P':
                options.path = by_name("path", text, kPaths);
                break;
            case 'm':
                options.mode = by_name("mode", text, kModes);
                break;
            case 'r':
                repeat = number("repeat", text, 1, 10000);
                break;
            case 'C':
                options.check = true;
                break;
            case 'q':
                s.quick = true;
                break;
            case 'l':
                options.list = true;
                break;
            case 'h':
                return std::nullopt;
            default:  // getopt has said what is wrong
                refuse("see attn_verify --help");
        }
    }
    if (optind < argc) refuse("\"" + std::string(argv[optind]) + "\" is no option");
    options.repeat = repeat.value_or(s.quick ? 10 : 40);
    options.cases = case_list(s);
    if (options.cases.empty()) refuse("no case is left of what was given");
    return options;
}

}  // namespace kd::bench
