# kd_module(NAME LIBRARIES ...): a static library kd_NAME of every .cpp below src/NAME.
# kd_compile_options(TARGET): the flags of our own code.
# kd_compile_cheaply(TARGET): for code that is never hot.
# kd_c_compile_options(TARGET): the same for what is written in C against include/kdtree.

# Every part of a program needs the same sanitizer.
function(kd_sanitize target)
  if(NOT KDTREE_SANITIZE)
    return()
  elseif(KDTREE_SANITIZE STREQUAL "thread")
    set(options -fsanitize=thread)
  elseif(KDTREE_SANITIZE STREQUAL "address" OR KDTREE_SANITIZE STREQUAL "ON")
    set(options -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  else()
    message(FATAL_ERROR "KDTREE_SANITIZE is ${KDTREE_SANITIZE}, not OFF, address or thread")
  endif()
  target_compile_options(${target} PRIVATE ${options} -fno-omit-frame-pointer)
  target_link_options(${target} PRIVATE ${options})
endfunction()

function(kd_c_compile_options target)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Werror)
  kd_sanitize(${target})
endfunction()

function(kd_compile_options target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -Wno-missing-field-initializers  # designated initialisers leave defaults out on purpose
    -Werror
    # A product and a sum are two roundings unless the source says fma: the same on every machine.
    -ffp-contract=off)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  kd_sanitize(${target})
  # Under its sanitizers GCC draws false warnings (uninitialized values, overlaps), others with every
  # change of a source. The Release build sees the same sources, and there they are errors.
  if(KDTREE_SANITIZE)
    target_compile_options(${target} PRIVATE -Wno-error)
  endif()
  if(KDTREE_FUZZ)
    # PUBLIC at link time: whatever uses an instrumented archive needs the sanitizers' run time.
    set(sanitizers address,undefined)
    target_compile_options(${target} PRIVATE
      -fsanitize=fuzzer-no-link,${sanitizers} -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer
      -Wno-shadow)  # clang sees one in a constructor's parameters named as a field, GCC does not
    target_link_options(${target} PUBLIC -fsanitize=${sanitizers})
  endif()
endfunction()

# For what is never hot (the commands and their arguments, tests of code that is). In a Release build
# -O1 compiles in two thirds to four fifths of the time of -O3; under sanitizers -O0 in half to three
# quarters of the time of -O1.
function(kd_compile_cheaply target)
  if(KDTREE_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

function(kd_module name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_cases\\.cpp$|/cuda/|/(engine|kernels)/api/")
  add_library(kd_${name} STATIC ${sources})
  if(name STREQUAL kv)
    # The pool's C ABI and the statuses of the kernels' one, which it returns, need no CUDA: here
    # tests and benchmarks of a build without it find them.
    target_sources(kd_kv PRIVATE ${PROJECT_SOURCE_DIR}/src/kernels/api/api_status.cpp)
    target_include_directories(kd_kv PRIVATE ${PROJECT_SOURCE_DIR}/include)
  endif()
  kd_compile_options(kd_${name})
  # What ends in libkdtree.so stays inside it: only the C ABI is exported.
  set_target_properties(kd_${name} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(kd_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(kd_${name} PUBLIC ${ARG_LIBRARIES})
endfunction()

# The op case lists serve tests and benchmarks, never the shipped library.
function(kd_cases_library)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*_cases.cpp)
  add_library(kd_cases STATIC ${sources})
  kd_compile_options(kd_cases)
  target_link_libraries(kd_cases PUBLIC kd_kernels)
endfunction()

# build/<preset>/generated/kdtree_version.h with the version and the commit, looked up at every build
# and rewritten only when it changed.
function(kd_version_header)
  set(header ${CMAKE_BINARY_DIR}/generated/kdtree_version.h)
  add_custom_target(kd_version
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DHEADER=${header}
            -DPROJECT_VERSION=${PROJECT_VERSION} -P ${PROJECT_SOURCE_DIR}/cmake/version.cmake
    BYPRODUCTS ${header}
    COMMENT "")
  add_dependencies(kd_engine kd_version)
  target_include_directories(kd_engine PUBLIC ${CMAKE_BINARY_DIR}/generated)
endfunction()
