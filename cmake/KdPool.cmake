# libkdtree_pool.so: the page pool of include/kdtree/kernels.h by itself, for hosts on machines where
# the CUDA kernels are not built. libkdtree_kernels.so has the same calls.

# No CUDA in them; KdCuda.cmake compiles them into its library as well.
set(KD_POOL_SOURCES base/check.cpp kernels/api/api_status.cpp kv/bit_tree.cpp kv/free_pages.cpp
  kv/api/pool_api.cpp)
list(TRANSFORM KD_POOL_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/)

# clang gives its sanitizers to programs only.
if(KDTREE_FUZZ)
  return()
endif()

set(exports ${PROJECT_SOURCE_DIR}/cmake/kdtree_kernels.map)
add_library(kdtree_pool SHARED ${KD_POOL_SOURCES})
kd_compile_options(kdtree_pool)
target_include_directories(kdtree_pool PRIVATE ${PROJECT_SOURCE_DIR}/include)
# Header-only: the library needs libstdc++ and nothing else.
target_link_libraries(kdtree_pool PRIVATE fmt::fmt-header-only)
target_link_options(kdtree_pool PRIVATE
  -Wl,--version-script=${exports} -Wl,--no-undefined -Wl,--exclude-libs,ALL)
set_target_properties(kdtree_pool PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports})
install(TARGETS kdtree_pool LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
