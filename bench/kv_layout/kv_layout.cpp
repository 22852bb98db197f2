// Times reads of KV caches whose slots are more or less contiguous; see --help.
#include <cstdio>
#include <exception>

#include "kv_layout/measure.h"

namespace {

using namespace kd::kv_layout;
using kd::bench::Case;

void list_layouts(const char* title, const Sequences& sequences,
                  const std::vector<Layout>& layouts) {
    printf("%s: %d requests, %zu positions, %d rows, pool of %d slots\n", title,
           sequences.requests(), sequences.row.size(), sequences.rows, layouts.front().pool_slots);
    for (const Layout& layout : layouts) {
        check_layout(sequences, layout);
        const kd::Fragmentation counted = fragmentation_of(sequences, layout);
        printf("  %-24s page %2d, %lld runs, mean %.2f, %.1f %% of %lld tiles contiguous\n",
               label(layout).c_str(), layout.page_size, static_cast<long long>(counted.runs),
               counted.mean_run(), 100 * counted.contiguous_tiles(),
               static_cast<long long>(counted.tiles));
    }
}

Sequences sequences_for(const Case& c) {
    return sequences_of(c.batch, c.context);
}

std::vector<Layout> made_layouts(const Options& options, const Sequences& sequences,
                                 bool with_pages) {
    const int32_t slots = pool_slots_for(sequences.rows, options.pool_slots);
    std::vector<Layout> layouts = layouts_of(sequences, slots, with_pages, options.quick);
    for (const Layout& layout : layouts) check_layout(sequences, layout);
    return layouts;
}

std::vector<Layout> table_layouts(const Table& table) {
    const Layout base = whole(table.sequences, table.layout.pool_slots);
    return {base, table.layout, base};
}

void list(const Options& options, const std::vector<Table>& tables) {
    const Sequences probed = sequences_of(1, kProbeTokens);
    list_layouts("probe", probed, made_layouts(options, probed, false));
    for (const Case& c : attention_cases(options.quick)) {
        const Sequences sequences = sequences_for(c);
        const std::string title = std::string(op_name(c)) + " " + shape_name(c) + " " +
                                  kd::bench::format_name(c.kv_format);
        list_layouts(title.c_str(), sequences, made_layouts(options, sequences, true));
    }
    for (const Table& table : tables) {
        list_layouts("table", table.sequences, table_layouts(table));
    }
}

class Run {
  public:
    explicit Run(const Options& options) : options_(options), bench_(options) { save(); }

    void probe(const Sequences& sequences, const std::vector<Layout>& layouts) {
        for (const RowShape shape :
             {RowShape::mla_bf16, RowShape::mla_fp8_656, RowShape::gqa_bf16}) {
            for (const std::vector<Row>& rows : bench_.probe(shape, sequences, layouts)) add(rows);
        }
    }
    void attention(const Case& c, const Sequences& sequences, const std::vector<Layout>& layouts) {
        add(bench_.attention(c, sequences, layouts));
    }
    void move() {
        add(bench_.move(61, 1152));
        add(bench_.move(64, 1024));
    }
    bool good() const { return report_.good(); }

  private:
    void add(const std::vector<Row>& rows) {
        report_.add(rows);
        save();
    }
    /// Before the first case, so that a wrong path costs nothing, and after each, so that a run
    /// that is cut short leaves what it has.
    void save() const {
        if (!options_.json.empty()) report_.write(options_.json);
    }

    Options options_;
    Report report_;
    Bench bench_;
};

bool run(const Options& options, const std::vector<Table>& tables) {
    Run run(options);
    if (options.move) run.move();
    if (options.probe) {
        const Sequences sequences = sequences_of(1, kProbeTokens);
        run.probe(sequences, made_layouts(options, sequences, false));
        for (const Table& table : tables) run.probe(table.sequences, table_layouts(table));
    }
    if (options.attention) {
        for (const Case& c : attention_cases(options.quick)) {
            const Sequences sequences = sequences_for(c);
            run.attention(c, sequences, made_layouts(options, sequences, true));
        }
        for (const Table& table : tables) {
            for (const Case& c : table_cases(table.sequences)) {
                run.attention(c, table.sequences, table_layouts(table));
            }
        }
    }
    return run.good();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::optional<Options> options = parse(argc, argv);
        if (!options) {
            printf("%s", kHelp);
            return 0;
        }
        std::vector<Table> tables;
        if (!options->tables.empty()) {
            tables = read_tables(options->tables, options->pool_slots);
        }
        if (options->list) {
            list(*options, tables);
            return 0;
        }
        return run(*options, tables) ? 0 : 1;
    } catch (const std::exception& error) {
        fprintf(stderr, "error: %s\n", error.what());
    }
    return 1;
}
