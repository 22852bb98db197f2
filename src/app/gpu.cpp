#include "app/gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

namespace kd {

namespace {

// From the CUDA driver API, which keeps them for ever. 0 is success.
using Status = int;
using Init = Status (*)(unsigned flags);
using DeviceCount = Status (*)(int* count);
using DeviceGet = Status (*)(int* device, int ordinal);
using DeviceName = Status (*)(char* name, int length, int device);
using DeviceMemory = Status (*)(size_t* bytes, int device);
using DeviceAttribute = Status (*)(int* value, int attribute, int device);
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr Status kNoDevice = 100;

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ..." -> "580.95.05".
std::string driver_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string word;
    while (file >> word) {
        const bool version = std::count(word.begin(), word.end(), '.') >= 1 &&
                             word.find_first_not_of("0123456789.") == std::string::npos;
        if (version) return word;
    }
    return {};
}

struct Closer {
    void operator()(void* library) const { dlclose(library); }
};

}  // namespace

GpuReport read_gpus() {
    GpuReport report;
    report.driver = driver_version();
    const std::unique_ptr<void, Closer> library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
    if (library == nullptr) {
        if (!report.driver.empty()) report.problem = "libcuda.so.1 cannot be loaded";
        return report;
    }
    const auto find = [&]<class Function>(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library.get(), name));
        return function != nullptr;
    };
    Init init = nullptr;
    DeviceCount device_count = nullptr;
    DeviceGet device_get = nullptr;
    DeviceName device_name = nullptr;
    DeviceMemory device_memory = nullptr;
    DeviceAttribute attribute = nullptr;
    if (!find(init, "cuInit") || !find(device_count, "cuDeviceGetCount") ||
        !find(device_get, "cuDeviceGet") || !find(device_name, "cuDeviceGetName") ||
        !find(device_memory, "cuDeviceTotalMem_v2") || !find(attribute, "cuDeviceGetAttribute")) {
        report.problem = "libcuda.so.1 lacks functions of the driver API";
        return report;
    }
    int count = 0;
    Status status = init(0);
    if (status == 0) status = device_count(&count);
    if (status != 0) {
        if (status != kNoDevice) report.problem = fmt::format("the driver says error {}", status);
        return report;
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        int device = 0;
        std::array<char, 256> name{};
        size_t bytes = 0;
        GpuDevice found;
        if (device_get(&device, ordinal) != 0 ||
            device_name(name.data(), static_cast<int>(name.size()) - 1, device) != 0 ||
            device_memory(&bytes, device) != 0 ||
            attribute(&found.major, kCapabilityMajor, device) != 0 ||
            attribute(&found.minor, kCapabilityMinor, device) != 0) {
            report.problem = fmt::format("device {} does not answer", ordinal);
            continue;
        }
        found.name = name.data();
        found.memory_bytes = static_cast<int64_t>(bytes);
        report.devices.push_back(found);
    }
    return report;
}

std::string kernel_architecture(const GpuDevice& device) {
    // Code for an architecture with an "a" runs on exactly that one.
    if (device.minor == 0 && (device.major == 9 || device.major == 12)) {
        return fmt::format("sm_{}0a", device.major);
    }
    return {};
}

}  // namespace kd
