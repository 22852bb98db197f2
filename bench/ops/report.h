// The rows of the table: what was timed, against the ceilings.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/ceilings.h"
#include "ops/timing.h"

namespace kd {

/// Which arithmetic an op's operations are held against.
enum class Arithmetic { fp32, int8 };

/// What one call (or one walk over a model's matrices) reads and writes, and computes.
struct Work {
    double bytes = 0;
    double operations = 0;
    Arithmetic arithmetic = Arithmetic::fp32;
};

class Report {
  public:
    /// Measures the ceilings.
    Report(ThreadPool& threads, std::string filter);

    /// Whether "op case" contains the filter.
    bool wants(std::string_view op, std::string_view name) const;
    /// Prints the row at once.
    void add(std::string_view op, std::string_view name, const Work& work, const Timing& timing);

    bool empty() const { return rows_.empty(); }
    /// The machine and the ceilings, and the titles of the table.
    void print_header() const;
    /// {"schema", "commit", "device", "threads", "target", "load_average": [before, after],
    /// "ceilings", "rows"}. Throws kd::Error if the file cannot be written.
    void write(const std::string& path) const;

  private:
    struct Row {
        std::string op;
        std::string name;
        Timing timing;
        double gb_s;
        double gop_s;
        double of_read;
        double of_compute;
    };

    int threads_;
    std::string filter_;
    double load_before_;
    Ceilings ceilings_;
    std::vector<Row> rows_;
};

}  // namespace kd
