// SPDX-License-Identifier: Apache-2.0
#pragma once
// What differs between the libraries that c10d carries: NCCL on CUDA, HCCL on Ascend.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

namespace tandem::comm {

/// Where a backend stands: it meets the others of its group through the store.
struct Place {
  c10::intrusive_ptr<::c10d::Store> store;
  int rank = 0, size = 1;
  std::string group;
  double deadline_s = 0;
};

struct Library {
  std::string name;   // as `tandem doctor` says it
  at::Device device;  // of this rank; every tensor is on it
  std::function<c10::intrusive_ptr<::c10d::Backend>(const Place&)> connect;
  std::function<void(::c10d::Backend&)> abort;       // wakes whoever waits for the backend's work
  std::function<void()> enter_thread = [] {};         // makes `device` the current one of the calling thread
};

/// NCCL or HCCL, on the device with that number of this machine. Defined by nccl.cpp or hccl.cpp.
/// Errors  UserError if this machine has no such device.
Library device_library(int number);
/// Sets the library's variables of the environment that are not set yet, so the caller has no other threads.
void set_environment(double deadline_s);
/// Its name, "nccl" or "hccl".
std::string device_library_name();

}  // namespace tandem::comm
