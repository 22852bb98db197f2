#include "kv_layout/options.h"

#include <getopt.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace kd::kv_layout {

const char* const kHelp =
    "usage: kv_layout [OPTION...]\n"
    "\n"
    "What the layout of a paged KV cache costs on this GPU: the same rows read through page "
    "tables\n"
    "that differ in how contiguous they are, by read-only probes and by the tree-verify attention "
    "of\n"
    "libkdtree_kernels.so; and what it costs to move rows together (kdt_kv_move).\n"
    "\n"
    "  --json FILE       write all figures to FILE (docs/kv-layout.md has the fields)\n"
    "  --tables FILE     also these page tables: [{\"name\", \"slots\": [[...], ...]}], for each\n"
    "                    session the slots of its positions, page size 1\n"
    "  --parts LIST      of probe,attention,move (default: all)\n"
    "  --pool-slots N    slots of a layer's pool, at least (default 262144); never fewer than "
    "four\n"
    "                    times the tokens\n"
    "  --replays N       replays of each graph, of which the median is taken (default 40)\n"
    "  --quick           a few cases and layouts, 10 replays\n"
    "  --list            print the page tables and how contiguous they are; needs no device\n"
    "  --help            this text\n"
    "\n"
    "Runs have geometric lengths of the mean that stands in the table, in random order, with gaps\n"
    "between them over the whole pool. \"whole\" is measured before and after the others; ratio "
    "is\n"
    "us by the mean of the two. Graphs walk through pools that hold more than four times the L2 "
    "cache\n"
    "in rows that are read; us is the graph's time by its launches.\n";

namespace {

[[noreturn]] void refuse(const std::string& message) {
    throw std::invalid_argument(message);
}

int32_t number(const std::string& option, const std::string& text, int32_t low, int32_t high) {
    int32_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < low || value > high) {
        refuse("--" + option + " " + text + " is not in " + std::to_string(low) + ".." +
               std::to_string(high));
    }
    return value;
}

void choose_parts(const std::string& text, Options& options) {
    options.probe = options.attention = options.move = false;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        const std::string part = text.substr(begin, end - begin);
        if (part == "probe") {
            options.probe = true;
        } else if (part == "attention") {
            options.attention = true;
        } else if (part == "move") {
            options.move = true;
        } else {
            refuse("--parts " + part + " is none of probe, attention, move");
        }
    }
}

bench::Case mla_case(kdt_kv_format format, int32_t nodes) {
    return {.kind = KDT_ATTN_MLA, .heads = 8, .nodes = nodes, .kv_format = format};
}

bench::Case gqa_case(int32_t nodes) {
    return {.kind = KDT_ATTN_GQA, .heads = 32, .kv_heads = 8, .head_dim = 128, .nodes = nodes};
}

}  // namespace

std::optional<Options> parse(int argc, char** argv) {
    static constexpr option kOptions[] = {{"json", required_argument, nullptr, 'j'},
                                          {"tables", required_argument, nullptr, 't'},
                                          {"parts", required_argument, nullptr, 'p'},
                                          {"pool-slots", required_argument, nullptr, 's'},
                                          {"replays", required_argument, nullptr, 'r'},
                                          {"quick", no_argument, nullptr, 'q'},
                                          {"list", no_argument, nullptr, 'l'},
                                          {"help", no_argument, nullptr, 'h'},
                                          {nullptr, 0, nullptr, 0}};
    Options options;
    for (int flag; (flag = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
        const std::string text = optarg ? optarg : "";
        switch (flag) {
            case 'j':
                options.json = text;
                break;
            case 't':
                options.tables = text;
                break;
            case 'p':
                choose_parts(text, options);
                break;
            case 's':
                options.pool_slots = number("pool-slots", text, 1, 1 << 24);
                break;
            case 'r':
                options.replays = number("replays", text, 1, 10000);
                break;
            case 'q':
                options.quick = true;
                break;
            case 'l':
                options.list = true;
                break;
            case 'h':
                return std::nullopt;
            default:  // getopt has said what is wrong
                refuse("see kv_layout --help");
        }
    }
    if (optind < argc) refuse("\"" + std::string(argv[optind]) + "\" is no option");
    if (options.replays == 0) options.replays = options.quick ? 10 : 40;
    return options;
}

std::vector<bench::Case> attention_cases(bool quick) {
    constexpr int32_t k = 1024;
    std::vector<bench::Case> shapes;
    if (quick) {
        shapes = {mla_case(KDT_KV_BF16, 8), gqa_case(8)};
    } else {
        for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8_MLA656}) {
            for (const int32_t nodes : {1, 8, 32}) shapes.push_back(mla_case(format, nodes));
        }
        shapes.push_back(gqa_case(8));
    }
    std::vector<bench::Case> cases;
    for (bench::Case c : shapes) {
        for (const int32_t context : {4 * k, 16 * k, 64 * k}) {
            if (quick && context != 16 * k) continue;
            c.context = context;
            c.batch = 1;
            cases.push_back(c);
        }
        c.context = 4 * k;
        c.batch = 16;
        cases.push_back(c);
    }
    return cases;
}

std::vector<bench::Case> table_cases(const Sequences& sequences) {
    std::vector<bench::Case> cases = {mla_case(KDT_KV_BF16, 8), mla_case(KDT_KV_FP8_MLA656, 8),
                                      gqa_case(8)};
    for (bench::Case& c : cases) {
        c.context = sequences.max_tokens();
        c.batch = sequences.requests();
    }
    return cases;
}

std::vector<Layout> layouts_of(const Sequences& sequences, int32_t pool_slots, bool with_pages,
                               bool quick) {
    const std::vector<int32_t> means =
        quick ? std::vector<int32_t>{1, 31, 64}
              : std::vector<int32_t>{1, 2, 4, 8, 16, 31, 64, 128, 256, 1024};
    std::vector<Layout> layouts{whole(sequences, pool_slots)};
    for (const int32_t mean : means) layouts.push_back(random_runs(sequences, pool_slots, mean));
    if (with_pages) {
        for (const int32_t page_size : {1, 16, 64}) {
            layouts.push_back(random_pages(sequences, pool_slots, page_size));
        }
    }
    layouts.push_back(layouts.front());
    return layouts;
}

int32_t pool_slots_for(int64_t tokens, int32_t wanted) {
    constexpr int64_t kLargestPage = 64;
    const int64_t slots = std::max<int64_t>(wanted, 4 * tokens);
    return static_cast<int32_t>((slots + kLargestPage - 1) / kLargestPage * kLargestPage);
}

}  // namespace kd::kv_layout
