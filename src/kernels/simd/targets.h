// Which instruction sets the fast kernels are compiled for. Included before any Highway header, in
// every file that uses one, so that all agree.
//
// AVX3_DL is AVX-512 with the int8 dot product (Ice Lake, Zen 4 and later); Highway 1.0.3 emits it
// on request only. SSSE3 without SSE4 has no users. What remains: AVX3_DL, AVX3, AVX2, SSE4 and a
// portable scalar fallback.
#pragma once

#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
