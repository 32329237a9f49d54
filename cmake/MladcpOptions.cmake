# Options, and the compile options that every target of the project gets through mladcp_options.

set(MLADCP_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (when a toolkit is found), ON, OFF")
set(MLADCP_NCCL AUTO CACHE STRING "NCCL collective: AUTO (with CUDA, when found), ON, OFF")
set(MLADCP_MPI AUTO CACHE STRING "MPI collective: AUTO (when found), ON, OFF")
set_property(CACHE MLADCP_CUDA MLADCP_NCCL MLADCP_MPI PROPERTY STRINGS AUTO ON OFF)
set(MLADCP_CUDA_ARCHITECTURES "80;90a" CACHE STRING
    "Architectures of the generic kernels; those under sm90_* are built for 90a alone")
option(MLADCP_TESTS "Build the tests" ON)
option(MLADCP_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(MLADCP_BENCH "Build the benchmarks" ON)
option(MLADCP_NATIVE "Use AVX2 and FMA (x86-64-v3) when the building machine has them" OFF)
set(MLADCP_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, for example address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

add_library(mladcp_options INTERFACE)
target_include_directories(mladcp_options INTERFACE ${PROJECT_SOURCE_DIR})

# A product and a sum are never fused behind our back: the bits of a result do not depend on the machine.
target_compile_options(mladcp_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>)

# The laws of core are constexpr functions; kernels call them.
target_compile_options(mladcp_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

# Warnings are errors. Host code of .cu files gets the subset that nvcc's generated code survives.
set(MLADCP_CXX_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi -Werror)
target_compile_options(mladcp_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${MLADCP_CXX_WARNINGS}>"
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)

# x86-64-v3 rather than -march=native: one set of bits on every machine of the last ten years, and objects that a
# compiler cache may share between them.
if(MLADCP_NATIVE)
  include(CheckCXXSourceRuns)
  check_cxx_source_runs("
    int main() { return __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") &&
                        __builtin_cpu_supports(\"bmi2\") ? 0 : 1; }" MLADCP_CPU_HAS_X86_64_V3)
  if(MLADCP_CPU_HAS_X86_64_V3)
    target_compile_options(mladcp_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=x86-64-v3>)
  endif()
endif()

if(MLADCP_SANITIZE)
  target_compile_options(mladcp_options INTERFACE
    -fsanitize=${MLADCP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_definitions(mladcp_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(mladcp_options INTERFACE -fsanitize=${MLADCP_SANITIZE})
  if(MLADCP_SANITIZE MATCHES thread)
    target_compile_options(mladcp_options INTERFACE -Wno-tsan)
  endif()
  if(MLADCP_SANITIZE MATCHES "address,undefined")
    # What AddressSanitizer sees as well, at a third of the compile time.
    target_compile_options(mladcp_options INTERFACE -fno-sanitize=null,object-size)
  endif()
endif()
