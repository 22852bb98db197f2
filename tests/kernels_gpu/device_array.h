// Device memory of a test, filled from the host and read back whole.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace kd {

inline testing::AssertionResult ok(cudaError_t error) {
    if (error == cudaSuccess) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << cudaGetErrorName(error) << ": " << cudaGetErrorString(error);
}

template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(const std::vector<T>& values) : values_(values.size()) {
        EXPECT_TRUE(ok(cudaMalloc(&data_, bytes() + 16)));  // an empty array has an address as well
        write(values);
    }
    ~DeviceArray() { cudaFree(data_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    T* data() const { return static_cast<T*>(data_); }
    size_t bytes() const { return values_ * sizeof(T); }
    void write(const std::vector<T>& values) const {
        EXPECT_EQ(values.size(), values_);
        EXPECT_TRUE(ok(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice)));
    }
    /// Waits for everything launched.
    std::vector<T> read() const {
        std::vector<T> values(values_);
        EXPECT_TRUE(ok(cudaDeviceSynchronize()));
        EXPECT_TRUE(ok(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost)));
        return values;
    }

  private:
    size_t values_;
    void* data_ = nullptr;
};

/// KDT_GPU_CASES=sanitizer: of the case lists, as few as touch every kernel instance, each run
/// once, and nothing that the kernels must not read is initialised, so that initcheck sees it.
/// Tests that repeat instances in steps of their own are left out by tools/run_gpu_tests.sh.
inline bool reduced_cases() {
    const char* cases = std::getenv("KDT_GPU_CASES");
    return cases != nullptr && std::string_view(cases) == "sanitizer";
}
/// KDT_GPU_REPEATS, or 200: how often a test that hunts races repeats.
inline int32_t race_repeats() {
    const char* repeats = std::getenv("KDT_GPU_REPEATS");
    if (repeats != nullptr) return std::atoi(repeats);
    return reduced_cases() ? 2 : 200;
}

/// The place of the first difference, as byte and as [row, byte in it].
template <class T>
testing::AssertionResult same_bytes(const std::vector<T>& got, const std::vector<T>& expected,
                                    int64_t row_bytes) {
    if (got.size() != expected.size()) {
        return testing::AssertionFailure() << got.size() << " values and " << expected.size();
    }
    const auto* a = reinterpret_cast<const uint8_t*>(got.data());
    const auto* b = reinterpret_cast<const uint8_t*>(expected.data());
    int64_t differences = 0;
    int64_t first = 0;
    for (int64_t i = static_cast<int64_t>(got.size() * sizeof(T)) - 1; i >= 0; --i) {
        if (a[i] == b[i]) continue;
        ++differences;
        first = i;
    }
    if (differences == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << differences << " bytes differ, first [" << first / row_bytes << ", "
           << first % row_bytes << "]: " << int{a[first]} << ", expected " << int{b[first]};
}

/// Tests of this kind need a CUDA device and are skipped without one.
class GpuTest : public testing::Test {
  protected:
    void SetUp() override {
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
            GTEST_SKIP() << "no CUDA device";
        }
    }
};

}  // namespace kd
