# CUDA and NCCL, also where they are not on a default path, or a line that says they are left out.

set(MLADCP_HAVE_CUDA FALSE)
set(MLADCP_HAVE_NCCL FALSE)

if(NOT MLADCP_CUDA STREQUAL "OFF")
  find_program(MLADCP_NVCC nvcc
    HINTS ${CMAKE_CUDA_COMPILER} ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda /opt/cuda /usr/lib/cuda
    PATH_SUFFIXES bin)
  if(MLADCP_NVCC)
    # Resolved, because a link in a bin folder does not lead to the toolkit's include folder.
    file(REAL_PATH ${MLADCP_NVCC} nvcc)
    set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "" FORCE)
    set(CMAKE_CUDA_ARCHITECTURES ${MLADCP_CUDA_ARCHITECTURES})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # CMake 3.25 does not know yet that nvcc speaks C++20.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(MLADCP_HAVE_CUDA TRUE)
    message(STATUS "mladcp: CUDA ${CUDAToolkit_VERSION} (${nvcc}), architectures ${MLADCP_CUDA_ARCHITECTURES}")
  elseif(MLADCP_CUDA STREQUAL "AUTO")
    message(STATUS "mladcp: no CUDA compiler (nvcc): the GPU part is left out")
  else()
    message(FATAL_ERROR "MLADCP_CUDA=${MLADCP_CUDA}, but nvcc was found neither on PATH nor under CUDACXX, "
                        "CUDA_HOME, CUDA_PATH or /usr/local/cuda")
  endif()
endif()

if(MLADCP_HAVE_CUDA AND NOT MLADCP_NCCL STREQUAL "OFF")
  set(hints ENV NCCL_HOME ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR})
  find_path(MLADCP_NCCL_INCLUDE nccl.h HINTS ${hints} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(MLADCP_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${hints} PATH_SUFFIXES lib64 lib)
  if(NOT MLADCP_NCCL_INCLUDE OR NOT MLADCP_NCCL_LIBRARY)
    # The wheel nvidia-nccl-cu* holds header and library, but only a Python knows where.
    find_program(MLADCP_PYTHON python3)
    if(MLADCP_PYTHON)
      execute_process(
        COMMAND ${MLADCP_PYTHON} -c "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"
        OUTPUT_VARIABLE wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(wheel)
        find_path(MLADCP_NCCL_INCLUDE nccl.h HINTS ${wheel}/include)
        find_library(MLADCP_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${wheel}/lib)
      endif()
    endif()
  endif()
  if(MLADCP_NCCL_INCLUDE AND MLADCP_NCCL_LIBRARY)
    add_library(mladcp_nccl_library INTERFACE)
    target_include_directories(mladcp_nccl_library SYSTEM INTERFACE ${MLADCP_NCCL_INCLUDE})
    target_link_libraries(mladcp_nccl_library INTERFACE ${MLADCP_NCCL_LIBRARY} CUDA::cudart_static)
    set(MLADCP_HAVE_NCCL TRUE)
    message(STATUS "mladcp: NCCL (${MLADCP_NCCL_LIBRARY})")
  elseif(MLADCP_NCCL STREQUAL "AUTO")
    message(STATUS "mladcp: no NCCL (nccl.h, libnccl): the NCCL collective is left out; NCCL_HOME names its folder")
  else()
    message(FATAL_ERROR "MLADCP_NCCL=${MLADCP_NCCL}, but nccl.h and libnccl were not found; set NCCL_HOME")
  endif()
endif()
