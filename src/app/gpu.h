// NVIDIA devices, by the driver's library if it is there: nothing is linked against it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kd {

struct GpuDevice {
    std::string name;
    int64_t memory_bytes = 0;
    int32_t major = 0;  // compute capability
    int32_t minor = 0;
};

struct GpuReport {
    std::string driver;   // version; empty: no NVIDIA driver is loaded
    std::string problem;  // why a loaded driver cannot be used; empty: it can, or there is none
    std::vector<GpuDevice> devices;
};

/// Creates no context on any device.
GpuReport read_gpus();

/// The architecture of our CUDA kernels that this device runs ("sm_90a"); empty: there is none.
std::string kernel_architecture(const GpuDevice& device);

}  // namespace kd
