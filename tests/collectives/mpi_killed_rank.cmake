# cmake -DMPIRUN=<command;arguments> -DPROGRAM=<mpi_killed_rank> -P mpi_killed_rank.cmake
# A killed process ends the job within LIMIT seconds, with an error that names it.
set(LIMIT 30)
execute_process(COMMAND ${MPIRUN} ${PROGRAM} TIMEOUT ${LIMIT}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(status STREQUAL "0" OR NOT status MATCHES "^[0-9]+$")
  message(FATAL_ERROR "expected the job to fail within ${LIMIT} s, got: ${status}")
endif()
if(NOT output MATCHES "rank 1 ")
  message(FATAL_ERROR "the error does not name rank 1")
endif()
if(output MATCHES "noticed nothing")
  message(FATAL_ERROR "a process went on without its peer")
endif()
