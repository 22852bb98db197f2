# Run by the target kd_version: writes HEADER from version.h.in with the commit of SOURCE.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
                OUTPUT_VARIABLE KDTREE_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT KDTREE_COMMIT)
  set(KDTREE_COMMIT unknown)
endif()
configure_file(${SOURCE}/cmake/version.h.in ${HEADER})
