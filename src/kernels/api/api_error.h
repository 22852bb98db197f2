// Errors of the CUDA runtime as statuses of the C ABI.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/api_status.h"

namespace kd::api {

/// KDT_OK, or the runtime's error as KDT_CUDA_ERROR (cudaErrorNotSupported: KDT_UNSUPPORTED).
kdt_status status_of(cudaError_t error, const char* doing);

}  // namespace kd::api
