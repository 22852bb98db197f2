// Times allocation and free of KV pages, by FreePages and through the C ABI of the page pool; see
// --help.
#include <fmt/format.h>
#include <getopt.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/processor.h"
#include "base/check.h"
#include "base/error.h"
#include "kdtree/kernels.h"
#include "kdtree_version.h"
#include "kv/free_pages.h"
#include "ops/timing.h"
#include "support/report.h"

namespace kd {

namespace {

constexpr const char* kHelp =
    "usage: kv_alloc [--placement NAME] [--filter TEXT] [--cycles N] [--json FILE]\n"
    "\n"
    "Microseconds a token that allocating and freeing pages of a KV pool costs, one core.\n"
    "\n"
    "  --placement NAME  best_fit (default), sorted or unsorted\n"
    "  --filter TEXT     only rows whose \"via slots page state sequence\" contains TEXT\n"
    "  --cycles N        cycles a row, of which the median is taken (default 5)\n"
    "  --json FILE       write all figures to FILE\n"
    "\n"
    "A cycle allocates until the pool is short and then frees. Sequences: prompts (0.8 to 3 k "
    "tokens\n"
    "each), topup (64 requests grow by one token in turn), topup_batch (the same, one call for "
    "all\n"
    "64; C ABI only), extent (64 requests grow by 64 tokens in turn). With page 16 one page serves "
    "16\n"
    "tokens. States: fresh (all is free, requests are freed whole, in shuffled order), holes (as\n"
    "fresh, but every other page is held by somebody all the time), shuffled (each cycle a random\n"
    "half of all pages comes back, one page a call, so that free runs are short and everywhere).\n"
    "alloc and free are medians of a phase's CPU time by the tokens allocated or freed in it;\n"
    "us/token, the median of their sums, is what the goal of 0.3 at 1 M slots is for.\n";

constexpr int32_t kRequests = 64;
constexpr double kGoalUs = 0.3;
constexpr int32_t kGoalSlots = 1 << 20;

enum class Via { free_pages, c_abi };
enum class State { fresh, holes, shuffled };
enum class Sequence { prompts, topup, topup_batch, extent };

constexpr const char* kViaNames[] = {"FreePages", "C ABI"};
constexpr const char* kStateNames[] = {"fresh", "holes", "shuffled"};
constexpr const char* kSequenceNames[] = {"prompts", "topup", "topup_batch", "extent"};
constexpr const char* kPlacementNames[] = {"unsorted", "sorted", "best_fit"};

struct Case {
    Via via;
    Placement placement;
    int32_t slots;
    int32_t page;
    State state;
    Sequence sequence;

    int32_t pages() const { return slots / page; }
    std::string name() const {
        return fmt::format("{} {} {} {} {}", kViaNames[static_cast<int>(via)], slots, page,
                           kStateNames[static_cast<int>(state)],
                           kSequenceNames[static_cast<int>(sequence)]);
    }
};

/// Medians and, of the sum, the least, over cycles.
struct Row {
    Case test;
    int64_t tokens = 0;  // allocated in the last cycle
    double alloc_us = 0;
    double free_us = 0;
    double us = 0;
    double us_min = 0;
};

class DirectPool {
  public:
    DirectPool(int32_t pages, Placement placement) : free_(pages, placement) {}

    bool extend(int32_t last, int32_t count, int32_t* pages) {
        taken_.clear();
        if (!free_.take(count, last, taken_)) return false;
        std::copy(taken_.begin(), taken_.end(), pages);
        return true;
    }
    void give(const int32_t* pages, int32_t count) {
        free_.give({pages, static_cast<size_t>(count)});
    }

  private:
    FreePages free_;
    std::vector<int32_t> taken_;
};

class AbiPool {
  public:
    AbiPool(int32_t pages, Placement placement) {
        const kdt_pool_options options = {.struct_bytes = sizeof options,
                                          .pages = pages,
                                          .placement = static_cast<int32_t>(placement),
                                          .reserved = 0};
        kdt_pool* pool = nullptr;
        expect_ok(kdt_pool_create(&options, &pool));
        pool_.reset(pool);
    }

    bool extend(int32_t last, int32_t count, int32_t* pages) {
        return done(kdt_pool_extend(pool_.get(), last, count, pages));
    }
    /// One page for every request.
    bool extend_all(const int32_t* lasts, int32_t* pages) {
        return done(kdt_pool_extend_batch(pool_.get(), kRequests, ones_.data(), lasts, pages,
                                          kRequests, offsets_.data()));
    }
    void give(const int32_t* pages, int32_t count) {
        expect_ok(kdt_pool_free(pool_.get(), pages, count));
    }

