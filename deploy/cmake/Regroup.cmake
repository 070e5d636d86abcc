# How every target of Regroup is built: flags, sanitizers, static or shared third parties, ccache.

set(REGROUP_SANITIZE "" CACHE STRING "Sanitizers, as in 'address,undefined' or 'thread'")
option(REGROUP_WERROR "Warnings are errors" ON)
option(REGROUP_STATIC "Link gRPC, protobuf, abseil, OpenSSL and SQLite statically" OFF)
option(REGROUP_UNIT_TESTS "Build the unit tests" ON)
option(REGROUP_E2E_TESTS "Register the tests that run the programs" OFF)
option(REGROUP_SYNTAX_ONLY "Let the compiler (Clang) read every file by itself and warn, and make nothing" OFF)
option(REGROUP_FUZZ "Build the fuzz targets; needs Clang" OFF)
set(REGROUP_CUDA OFF CACHE STRING "Compile .cu files too: ON, OFF, or AUTO, where nvcc is found")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")

find_program(REGROUP_CCACHE ccache)
if(REGROUP_CCACHE)
  # Another checkout, wherever it lies, finds what this one compiled. A precompiled header stands for what it was made
  # of, and no file uses __TIME__. (What UBSan says then names the files of who compiled first; they are the same.)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros ${REGROUP_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Of host code, GPUs use constexpr functions as they are.
set(REGROUP_NVCC_FLAGS -Werror=all-warnings --expt-relaxed-constexpr)
if(REGROUP_CUDA STREQUAL "AUTO")
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
  if(CMAKE_CUDA_COMPILER)
    set(REGROUP_CUDA ON)
  else()
    set(REGROUP_CUDA OFF)
    message(STATUS "no nvcc: regroup-worker trains on CPUs only")
  endif()
endif()
if(REGROUP_CUDA)
  # A100, H100 and H200; what comes later compiles what was meant for the last of them.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "Of which GPUs")
  enable_language(CUDA)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that of CUDA 13.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${REGROUP_NVCC_FLAGS}>")
endif()

# regroup_options(FLAG…): for C and C++, and for what nvcc leaves to C++.
function(regroup_options)
  foreach(flag IN LISTS ARGN)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${flag}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>)
  endforeach()
endfunction()

regroup_options(-Wall -Wextra -fno-strict-aliasing -fdata-sections -ffunction-sections
                -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
if(REGROUP_WERROR)
  regroup_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives from inside the standard library with these three.
  regroup_options(-Wno-restrict -Wno-stringop-overflow -Wno-maybe-uninitialized)
endif()
if(REGROUP_SANITIZE)
  regroup_options(-fsanitize=${REGROUP_SANITIZE} -fno-sanitize-recover=all)
  if(REGROUP_SANITIZE MATCHES "undefined" AND NOT REGROUP_FUZZ)
    # A seventh of what the rest takes to compile. What the first finds AddressSanitizer finds; nothing here casts down.
    regroup_options(-fno-sanitize=object-size,vptr)
  endif()
  add_link_options(-fsanitize=${REGROUP_SANITIZE})
endif()
find_program(REGROUP_LLD ld.lld)
if(REGROUP_LLD)
  add_link_options(-fuse-ld=lld -Wl,--gc-sections)
endif()
if(REGROUP_STATIC)
  # Measured: smaller and quicker to start than a position-independent executable with every function in it.
  regroup_options(-fno-pie)
  add_link_options(-no-pie)
  if(REGROUP_LLD)
    add_link_options(-Wl,--icf=all)
  endif()
endif()
include_directories(${CMAKE_SOURCE_DIR})
include_directories(SYSTEM ${CMAKE_BINARY_DIR})  # Generated headers: "proto/x.pb.h".
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
include(ThirdParty)

if(REGROUP_SYNTAX_ONLY)
  add_compile_options(-pthread)  # As some of the libraries ask for: all who read the same headers must agree.
  add_subdirectory(deploy/cmake/syntax_only)  # Before the next lines: it does make something.
  set(nothing "<CMAKE_COMMAND> -E touch <TARGET>")
  set(CMAKE_CXX_COMPILE_OBJECT "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -fsyntax-only -o <OBJECT> <SOURCE>")
  list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/deploy/cmake/syntax_only/syntax_only.sh)
  set(CMAKE_CXX_ARCHIVE_CREATE ${nothing})
  set(CMAKE_CXX_ARCHIVE_APPEND ${nothing})
  set(CMAKE_CXX_ARCHIVE_FINISH ${nothing})
  set(CMAKE_CXX_LINK_EXECUTABLE ${nothing})
endif()

# regroup_reads_headers(target): with REGROUP_SYNTAX_ONLY the headers of others are precompiled.
function(regroup_reads_headers target)
  if(REGROUP_SYNTAX_ONLY)
    target_precompile_headers(${target} REUSE_FROM third_party_headers)
  endif()
endfunction()

