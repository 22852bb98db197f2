# The CUDA build. Target kdtree_cuda: everything that nvcc compiles, and what links it: the library
# kdtree_kernels, its tests, its benchmark, the C example. Beside each object stands ptxas's report
# of its registers, spills and shared memory (X.o.ptxas), which tools/check_ptxas.py reads.

set(CMAKE_CUDA_ARCHITECTURES 90a-real 120a-real)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/nvcc_with_report.py)
enable_language(CUDA C)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: 13.0 or newer is needed")
endif()
find_package(CUDAToolkit REQUIRED)
include(GNUInstallDirs)

function(kd_cuda_compile_options target)
  # CMake 3.25 knows no C++20 for CUDA: not required of it, so dropped silently, and passed by hand.
  set_target_properties(${target} PROPERTIES CUDA_STANDARD_REQUIRED OFF)
  # --expt-relaxed-constexpr: the constexpr functions of base/ and of <span> run on the device.
  # No -Wpedantic: nvcc's own intermediate code does not pass it.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -Xptxas=-v
    -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-ffp-contract=off>)
  if(KDTREE_RACECHECK)
    target_compile_definitions(${target} PRIVATE KDT_ARRIVE_ALL_LANES)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  endif()
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
endfunction()

add_custom_target(kdtree_cuda)
function(kd_cuda_objects name)
  add_library(${name} OBJECT ${ARGN})
  kd_cuda_compile_options(${name})
  # Header-only: libkdtree_kernels.so must not need libfmt.so.
  target_link_libraries(${name} PRIVATE fmt::fmt-header-only)
  add_dependencies(kdtree_cuda ${name})
endfunction()

# A program of .cpp and .cu files. It may be copied elsewhere together with the library.
function(kd_cuda_program name)
  add_executable(${name} ${ARGN})
  kd_cuda_compile_options(${name})
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Werror -ffp-contract=off
    -Wno-restrict>)  # GCC 12 sees overlaps in std::string that are not there (GCC bug 105651)
  target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  target_link_options(${name} PRIVATE -Wl,--as-needed)
  set_target_properties(${name} PROPERTIES BUILD_RPATH_USE_ORIGIN ON)
  add_dependencies(kdtree_cuda ${name})
endfunction()

# --- libkdtree_kernels.so -------------------------------------------------------------------------
# The one function that names the commit of the build; the version header is written at every build.
set(kernels_version ${CMAKE_BINARY_DIR}/generated/kernels_version.cpp)
file(CONFIGURE OUTPUT ${kernels_version} CONTENT [[
#include "kdtree/kernels.h"
#include "kdtree_version.h"

const char* kdt_kernels_version(void) { return KDTREE_VERSION " (" KDTREE_COMMIT ")"; }
]] @ONLY)

file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.cu)
kd_cuda_objects(kd_kernels_cuda ${cuda_kernels} ${KD_POOL_SOURCES} ${kernels_version})
add_dependencies(kd_kernels_cuda kd_version)
target_include_directories(kd_kernels_cuda PRIVATE ${CMAKE_BINARY_DIR}/generated)
set_target_properties(kd_kernels_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)

# The CUDA runtime is linked statically: the library needs the driver and libstdc++, nothing else.
add_library(kdtree_kernels SHARED $<TARGET_OBJECTS:kd_kernels_cuda>)
target_include_directories(kdtree_kernels INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(kdtree_kernels PRIVATE CUDA::cudart_static)
set(exports ${PROJECT_SOURCE_DIR}/cmake/kdtree_kernels.map)
target_link_options(kdtree_kernels PRIVATE
  -Wl,--version-script=${exports} -Wl,--no-undefined -Wl,--exclude-libs,ALL)
set_target_properties(kdtree_kernels PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports}
  LINKER_LANGUAGE CXX)
add_dependencies(kdtree_cuda kdtree_kernels)

set(pkg_config_file ${CMAKE_BINARY_DIR}/kdtree-kernels.pc)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kdtree-kernels.pc.in ${pkg_config_file} @ONLY)
install(TARGETS kdtree_kernels LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/kdtree/kernels.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kdtree)
install(FILES ${pkg_config_file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# --- what uses it ---------------------------------------------------------------------------------
file(GLOB cuda_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda/*_compile.cu)
kd_cuda_objects(kd_compile_checks_cuda ${cuda_tests})

# Tests that need a device: label gpu, listed when CTest runs, not when the program was built. They
# link the objects, not the library, to reach inside it.
file(GLOB gpu_tests CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/tests/kernels_gpu/*.cpp ${PROJECT_SOURCE_DIR}/tests/kernels_gpu/*.cu)
if(KDTREE_TESTS AND gpu_tests)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  kd_cuda_program(kernels_gpu_tests ${gpu_tests})
  target_include_directories(kernels_gpu_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(kernels_gpu_tests PRIVATE
    kd_kernels_cuda kd_kernels kd_cases GTest::gtest_main)
  gtest_discover_tests(kernels_gpu_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS gpu TIMEOUT 900)
endif()

file(GLOB attn_bench CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/bench/attn_verify/*.cpp ${PROJECT_SOURCE_DIR}/bench/attn_verify/*.cu)
if(KDTREE_BENCH AND attn_bench)
  kd_cuda_program(bench_attn_verify ${attn_bench})
  set_target_properties(bench_attn_verify PROPERTIES
    OUTPUT_NAME attn_verify RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  add_dependencies(bench_attn_verify kd_version)
  target_include_directories(bench_attn_verify PRIVATE
    ${PROJECT_SOURCE_DIR}/bench ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(bench_attn_verify PRIVATE
    kdtree_kernels kd_kernels kd_cases nlohmann_json::nlohmann_json)
endif()
if(KDTREE_BENCH)
  kd_cuda_program(bench_kv_move ${PROJECT_SOURCE_DIR}/bench/kv_move/kv_move.cu)
  set_target_properties(bench_kv_move PROPERTIES
    OUTPUT_NAME kv_move RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  add_dependencies(bench_kv_move kd_version)
  target_include_directories(bench_kv_move PRIVATE ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(bench_kv_move PRIVATE kdtree_kernels)
endif()
if(KDTREE_BENCH)
  file(GLOB kv_layout_bench CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/bench/kv_layout/*.cpp ${PROJECT_SOURCE_DIR}/bench/kv_layout/*.cu)
  set(attn_verify ${PROJECT_SOURCE_DIR}/bench/attn_verify)
  kd_cuda_program(bench_kv_layout ${kv_layout_bench}
    ${attn_verify}/cases.cpp ${attn_verify}/data.cu ${attn_verify}/device.cpp)
  set_target_properties(bench_kv_layout PROPERTIES
    OUTPUT_NAME kv_layout RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(bench_kv_layout PRIVATE ${PROJECT_SOURCE_DIR}/bench)
  target_link_libraries(bench_kv_layout PRIVATE kdtree_kernels nlohmann_json::nlohmann_json)
endif()

add_executable(verify_from_c ${PROJECT_SOURCE_DIR}/examples/verify_from_c.c)
set_target_properties(verify_from_c PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples BUILD_RPATH_USE_ORIGIN ON)
target_compile_options(verify_from_c PRIVATE -Wall -Wextra -Wshadow -Werror)
target_link_libraries(verify_from_c PRIVATE kdtree_kernels CUDA::cudart_static m)
add_dependencies(kdtree_cuda verify_from_c)
