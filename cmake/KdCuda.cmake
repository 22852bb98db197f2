# The CUDA build. Target kdtree_cuda: everything that nvcc compiles. Beside each object stands
# ptxas's report of its registers, spills and shared memory (X.o.ptxas), which
# tools/check_ptxas.py reads.

set(CMAKE_CUDA_ARCHITECTURES 90a-real 120a-real)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/nvcc_with_report.py)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: 13.0 or newer is needed")
endif()

function(kd_cuda_compile_options target)
  # CMake 3.25 knows no C++20 for CUDA: not required of it, so dropped silently, and passed by hand.
  set_target_properties(${target} PROPERTIES CUDA_STANDARD_REQUIRED OFF)
  # --expt-relaxed-constexpr: the constexpr functions of base/ and of <span> run on the device.
  # No -Wpedantic: nvcc's own intermediate code does not pass it.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -Xptxas=-v -lineinfo
    -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-ffp-contract=off>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
endfunction()

add_custom_target(kdtree_cuda)
function(kd_cuda_objects name)
  add_library(${name} OBJECT ${ARGN})
  kd_cuda_compile_options(${name})
  target_link_libraries(${name} PRIVATE fmt::fmt)
  add_dependencies(kdtree_cuda ${name})
endfunction()

file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.cu)
if(cuda_kernels)
  kd_cuda_objects(kd_kernels_cuda ${cuda_kernels})
endif()
file(GLOB cuda_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda/*_compile.cu)
kd_cuda_objects(kd_compile_checks_cuda ${cuda_tests})