# regroup_library(name DEPS target…): every .cc of this folder as one static library.
function(regroup_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  list(FILTER sources EXCLUDE REGEX "_main\\.cc$")
  if(REGROUP_CUDA)
    file(GLOB cuda CONFIGURE_DEPENDS *.cu)
    list(APPEND sources ${cuda})
  endif()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    regroup_reads_headers(${name})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# regroup_links(target library result): does `target`, directly or through others, link `library`?
function(regroup_links target library result)
  set(pending ${target})
  set(seen "")
  while(pending)
    list(POP_FRONT pending next)
    if(next STREQUAL library)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
    if(next IN_LIST seen OR NOT TARGET ${next})
      continue()
    endif()
    list(APPEND seen ${next})
    get_target_property(links ${next} INTERFACE_LINK_LIBRARIES)
    if(links)
      list(APPEND pending ${links})
    endif()
  endwhile()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# regroup_test(name DEPS target…): every *.cc of this folder as one GoogleTest program. Where unit tests are
# off, and for tests that link gRPC under ThreadSanitizer (which would blame Debian's gRPC, not built with it), the
# target exists but is neither built nor run.
function(regroup_test name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test-bin)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  regroup_reads_headers(${name})
  set(wanted ${REGROUP_UNIT_TESTS})
  if(REGROUP_SANITIZE MATCHES "thread")
    foreach(dependency IN LISTS ARG_DEPS)
      regroup_links(${dependency} regroup_grpc links_grpc)
      if(links_grpc)
        set(wanted OFF)
      endif()
    endforeach()
  endif()
  if(NOT wanted)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  gtest_discover_tests(
    ${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    # One value each: gtest_discover_tests loses the rest of a list. tests/run.py sets the sanitizers' options.
    PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT REGROUP_BIN_DIR=${CMAKE_BINARY_DIR}/bin)
endfunction()

# regroup_e2e_test(name file.py [TORCH] [BUSY | ALONE] [KIND kind] [ARGS …] [LABELS …] [TIMEOUT seconds] [COST seconds]):
# a Python program that starts this build's binaries; the test is called kind.name, e2e.name without KIND. TORCH: it needs
# REGROUP_TEST_PYTHON, an interpreter with PyTorch, in the environment of ctest. Most tests wait most of the time, and run
# side by side. BUSY: it keeps processors busy, or has limits of a few seconds; beside it runs no other one of its kind.
# ALONE: nothing runs beside it, since it measures, needs all processors, or asks what this host runs. COST: how long it
# takes, from ten seconds; the longest begin first. Label `slow`: it runs alone, and in `./dev test` only when -R asks for
# it. Exit code 77 means skipped.
function(regroup_e2e_test name file)
  cmake_parse_arguments(ARG "TORCH;BUSY;ALONE" "KIND;TIMEOUT;COST" "ARGS;LABELS" ${ARGN})
  if(NOT REGROUP_E2E_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  if(slow IN_LIST ARG_LABELS)
    set(ARG_ALONE ON)
  endif()
  if(NOT ARG_KIND)
    set(ARG_KIND e2e)
  endif()
  if(ARG_TORCH)
    list(APPEND ARG_LABELS torch)
  endif()
  add_test(NAME ${ARG_KIND}.${name} COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${ARG_ARGS})
  set_tests_properties(${ARG_KIND}.${name} PROPERTIES
    LABELS "${ARG_KIND};${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 RUN_SERIAL ${ARG_ALONE} COST ${ARG_COST}
    ENVIRONMENT "REGROUP_BIN_DIR=${CMAKE_BINARY_DIR}/bin;PYTHONPATH=${CMAKE_SOURCE_DIR}/tests/e2e;PYTHONDONTWRITEBYTECODE=1")
  if(ARG_BUSY)
    set_tests_properties(${ARG_KIND}.${name} PROPERTIES RESOURCE_LOCK processors)
  endif()
endfunction()

# regroup_proto(): the .proto files of this folder as two libraries, regroup_proto (messages) and regroup_proto_grpc
# (stubs of those that declare a service). Included as "proto/x.pb.h", from the root of the build tree.
function(regroup_proto)
  file(GLOB protos CONFIGURE_DEPENDS *.proto)
  set(messages "")
  set(stubs "")
  set(generated "")
  foreach(proto IN LISTS protos)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${proto})
    string(REGEX REPLACE "\\.proto$" "" stem ${CMAKE_BINARY_DIR}/${path})
    file(STRINGS ${proto} services REGEX "^service ")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${proto})
    set(outputs ${stem}.pb.h ${stem}.pb.cc)
    set(plugin "")
    if(services)
      list(APPEND outputs ${stem}.grpc.pb.h ${stem}.grpc.pb.cc)
      list(APPEND stubs ${stem}.grpc.pb.cc)
      set(plugin --grpc_out=${CMAKE_BINARY_DIR}
                 --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    list(APPEND messages ${stem}.pb.cc)
    list(APPEND generated ${outputs})
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc --cpp_out=${CMAKE_BINARY_DIR} ${plugin}
              -I ${CMAKE_SOURCE_DIR} ${proto}
      DEPENDS ${protos} VERBATIM COMMENT "protoc ${path}")
  endforeach()
  add_custom_target(generated DEPENDS ${generated})
  set_source_files_properties(${messages} ${stubs} PROPERTIES COMPILE_OPTIONS -w)
  add_library(regroup_proto STATIC ${messages})
  if(REGROUP_FUZZ)
    # What is generated has more branches than all else together, and libFuzzer counts them after every input.
    target_compile_options(regroup_proto PRIVATE -fno-sanitize=fuzzer-no-link)
  endif()
  target_link_libraries(regroup_proto PUBLIC regroup_protobuf)
  if(stubs)
    add_library(regroup_proto_grpc STATIC ${stubs})
    target_link_libraries(regroup_proto_grpc PUBLIC regroup_proto regroup_grpc)
  else()
    add_library(regroup_proto_grpc INTERFACE)
    target_link_libraries(regroup_proto_grpc INTERFACE regroup_proto regroup_grpc)
  endif()
endfunction()

# regroup_python_test(name file.py [ARGS …]): a Python program that needs none of our binaries, run with the unit tests.
function(regroup_python_test name file)
  cmake_parse_arguments(ARG "" "" "ARGS" ${ARGN})
  if(REGROUP_UNIT_TESTS)
    add_test(NAME ${name} COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${ARG_ARGS})
    set_tests_properties(${name} PROPERTIES LABELS "unit;python" TIMEOUT 300 SKIP_RETURN_CODE 77
                         ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  endif()
endfunction()
