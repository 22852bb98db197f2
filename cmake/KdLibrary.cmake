# libkdtree.so: the engine behind the C ABI of include/kdtree/kdtree.h, and what is installed.

# The ABI's calls by themselves: programs without a shared library (the fuzzers) link them.
file(GLOB api CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/engine/api/*.cpp)
add_library(kd_api STATIC ${api})
kd_compile_options(kd_api)
set_target_properties(kd_api PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(kd_api PUBLIC ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(kd_api PUBLIC kd_engine)

# clang gives its sanitizers to programs only, so the fuzzers link the archive.
if(KDTREE_FUZZ)
  return()
endif()

set(exports ${PROJECT_SOURCE_DIR}/cmake/kdtree.map)
add_library(kdtree_library SHARED $<TARGET_OBJECTS:kd_api>)
target_include_directories(kdtree_library INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(kdtree_library PRIVATE kd_engine)
kd_sanitize(kdtree_library)
# A host that links another build of these libraries shall not bind ours to its own.
target_link_options(kdtree_library PRIVATE
  -Wl,--version-script=${exports} -Wl,--no-undefined -Wl,--exclude-libs,ALL)
set_target_properties(kdtree_library PROPERTIES
  OUTPUT_NAME kdtree VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${exports} LINKER_LANGUAGE CXX)

# Relative to itself: cmake --install --prefix and a moved folder keep it right. What the library needs
# (libfmt, libspdlog, libpcre2, libutf8proc) it names itself; nobody else links to it.
file(RELATIVE_PATH pkg_config_prefix
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(pkg_config_file ${CMAKE_BINARY_DIR}/kdtree.pc)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kdtree.pc.in ${pkg_config_file} @ONLY)
install(TARGETS kdtree_library LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/kdtree/kdtree.h
              ${PROJECT_SOURCE_DIR}/include/kdtree/engine.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kdtree)
install(FILES ${pkg_config_file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