  private:
    struct Destroy {
        void operator()(kdt_pool* pool) const { kdt_pool_destroy(pool); }
    };
    static void expect_ok(kdt_status status) { KD_CHECK(status == KDT_OK, "{}", kdt_last_error()); }
    static bool done(kdt_status status) {
        if (status != KDT_SHORT) expect_ok(status);
        return status == KDT_OK;
    }

    std::unique_ptr<kdt_pool, Destroy> pool_;
    std::vector<int32_t> ones_ = std::vector<int32_t>(kRequests, 1);
    std::vector<int64_t> offsets_ = std::vector<int64_t>(kRequests + 1);
};

/// Of this thread on its core: what others run meanwhile is not counted.
/// Whoever holds pages: stretches of one array.
struct Holder {
    size_t first = 0;
    int32_t count = 0;
};

template <class Pool>
class Cycle {
  public:
    explicit Cycle(const Case& test)
        : test_(test), pool_(test.pages(), test.placement), held_(room()) {
        if (test.state == State::holes) hold_every_other_page();
        if (test.state == State::shuffled) fill_all();
    }

    /// Tokens allocated, and the seconds of both phases. Shuffled: first free, then allocate.
    struct Result {
        int64_t tokens = 0;
        int64_t freed = 0;
        double alloc_s = 0;
        double free_s = 0;
    };

    Result run() {
        Result result;
        if (test_.state == State::shuffled) {
            free_half(result);
            allocate(result);
            keep_as_everybody();
        } else {
            allocate(result);
            free_whole(result);
        }
        return result;
    }

  private:
    size_t room() const { return static_cast<size_t>(test_.pages()); }

    void hold_every_other_page() {
        std::vector<int32_t> pages(room());
        KD_CHECK(pool_.extend(-1, test_.pages(), pages.data()), "a fresh pool of {}", pages.size());
        std::vector<int32_t> even;
        for (int32_t page = 0; page < test_.pages(); page += 2) even.push_back(page);
        pool_.give(even.data(), static_cast<int32_t>(even.size()));
    }

    void fill_all() {
        everybody_.resize(room());
        KD_CHECK(pool_.extend(-1, test_.pages(), everybody_.data()), "a fresh pool of {}",
                 everybody_.size());
    }

    /// A random half of all pages, one page a call. The other half stays.
    void free_half(Result& result) {
        std::shuffle(everybody_.begin(), everybody_.end(), random_);
        const size_t half = everybody_.size() / 2;
        result.free_s = cpu_seconds_of([&] {
            for (size_t i = half; i < everybody_.size(); ++i) pool_.give(&everybody_[i], 1);
        });
        result.freed = static_cast<int64_t>(everybody_.size() - half) * test_.page;
        everybody_.resize(half);
    }

    void keep_as_everybody() {
        for (const Holder& holder : holders_) {
            const auto begin = held_.begin() + static_cast<ptrdiff_t>(holder.first);
            everybody_.insert(everybody_.end(), begin, begin + holder.count);
        }
        // What was too little for the next request.
        for (int32_t page = -1; pool_.extend(-1, 1, &page);) everybody_.push_back(page);
    }

    void free_whole(Result& result) {
        std::shuffle(holders_.begin(), holders_.end(), random_);
        result.free_s = cpu_seconds_of([&] {
            for (const Holder& holder : holders_) pool_.give(&held_[holder.first], holder.count);
        });
        result.freed = result.tokens;
    }

    void allocate(Result& result) {
        if (test_.sequence == Sequence::prompts) {
            allocate_prompts(result);
        } else if (test_.sequence == Sequence::topup_batch) {
            allocate_batches(result);
        } else {
            const int32_t tokens = test_.sequence == Sequence::topup ? test_.page : 64;
            allocate_in_turn(tokens / test_.page, result);
        }
    }

    void allocate_prompts(Result& result) {
        std::uniform_int_distribution<int32_t> tokens_of(800, 3000);
        std::vector<int32_t> tokens(room() * static_cast<size_t>(test_.page) / 800 + 1);
        for (int32_t& each : tokens) each = tokens_of(random_);
        holders_.clear();
        holders_.reserve(tokens.size());
        size_t used = 0;
        result.alloc_s = cpu_seconds_of([&] {
            for (const int32_t each : tokens) {
                const int32_t count = (each + test_.page - 1) / test_.page;
                if (used + static_cast<size_t>(count) > held_.size()) return;
                if (!pool_.extend(-1, count, &held_[used])) return;
                holders_.push_back({.first = used, .count = count});
                used += static_cast<size_t>(count);
                result.tokens += each;
            }
        });
    }

    /// 64 equal parts of the array, which together may take all that is free.
    void begin_requests() {
        holders_.assign(kRequests, {});
        for (size_t r = 0; r < holders_.size(); ++r) {
            holders_[r].first = r * (held_.size() / kRequests);
        }
    }

