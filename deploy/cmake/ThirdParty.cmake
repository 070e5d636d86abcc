# Every third party of Regroup, found once for all folders, under the names that folders link:
#
#   regroup_grpc  regroup_protobuf  regroup_sqlite  regroup_openssl  regroup_spdlog  regroup_yaml
#   regroup_dnnl  regroup_xxhash  regroup_isal  regroup_cli11  regroup_json  regroup_boost
#   absl::*  GTest::*  benchmark::benchmark  Threads::Threads
#
# With REGROUP_STATIC gRPC, protobuf, abseil, OpenSSL, SQLite and what they need come from Debian's archives (.a),
# libc and libstdc++ stay shared: a process starts 8 ms sooner. Without it everything is shared: quicker to link.

set(Protobuf_USE_STATIC_LIBS ${REGROUP_STATIC})
set(OPENSSL_USE_STATIC_LIBS ${REGROUP_STATIC})
set(ZLIB_USE_STATIC_LIBS ${REGROUP_STATIC})
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(GTest CONFIG REQUIRED)
find_package(benchmark CONFIG REQUIRED)

# Points an imported library at its archive. REQUIRES: Debian's naming, libNAME.so.1.2.3 beside libNAME.a.
function(regroup_use_archive target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  foreach(suffix IN ITEMS _NONE _NOCONFIG "")
    get_target_property(location ${target} IMPORTED_LOCATION${suffix})
    if(location)
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
      if(NOT EXISTS "${archive}")
        message(FATAL_ERROR "REGROUP_STATIC needs ${archive} (for ${target}), which is not there")
      endif()
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION${suffix} "${archive}"
                            IMPORTED_SONAME${suffix} "")
    endif()
  endforeach()
endfunction()

if(REGROUP_STATIC)
  get_directory_property(imported IMPORTED_TARGETS)
  foreach(target IN LISTS imported)
    if(target MATCHES "^(absl::.*|gRPC::(grpc|gpr|grpc\\+\\+|address_sorting|upb)|ZLIB::ZLIB|c-ares::cares|yaml-cpp)$")
      regroup_use_archive(${target})
    endif()
  endforeach()
  # These two are found as linker flags (-lre2, -lsqlite3), which would prefer the shared library.
  find_library(REGROUP_RE2_ARCHIVE NAMES libre2.a REQUIRED)
  find_library(REGROUP_SQLITE_ARCHIVE NAMES libsqlite3.a REQUIRED)
  set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES ${REGROUP_RE2_ARCHIVE})
  set_target_properties(SQLite::SQLite3 PROPERTIES IMPORTED_LOCATION ${REGROUP_SQLITE_ARCHIVE}
                        INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()

# regroup_third_party(NAME LINKS…): the name that folders link.
function(regroup_third_party name)
  add_library(${name} INTERFACE)
  target_link_libraries(${name} INTERFACE ${ARGN})
endfunction()

regroup_third_party(regroup_protobuf protobuf::libprotobuf)
regroup_third_party(regroup_grpc gRPC::grpc++ regroup_protobuf)
regroup_third_party(regroup_sqlite SQLite::SQLite3)
regroup_third_party(regroup_openssl OpenSSL::SSL OpenSSL::Crypto)
regroup_third_party(regroup_yaml yaml-cpp)
regroup_third_party(regroup_cli11 CLI11::CLI11)
regroup_third_party(regroup_json nlohmann_json::nlohmann_json)
regroup_third_party(regroup_boost Boost::headers)

# Debian has no archive of spdlog and fmt. Shared in debug builds, headers only in static ones; the formatter is
# Debian's fmt in both.
add_library(regroup_spdlog INTERFACE)
if(REGROUP_STATIC)
  target_compile_definitions(regroup_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(regroup_spdlog INTERFACE fmt::fmt-header-only Threads::Threads)
else()
  target_link_libraries(regroup_spdlog INTERFACE spdlog::spdlog)
endif()

# xxHash is compiled into its users (XXH_INLINE_ALL); ISA-L has no archive in Debian.
find_path(REGROUP_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(REGROUP_ISAL NAMES isal REQUIRED)
add_library(regroup_xxhash INTERFACE)
target_compile_definitions(regroup_xxhash INTERFACE XXH_INLINE_ALL)
regroup_third_party(regroup_isal ${REGROUP_ISAL})

# oneDNN's own CMake package asks for OpenCL's headers, which Debian's libdnnl-dev does not bring and we do not need.
find_path(REGROUP_DNNL_INCLUDE dnnl.hpp REQUIRED)
find_library(REGROUP_DNNL NAMES dnnl REQUIRED)
regroup_third_party(regroup_dnnl ${REGROUP_DNNL})
