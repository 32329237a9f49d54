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

# How tests are compiled: their own loops are short, so the time goes to the compiler and to GoogleTest's headers.
function(mladcp_test_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  if(MLADCP_SANITIZE MATCHES undefined)
    # The project is instrumented, the tests' own arithmetic is not: that would double the build.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=undefined>)
  endif()
  target_precompile_headers(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:<gmock/gmock.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<algorithm$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<string$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<vector$<ANGLE-R>>)
endfunction()

# mladcp_test(<folder> [SOURCES <file>...] [PROPERTIES_SOURCES <file>...] [DEPS <target>...] [GPUS <number>]
#             [TIMEOUT <seconds>])
# The executable <folder>_tests. PROPERTIES_SOURCES use RapidCheck and are left out where it is missing.
# ctest runs one process a test, with the folder as label. With GPUS it runs one process for all (a CUDA context costs
# about a second), labelled gpu or, from two on, multigpu; with fewer GPUs that is skipped, saying so.
# Tests start in the root of the repository.
function(mladcp_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "GPUS;TIMEOUT;ENVIRONMENT" "SOURCES;PROPERTIES_SOURCES;DEPS")
  set(target ${folder}_tests)
  set(sources ${arg_SOURCES})
  if(MLADCP_HAVE_RAPIDCHECK AND arg_PROPERTIES_SOURCES)
    list(APPEND sources ${arg_PROPERTIES_SOURCES})
    list(APPEND arg_DEPS rapidcheck)
  endif()
  if(NOT sources)
    return()
  endif()
  if(arg_GPUS)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/support/gpu_main.cc)
    list(APPEND arg_DEPS CUDA::cudart_static)
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE mladcp_options ${arg_DEPS} GTest::gmock_main)
  mladcp_test_options(${target})
  if(arg_GPUS)
    set(label gpu)
    if(arg_GPUS GREATER 1)
      set(label multigpu)
    endif()
    if(NOT arg_TIMEOUT)
      set(arg_TIMEOUT 900)
    endif()
    target_compile_definitions(${target} PRIVATE MLADCP_TEST_GPUS=${arg_GPUS})
    add_test(NAME ${target} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${target} PROPERTIES
      LABELS ${label} TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
    set_property(GLOBAL APPEND PROPERTY MLADCP_GPU_TEST_TARGETS ${target})
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(MLADCP_SANITIZE AND arg_TIMEOUT LESS 900)
    set(arg_TIMEOUT 900)  # ten to twenty times slower
  endif()
  gtest_discover_tests(${target}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${folder} ENVIRONMENT "${arg_ENVIRONMENT}")
  set_property(GLOBAL APPEND PROPERTY MLADCP_TEST_TARGETS ${target})
endfunction()

# mladcp_bench(<subject> SOURCES <file>... [DEPS <target>...] [GPU])
# The Google Benchmark executable bench_<subject>, or with GPU gpu_bench_<subject>.
function(mladcp_bench subject)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GPU" "" "SOURCES;DEPS")
  if(NOT TARGET benchmark::benchmark)
    return()
  endif()
  if(arg_GPU)
    set(target gpu_bench_${subject})
    set_property(GLOBAL APPEND PROPERTY MLADCP_GPU_BENCH_TARGETS ${target})
  else()
    set(target bench_${subject})
    set_property(GLOBAL APPEND PROPERTY MLADCP_BENCH_TARGETS ${target})
  endif()
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE mladcp_options ${arg_DEPS} benchmark::benchmark)
endfunction()
