# SPDX-License-Identifier: Apache-2.0
# The libraries of devices, out of wheels as torch is: NCCL with the toolkit's headers beside the CUDA wheel of torch, HCCL inside
# torch-npu. docs/design/c10d.md says how to get them.
if(TANDEM_CUDA AND TANDEM_NPU)
  message(FATAL_ERROR "TANDEM_CUDA and TANDEM_NPU exclude each other: torch-npu needs the CPU wheel of torch")
endif()
get_filename_component(torch_site ${TANDEM_TORCH_DIR} DIRECTORY)

if(TANDEM_CUDA)
  set(cuda_toolkit ${torch_site}/nvidia/cu13)
  foreach(needed ${TANDEM_TORCH_DIR}/lib/libtorch_cuda.so ${cuda_toolkit}/include/cuda_runtime.h ${torch_site}/nvidia/nccl/include/nccl.h)
    if(NOT EXISTS ${needed})
      message(FATAL_ERROR "TANDEM_CUDA: no ${needed} (TANDEM_CUDA_PYTHON names a Python with the CUDA 13 wheel of torch)")
    endif()
  endforeach()
  add_library(tandem::nccl INTERFACE IMPORTED)
  target_compile_definitions(tandem::nccl INTERFACE USE_C10D_NCCL)
  target_include_directories(tandem::nccl SYSTEM INTERFACE ${cuda_toolkit}/include ${torch_site}/nvidia/nccl/include)
  target_link_libraries(tandem::nccl INTERFACE torch_cuda c10_cuda)
endif()

if(TANDEM_NPU)
  set(npu ${torch_site}/torch_npu)
  if(NOT EXISTS ${npu}/lib/libtorch_npu.so)
    message(FATAL_ERROR "TANDEM_NPU: no ${npu}/lib/libtorch_npu.so (TANDEM_NPU_PYTHON names a Python with torch-npu)")
  endif()
  add_library(tandem::hccl INTERFACE IMPORTED)
  target_include_directories(tandem::hccl SYSTEM INTERFACE ${npu}/include ${npu}/include/third_party/acl/inc
                             ${TANDEM_TORCH_DIR}/include/torch/csrc/distributed)
  target_link_directories(tandem::hccl INTERFACE ${npu}/lib)
  target_link_libraries(tandem::hccl INTERFACE torch_npu)
  # What CANN, the toolkit of the device, brings: without it the program links, and does not start.
  target_link_options(tandem::hccl INTERFACE "-Wl,-rpath,${npu}/lib" "-Wl,--unresolved-symbols=ignore-in-shared-libs")
endif()
