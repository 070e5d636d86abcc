# Writes OUT from build_info.cc.in, and only when it changes. Run at every build.
find_package(Git QUIET)
set(COMMIT unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=10 HEAD WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(COMMIT ${commit})
    execute_process(COMMAND ${GIT_EXECUTABLE} diff --quiet HEAD WORKING_DIRECTORY ${SOURCE}
                    ERROR_QUIET RESULT_VARIABLE changed)
    if(changed)
      string(APPEND COMMIT "+")
    endif()
  endif()
endif()
configure_file(${SOURCE}/common/config/build_info.cc.in ${OUT} @ONLY)
