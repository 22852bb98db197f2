// Times every op of the CPU path against what this machine can do at most.
#include <fmt/format.h>
#include <getopt.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "ops/measure.h"
#include "support/report.h"
#include "support/target.h"

namespace {

constexpr const char* kHelp =
    "usage: ops [--threads N] [--filter TEXT] [--target NAME] [--json FILE]\n"
    "\n"
    "Times the CPU ops against ceilings that are measured at the start.\n"
    "\n"
    "  --threads N    default: what affinity and cgroup allow\n"
    "  --filter TEXT  only rows whose \"op case\" contains TEXT\n"
    "  --target NAME  instruction set by Highway's name, such as AVX2 (default: the best one)\n"
    "  --json FILE    write all figures to FILE\n"
    "\n"
    "ms is the median. Rows \"smollm2\" have the size of that model and come cold from memory\n"
    "(linear: all 121 matrices; attn_verify_gqa: all 30 layers); the others are one call again\n"
    "and again, so that their GB/s are those of a cache and may pass the read ceiling.\n"
    "of read, of comp.: share of the ceiling of reading memory and of the op's arithmetic (int8\n"
    "for linear with quantised weights, fp32 otherwise).\n";

struct Options {
    int threads = kd::default_threads();
    std::string filter;
    std::string target;
    std::string json;
};

int thread_count(const char* text) {
    int threads = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, threads);
    if (error != std::errc() || stop != end || threads < 1 || threads > 1024) {
        KD_THROW(invalid_argument, "--threads {} is not in 1..1024", text);
    }
    return threads;
}

/// Nothing: help was asked for.
std::optional<Options> parse(int argc, char** argv) {
    static constexpr option kOptions[] = {
        {"threads", required_argument, nullptr, 't'}, {"filter", required_argument, nullptr, 'f'},
        {"target", required_argument, nullptr, 'i'},  {"json", required_argument, nullptr, 'j'},
        {"help", no_argument, nullptr, 'h'},          {nullptr, 0, nullptr, 0}};
    Options options;
    for (int flag; (flag = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
        switch (flag) {
            case 't':
                options.threads = thread_count(optarg);
                break;
            case 'f':
                options.filter = optarg;
                break;
            case 'i':
                options.target = optarg;
                break;
            case 'j':
                options.json = optarg;
                break;
            case 'h':
                return std::nullopt;
            default:  // getopt has said what is wrong
                KD_THROW(invalid_argument, "see ops --help");
        }
    }
    if (optind < argc) KD_THROW(invalid_argument, "\"{}\" is no option", argv[optind]);
    return options;
}

void run(const Options& options) {
    if (!options.json.empty() && !std::ofstream(options.json, std::ios::app)) {
        KD_THROW(io, "cannot write {}", options.json);
    }
    if (!options.target.empty()) kd::force_dispatch_target(options.target);
    kd::ThreadPool threads(options.threads);
    kd::Arena weights;
    kd::Stream stream{&threads, kd::Kernels::fast, &weights};
    kd::Report report(threads, options.filter);
    report.print_header();
    kd::measure_cases(report, stream);
    kd::measure_model_linear(report, stream);
    kd::measure_model_attention(report, stream);
    if (report.empty()) KD_THROW(invalid_argument, "no case contains \"{}\"", options.filter);
    fmt::print("\nload average {:.2f}\n", kd::load_average());
    if (!options.json.empty()) report.write(options.json);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::optional<Options> options = parse(argc, argv);
        if (!options.has_value()) {
            fmt::print("{}", kHelp);
            return 0;
        }
        run(*options);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
    }
    return 1;
}
