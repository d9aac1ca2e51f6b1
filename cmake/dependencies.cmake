# SPDX-License-Identifier: Apache-2.0
# Every library the program links, found once. scripts/setup installs what is missing.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

if(NOT DEFINED TANDEM_PYTHON AND SKBUILD)
  set(TANDEM_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "Python that the wheel is for")
elseif(NOT DEFINED TANDEM_PYTHON)
  set(TANDEM_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has the torch wheel")
endif()
if(NOT TANDEM_TORCH_PYTHON)
  set(TANDEM_TORCH_PYTHON ${TANDEM_PYTHON})
endif()
if(NOT TANDEM_TORCH_DIR)
  execute_process(COMMAND ${TANDEM_TORCH_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR "libtorch not found: no torch wheel for ${TANDEM_TORCH_PYTHON} (run scripts/setup, or set TANDEM_PYTHON)")
  endif()
  set(TANDEM_TORCH_DIR ${torch_dir} CACHE PATH "Folder of the torch wheel")
endif()

# The wheel's own CMake package drags in protobuf, kineto and CUDA checks; four libraries are all that is needed.
add_library(tandem::torch INTERFACE IMPORTED)
target_include_directories(tandem::torch SYSTEM INTERFACE ${TANDEM_TORCH_DIR}/include ${TANDEM_TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(tandem::torch INTERFACE ${TANDEM_TORCH_DIR}/lib)
# at::parallel_for is a header whose threads exist only where the including file is compiled with OpenMP.
# Fuzz targets have one thread: clang's omp.h is a package of its own.
if(NOT TANDEM_FUZZ)
  target_compile_options(tandem::torch INTERFACE -fopenmp)
endif()
file(GLOB torch_gomp ${TANDEM_TORCH_DIR}/lib/libgomp*.so*)  # the wheel's own, so that one process has one pool of threads
if(NOT torch_gomp)
  set(torch_gomp gomp)
endif()
target_link_libraries(tandem::torch INTERFACE torch torch_cpu c10 ${torch_gomp})
set(TANDEM_TORCH_RPATH "${TANDEM_TORCH_DIR}/lib" CACHE STRING "Where programs look for torch's libraries")
target_link_options(tandem::torch INTERFACE "-Wl,-rpath,${TANDEM_TORCH_RPATH}" "-Wl,--no-as-needed")

include(cmake/device_libraries.cmake)

# Arrow C++ as the pyarrow wheel has it: headers and two libraries.
if(TANDEM_PARQUET)
  if(NOT TANDEM_ARROW_DIR)
    execute_process(COMMAND ${TANDEM_PYTHON} -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
                    OUTPUT_VARIABLE arrow_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE arrow_missing ERROR_QUIET)
    if(arrow_missing)
      message(FATAL_ERROR "Arrow not found: no pyarrow wheel for ${TANDEM_PYTHON} (run scripts/setup, or set TANDEM_PARQUET=OFF)")
    endif()
    set(TANDEM_ARROW_DIR ${arrow_dir} CACHE PATH "Folder of the pyarrow wheel")
  endif()
  file(GLOB arrow_libraries ${TANDEM_ARROW_DIR}/libarrow.so.* ${TANDEM_ARROW_DIR}/libparquet.so.*)
  add_library(tandem::arrow INTERFACE IMPORTED)
  target_include_directories(tandem::arrow SYSTEM INTERFACE ${TANDEM_ARROW_DIR}/include)
  target_link_libraries(tandem::arrow INTERFACE ${arrow_libraries})
  target_link_options(tandem::arrow INTERFACE "-Wl,-rpath,${TANDEM_ARROW_DIR}")
  list(APPEND CMAKE_BUILD_RPATH ${PROJECT_BINARY_DIR})  # where programs find libtandem_parquet.so, which alone is linked with it
endif()

if(TANDEM_PYTHON_MODULE)
  set(Python_EXECUTABLE ${TANDEM_PYTHON})
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(COMMAND ${TANDEM_PYTHON} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_package(nanobind CONFIG REQUIRED)
endif()

find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(SQLite3 REQUIRED)
set(TANDEM_SQLITE SQLite::SQLite3)
if(TARGET SQLite3::SQLite3)  # its name since CMake 4.3, which warns about the old one
  set(TANDEM_SQLITE SQLite3::SQLite3)
endif()
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)  # the first with \p{White_Space}
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(openssl REQUIRED IMPORTED_TARGET libssl libcrypto)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
if(TANDEM_TESTS)
  find_package(GTest REQUIRED)
endif()
if(TANDEM_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
