# mladcp_library, mladcp_test, mladcp_bench: what the folders are made of.
include(GoogleTest)

# mladcp_library(<name> [SOURCES <file>...] [DEPS <target>...] [PRIVATE_DEPS <target>...] [ARCHITECTURES <arch>...])
# The library mladcp_<name>; header-only while it has no sources.
function(mladcp_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;PRIVATE_DEPS;ARCHITECTURES")
  set(target mladcp_${name})
  if(NOT arg_SOURCES)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE mladcp_options ${arg_DEPS} ${arg_PRIVATE_DEPS})
    return()
  endif()
  add_library(${target} STATIC ${arg_SOURCES})
  target_link_libraries(${target} PUBLIC mladcp_options ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
  if(arg_ARCHITECTURES)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${arg_ARCHITECTURES}")
  endif()
endfunction()

# mladcp_test(<folder> [SOURCES <file>...] [PROPERTIES_SOURCES <file>...] [DEPS <target>...] [LABELS <label>...]
#             [TIMEOUT <seconds>])
# The executable <folder>_tests. PROPERTIES_SOURCES use RapidCheck and are left out where it is missing.
function(mladcp_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;PROPERTIES_SOURCES;DEPS;LABELS")
  set(target ${folder}_tests)
  set(sources ${arg_SOURCES})
  if(MLADCP_HAVE_RAPIDCHECK)
    list(APPEND sources ${arg_PROPERTIES_SOURCES})
    if(arg_PROPERTIES_SOURCES)
      list(APPEND arg_DEPS rapidcheck)
    endif()
  endif()
  if(NOT sources)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS ${folder})
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE mladcp_options ${arg_DEPS} GTest::gmock_main)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-conversion>)
  # One process a test, from the root of the repository, where tests/golden is.
  list(JOIN arg_LABELS "\\;" labels)
  gtest_discover_tests(${target}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}")
  set_property(GLOBAL APPEND PROPERTY MLADCP_TEST_TARGETS ${target})
endfunction()

# mladcp_bench(<subject> SOURCES <file>... [DEPS <target>...])
# The Google Benchmark executable bench_<subject>.
function(mladcp_bench subject)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  if(NOT TARGET benchmark::benchmark)
    return()
  endif()
  set(target bench_${subject})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE mladcp_options ${arg_DEPS} benchmark::benchmark)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-conversion>)
  set_property(GLOBAL APPEND PROPERTY MLADCP_BENCH_TARGETS ${target})
endfunction()