    int32_t last_of(const Holder& holder) const {
        return holder.count == 0 ? -1 : held_[holder.first + static_cast<size_t>(holder.count) - 1];
    }

    void allocate_in_turn(int32_t count, Result& result) {
        begin_requests();
        const auto room_each = static_cast<int32_t>(held_.size() / kRequests);
        const int32_t steps = room_each / count;
        int64_t calls = 0;
        result.alloc_s = cpu_seconds_of([&] {
            for (int32_t step = 0; step < steps; ++step) {
                for (Holder& holder : holders_) {
                    int32_t* to = &held_[holder.first + static_cast<size_t>(holder.count)];
                    if (!pool_.extend(last_of(holder), count, to)) return;
                    holder.count += count;
                    calls += 1;
                }
            }
        });
        result.tokens = calls * count * test_.page;
    }

    void allocate_batches(Result& result) {
        if constexpr (requires(Pool pool, int32_t * p) { pool.extend_all(p, p); }) {
            begin_requests();
            const auto steps = static_cast<int32_t>(held_.size() / kRequests);
            std::vector<int32_t> lasts(kRequests, -1);
            std::vector<int32_t> pages(kRequests);
            int64_t calls = 0;
            result.alloc_s = cpu_seconds_of([&] {
                for (int32_t step = 0; step < steps; ++step) {
                    if (!pool_.extend_all(lasts.data(), pages.data())) return;
                    for (size_t r = 0; r < holders_.size(); ++r) {
                        held_[holders_[r].first + static_cast<size_t>(step)] = pages[r];
                        holders_[r].count += 1;
                    }
                    lasts.swap(pages);
                    calls += 1;
                }
            });
            result.tokens = calls * kRequests * test_.page;
        }
    }

