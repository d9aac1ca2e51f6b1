# SPDX-License-Identifier: Apache-2.0
# A module is a folder of src/tandem: a static library of all its sources, and the modules it may include.

set(TANDEM_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers)
set(TANDEM_SANITIZE_FLAGS)
if(TANDEM_SANITIZE)
  set(TANDEM_SANITIZE_FLAGS -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer)
  if(TANDEM_SANITIZE MATCHES "undefined")
    list(APPEND TANDEM_SANITIZE_FLAGS -fno-sanitize=vptr)  # libtorch is built without its type information
  endif()
  add_link_options(${TANDEM_SANITIZE_FLAGS})
endif()
if(TANDEM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TANDEM_FUZZ needs clang++ and its libFuzzer: cmake --preset fuzz")
  endif()
  list(APPEND TANDEM_SANITIZE_FLAGS -fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined)  # every module reports its branches
endif()

# Most of a file's time went into its headers: a file of 100 lines took 4 s of libtorch's, some 13 s. So the files of a module are
# compiled some at a time, as one (a unity build), and so are those of a test program; and those that see libtorch read its headers
# from one precompiled header. Names in unnamed namespaces are thus unique in a module, and each header still compiles alone
# (tools/headers.py). More files at a time would save little and make an edit slower.
set(TANDEM_UNITY_FILES 8 CACHE STRING "Files of a module that are compiled at a time; 1: each alone")
option(TANDEM_PCH "Read libtorch's headers from one precompiled header" ON)
function(tandem_unity target)
  if(TANDEM_UNITY_FILES GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TANDEM_UNITY_FILES} UNITY_BUILD_RELOCATABLE ON)
  endif()
endfunction()

if(TANDEM_PCH)
  # A precompiled header fits only files of the same flags: so modules and programs alike are -fPIC, none -fPIE.
  add_library(tandem_torch_headers OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_headers.cpp)
  target_link_libraries(tandem_torch_headers PRIVATE tandem::torch nlohmann_json::nlohmann_json)
  target_compile_options(tandem_torch_headers PRIVATE ${TANDEM_SANITIZE_FLAGS})
  target_precompile_headers(tandem_torch_headers PRIVATE <ATen/Functions.h> <ATen/Parallel.h> <ATen/TensorOperators.h>
                            <ATen/core/Tensor.h> <ATen/core/grad_mode.h> <nlohmann/json.hpp>)
endif()
# For a target that sees libtorch. A source with flags of its own must have SKIP_PRECOMPILE_HEADERS.
function(tandem_torch_pch target)
  set_target_properties(${target} PROPERTIES TANDEM_SEES_TORCH ON)
  if(TANDEM_PCH)
    target_precompile_headers(${target} REUSE_FROM tandem_torch_headers)
  endif()
endfunction()

# tandem_module(name [TORCH] [DEPS module...] [LIBS library...] [WITHOUT source...])   WITHOUT: backends that are not built here
function(tandem_module name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS;LIBS;WITHOUT" ${ARGN})
  string(REPLACE "/" "_" target "tandem_${name}")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*.cpp
       ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*/*/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/cli/main/")
  foreach(absent ${ARG_WITHOUT})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${name}/${absent})
  endforeach()
  foreach(source ${sources})
    if(source MATCHES "_absent\\.cpp$")  # alone, so that a test may bring the real one
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  add_library(${target} STATIC ${sources})
  tandem_unity(${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE ${TANDEM_WARNINGS} ${TANDEM_SANITIZE_FLAGS})
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "tandem_${dep}")
    target_link_libraries(${target} PUBLIC ${dep_target})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC tandem::torch)
    tandem_torch_pch(${target})
  endif()
  target_link_libraries(${target} PUBLIC ${ARG_LIBS})
endfunction()

# tandem_test(label name source... [DEPS module...])   one gtest program, each case a ctest test
function(tandem_test label name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${ARG_UNPARSED_ARGUMENTS})
  tandem_unity(${name})
  # A test's own code runs once; what it tests is in the libraries. The cold build of the tests takes a sixth less time so.
  target_compile_options(${name} PRIVATE -O1 ${TANDEM_WARNINGS} ${TANDEM_SANITIZE_FLAGS})
  target_compile_definitions(${name} PRIVATE TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TANDEM_BUILD_DIR="${PROJECT_BINARY_DIR}")
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "tandem_${dep}")
    target_link_libraries(${name} PRIVATE ${dep_target})
    get_target_property(sees_torch ${dep_target} TANDEM_SEES_TORCH)
    if(sees_torch)
      tandem_torch_pch(${name})
    endif()
  endforeach()
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  # Small products on two threads wait for each other all the time; waiting must not take the cores from the other tests.
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "OMP_WAIT_POLICY=PASSIVE")
endfunction()

# tandem_fuzz(name source... [DEPS module...] [LIBS library...])   one libFuzzer program, build/PRESET/fuzz/NAME; its seeds are
# tests/fuzz/corpus/NAME, its words, if it has any, tests/fuzz/NAME.dict. The target `fuzz_programs` builds all of them.
function(tandem_fuzz name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
    message(FATAL_ERROR "fuzz target ${name}: no seeds in ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}")
  endif()
  add_executable(fuzz_${name} EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS})
  target_compile_options(fuzz_${name} PRIVATE ${TANDEM_WARNINGS} ${TANDEM_SANITIZE_FLAGS})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "tandem_${dep}")
    target_link_libraries(fuzz_${name} PRIVATE ${dep_target})
  endforeach()
  target_link_libraries(fuzz_${name} PRIVATE ${ARG_LIBS})
  set_target_properties(fuzz_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  if(NOT TARGET fuzz_programs)
    add_custom_target(fuzz_programs)
  endif()
  add_dependencies(fuzz_programs fuzz_${name})
endfunction()
