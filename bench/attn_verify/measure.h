// Runs one case: makes its data, checks it if asked to, times it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attn_verify/cases.h"
#include "attn_verify/device.h"

namespace kd::bench {

struct Result {
    double us = 0;  // median of a layer: attention and combine
    double min_us = 0;
    double iqr_us = 0;  // between the quartiles
    double plan_us = 0;
    double splits = 0;  // partials by row tiles, or units where nothing was split
    int32_t layers = 0;
    int32_t pools = 0;  // caches that the layers rotate through
    std::optional<double> rel_l2;
};

/// The library refuses the case; what() says why.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Measurement {
  public:
    /// Allocates for the largest of the cases, and at least 4 GiB for the read ceiling.
    explicit Measurement(const Options& options);

    const DeviceMemory& memory() const { return *memory_; }
    const Stream& stream() const { return stream_; }

    /// `layer_floor_us` decides how many layers a graph has. Throws Refused.
    Result run(const Case& c, double layer_floor_us);

  private:
    struct Layout;

    kdt_attn_shape shape_of(const Case& c) const;
    /// Pools of the case: more than three times the L2 in all, four at least.
    int32_t pools_of(const Case& c) const;
    Layout layout(const Case& c, std::byte* base) const;
    kdt_attn_batch fill(const Case& c, const Layout& at);
    void verify(const Case& c, const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                const Layout& at, int32_t pool);
    double relative_l2(const Case& c, const kdt_attn_batch& batch, const Layout& at);
    double splits_used(const Case& c, const Layout& at) const;

    Options options_;
    size_t l2_bytes_ = 0;
    Stream stream_;
    std::optional<DeviceMemory> memory_;
};

}  // namespace kd::bench
