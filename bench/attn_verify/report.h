// The table on standard output and the JSON of bench/results/attn_verify-<device>.json.
#pragma once

#include <string>
#include <vector>

#include "attn_verify/cases.h"
#include "attn_verify/ceilings.h"
#include "attn_verify/measure.h"

namespace kd::bench {

class Report {
  public:
    Report(const Options& options, Ceilings ceilings);

    /// max(min bytes / read ceiling, flops / bf16 ceiling).
    double floor_us(const Case& c) const;
    void add(const Case& c, const Result& result);
    void refused(const Case& c, const char* why);
    /// False if --check found a case wrong, or one was refused.
    bool good() const { return good_; }
    void write(const std::string& path) const;

  private:
    std::string row_json(const Case& c, const Result& result) const;

    Options options_;
    Ceilings ceilings_;
    std::string device_, arch_, commit_;
    std::vector<std::string> rows_;
    bool good_ = true;
};

/// The most that a relative L2 difference may be: of bf16 rounding in P and the output.
double rel_l2_limit(kdt_kv_format format);

}  // namespace kd::bench