    Case test_;
    Pool pool_;
    std::mt19937 random_{1};
    std::vector<int32_t> held_;       // [pages] of all holders
    std::vector<Holder> holders_;     // of this cycle
    std::vector<int32_t> everybody_;  // shuffled: all pages that are taken between two cycles
};

double median_of(std::vector<double> values) {
    return timing_of(std::move(values)).median_ms * 1e-3;
}

template <class Pool>
Row measure_with(const Case& test, int32_t cycles) {
    Cycle<Pool> cycle(test);
    cycle.run();  // touches the memory, and reaches the state that lasts
    Row row = {.test = test};
    std::vector<double> alloc_us;
    std::vector<double> free_us;
    std::vector<double> sum_us;
    for (int32_t i = 0; i < cycles; ++i) {
        const auto result = cycle.run();
        row.tokens = result.tokens;
        alloc_us.push_back(result.alloc_s * 1e6 / static_cast<double>(result.tokens));
        free_us.push_back(result.free_s * 1e6 / static_cast<double>(result.freed));
        sum_us.push_back(alloc_us.back() + free_us.back());
    }
    row.us_min = *std::min_element(sum_us.begin(), sum_us.end());
    row.alloc_us = median_of(std::move(alloc_us));
    row.free_us = median_of(std::move(free_us));
    row.us = median_of(std::move(sum_us));
    return row;
}

std::vector<Case> cases_of(Placement placement, const std::string& filter) {
    std::vector<Case> cases;
    for (const int32_t slots : {1 << 16, 1 << 20, 1 << 22}) {
        for (const int32_t page : {1, 16}) {
            for (const State state : {State::fresh, State::holes, State::shuffled}) {
                for (const Sequence sequence : {Sequence::prompts, Sequence::topup,
                                                Sequence::topup_batch, Sequence::extent}) {
                    for (const Via via : {Via::free_pages, Via::c_abi}) {
                        if (via == Via::free_pages && sequence == Sequence::topup_batch) continue;
                        const Case test = {.via = via,
                                           .placement = placement,
                                           .slots = slots,
                                           .page = page,
                                           .state = state,
                                           .sequence = sequence};
                        if (test.name().find(filter) != std::string::npos) cases.push_back(test);
                    }
                }
            }
        }
    }
    return cases;
}

void print_row(const Row& row) {
    fmt::print("{:<11}{:>9}{:>6}  {:<10}{:<13}{:>10}{:>10.4f}{:>10.4f}{:>10.4f}{:>10.4f}\n",
               kViaNames[static_cast<int>(row.test.via)], row.test.slots, row.test.page,
               kStateNames[static_cast<int>(row.test.state)],
               kSequenceNames[static_cast<int>(row.test.sequence)], row.tokens, row.alloc_us,
               row.free_us, row.us, row.us_min);
    std::fflush(stdout);
}

void write_json(const std::string& path, const std::vector<Row>& rows, int32_t cycles,
                double load_before) {
    nlohmann::ordered_json out = {{"schema", 1},
                                  {"commit", KDTREE_COMMIT},
                                  {"device", processor_name()},
                                  {"load_average", {load_before, load_average()}},
                                  {"cycles", cycles},
                                  {"rows", nlohmann::ordered_json::array()}};
    for (const Row& row : rows) {
        const Case& test = row.test;
        out["rows"].push_back({{"via", test.via == Via::c_abi ? "c_abi" : "free_pages"},
                               {"placement", kPlacementNames[static_cast<int>(test.placement)]},
                               {"slots", test.slots},
                               {"page", test.page},
                               {"state", kStateNames[static_cast<int>(test.state)]},
                               {"sequence", kSequenceNames[static_cast<int>(test.sequence)]},
                               {"tokens", row.tokens},
                               {"alloc_us_per_token", row.alloc_us},
                               {"free_us_per_token", row.free_us},
                               {"us_per_token", row.us},
                               {"us_per_token_min", row.us_min}});
    }
    std::ofstream file(path);
    file << out.dump(1) << "\n";
    if (!file.flush()) KD_THROW(io, "cannot write {}", path);
}

struct Options {
    Placement placement = Placement::best_fit;
    std::string filter;
    int32_t cycles = 5;
    std::string json;
};

Placement placement_named(std::string_view name) {
    for (const Placement each : {Placement::unsorted, Placement::sorted, Placement::best_fit}) {
        if (name == kPlacementNames[static_cast<int>(each)]) return each;
    }
    KD_THROW(invalid_argument, "--placement \"{}\" is not best_fit, sorted or unsorted", name);
}

int32_t cycles_of(const char* text) {
    char* end = nullptr;
    const long cycles = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || cycles < 1 || cycles > 10000) {
        KD_THROW(invalid_argument, "--cycles \"{}\" is not in 1..10000", text);
    }
    return static_cast<int32_t>(cycles);
}

/// Nothing: help was asked for.
std::optional<Options> parse(int argc, char** argv) {
    static constexpr option kOptions[] = {{"placement", required_argument, nullptr, 'p'},
                                          {"filter", required_argument, nullptr, 'f'},
                                          {"cycles", required_argument, nullptr, 'c'},
                                          {"json", required_argument, nullptr, 'j'},
                                          {"help", no_argument, nullptr, 'h'},
                                          {nullptr, 0, nullptr, 0}};
    Options options;
    for (int flag; (flag = getopt_long(argc, argv, "h", kOptions, nullptr)) != -1;) {
        if (flag == 'p') {
            options.placement = placement_named(optarg);
        } else if (flag == 'f') {
            options.filter = optarg;
        } else if (flag == 'c') {
            options.cycles = cycles_of(optarg);
        } else if (flag == 'j') {
            options.json = optarg;
        } else if (flag == 'h') {
            return std::nullopt;
        } else {  // getopt has said what is wrong
            KD_THROW(invalid_argument, "see kv_alloc --help");
        }
    }
    if (optind < argc) KD_THROW(invalid_argument, "\"{}\" is no option", argv[optind]);
    return options;
}

void run(const Options& options) {
    const std::vector<Case> cases = cases_of(options.placement, options.filter);
    if (cases.empty()) KD_THROW(invalid_argument, "no case contains \"{}\"", options.filter);
    const double load_before = load_average();
    fmt::print("{}, placement {}, load average {:.2f}\n\n", processor_name(),
               kPlacementNames[static_cast<int>(options.placement)], load_before);
    fmt::print("{:<11}{:>9}{:>6}  {:<10}{:<13}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "via", "slots",
               "page", "state", "sequence", "tokens", "alloc", "free", "us/token", "min");
    std::vector<Row> rows;
    for (const Case& test : cases) {
        rows.push_back(test.via == Via::c_abi ? measure_with<AbiPool>(test, options.cycles)
                                              : measure_with<DirectPool>(test, options.cycles));
        print_row(rows.back());
    }
    const Row* worst = nullptr;
    for (const Row& row : rows) {
        if (row.test.slots == kGoalSlots && (worst == nullptr || row.us > worst->us)) worst = &row;
    }
    if (worst != nullptr) {
        fmt::print("\nworst at 1 M slots: {:.4f} us/token ({}); goal: under {}\n", worst->us,
                   worst->test.name(), kGoalUs);
    }
    fmt::print("load average {:.2f}\n", load_average());
    if (!options.json.empty()) write_json(options.json, rows, options.cycles, load_before);
}

}  // namespace

}  // namespace kd

int main(int argc, char** argv) {
    try {
        const std::optional<kd::Options> options = kd::parse(argc, argv);
        if (options.has_value()) {
            kd::run(*options);
        } else {
            fmt::print("{}", kd::kHelp);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
    }
    return 1;
}
