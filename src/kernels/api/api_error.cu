#include "kernels/api/api_error.h"

namespace kd::api {

kdt_status status_of(cudaError_t error, const char* doing) {
    if (error == cudaSuccess) return KDT_OK;
    cudaGetLastError();  // it is reported now: not by the next call too
    if (error == cudaErrorNotSupported) {
        return fail(KDT_UNSUPPORTED, "%s: no kernel of this build serves it", doing);
    }
    return fail(KDT_CUDA_ERROR, "%s: %s (%s)", doing, cudaGetErrorName(error),
                cudaGetErrorString(error));
}

}  // namespace kd::api
