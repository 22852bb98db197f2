// What the bench needs of the CUDA runtime: errors as exceptions, one block of memory, graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace kd::bench {

inline void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// Device memory, allocated once for all cases.
class DeviceMemory {
  public:
    explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
        check(cudaMalloc(&base_, bytes), "cudaMalloc");
    }
    ~DeviceMemory() { cudaFree(base_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    std::byte* base() const { return static_cast<std::byte*>(base_); }
    size_t bytes() const { return bytes_; }

  private:
    void* base_ = nullptr;
    size_t bytes_;
};

class Stream {
  public:
    Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    cudaStream_t get() const { return stream_; }
    void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

  private:
    cudaStream_t stream_ = nullptr;
};

/// Captures what `launch` puts on the stream; replays it between events.
class Graph {
  public:
    Graph(const Stream& stream, const std::function<void()>& launch);
    ~Graph() { cudaGraphExecDestroy(exec_); }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    /// Microseconds of each of `replays` replays, after `warm_up` that are not timed.
    std::vector<double> time_us(int32_t warm_up, int32_t replays) const;

  private:
    cudaStream_t stream_;
    cudaGraphExec_t exec_ = nullptr;
};

/// The value below which the given share of the values lies (0.5: the median), interpolated.
double quantile(std::vector<double> values, double share);

}  // namespace kd::bench
