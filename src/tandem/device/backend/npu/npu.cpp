// SPDX-License-Identifier: Apache-2.0
// Ascend: tensors by torch-npu; arenas by the driver's virtual memory. No graphs: work is queued operator by operator.
#include <ATen/Context.h>
#include <acl/acl_rt.h>
#include <c10/util/Exception.h>
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
#include <torch_npu/csrc/core/npu/NPUFunctions.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <cstdio>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/device/backend/mapped_memory.h"
#include "tandem/device/backend/shared_library.h"
#include "tandem/device/device.h"
#include "tandem/device/fault.h"

namespace tandem::device {
namespace {

template <class Function>
Function* of_driver(const char* name) {
  return function_of<Function>("libascendcl.so", name);
}

// CANN's, which no wheel brings: the program starts without them, and looks them up where there is a device.
struct Functions {
  decltype(&::aclrtReserveMemAddress) reserve = of_driver<decltype(::aclrtReserveMemAddress)>("aclrtReserveMemAddress");
  decltype(&::aclrtReleaseMemAddress) free = of_driver<decltype(::aclrtReleaseMemAddress)>("aclrtReleaseMemAddress");
  decltype(&::aclrtMallocPhysical) create = of_driver<decltype(::aclrtMallocPhysical)>("aclrtMallocPhysical");
  decltype(&::aclrtFreePhysical) release = of_driver<decltype(::aclrtFreePhysical)>("aclrtFreePhysical");
  decltype(&::aclrtMapMem) map = of_driver<decltype(::aclrtMapMem)>("aclrtMapMem");
  decltype(&::aclrtUnmapMem) unmap = of_driver<decltype(::aclrtUnmapMem)>("aclrtUnmapMem");
  decltype(&::aclrtMemsetAsync) set_bytes = of_driver<decltype(::aclrtMemsetAsync)>("aclrtMemsetAsync");
  decltype(&::aclrtGetMemInfo) memory = of_driver<decltype(::aclrtGetMemInfo)>("aclrtGetMemInfo");
  decltype(&::aclrtDeviceGetUuid) uuid = of_driver<decltype(::aclrtDeviceGetUuid)>("aclrtDeviceGetUuid");
  decltype(&::aclrtGetSocName) name = of_driver<decltype(::aclrtGetSocName)>("aclrtGetSocName");
};

const Functions& functions() {
  static const Functions one;
  return one;
}

void check(aclError result, const char* what) {
  if (result != ACL_SUCCESS) throw PeerError(join_text("the Ascend driver: ", what, ": error ", result));
}

// What mapped_memory.h asks of a driver.
class Driver {
 public:
  using Handle = aclrtDrvMemHandle;

  explicit Driver(at::Device device) : device_(device) { use(device); }
  static void use(at::Device device) {
    at::globalContext().lazyInitDevice(at::kPrivateUse1);  // the wheel exports no way of its own
    c10_npu::set_device(device.index());
  }
  std::byte* reserve(int64_t bytes) const {
    void* address = nullptr;
    check(functions().reserve(&address, size(bytes), 0, nullptr, kHugePages), "no addresses");
    return static_cast<std::byte*>(address);
  }
  void free(std::byte* address, int64_t) const { check(functions().free(address), "addresses are not freed"); }
  Handle make(int64_t bytes) const {
    c10_npu::set_device(device_.index());
    aclrtPhysicalMemProp kind = {};
    kind.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    kind.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    kind.memAttr = ACL_HBM_MEM_HUGE;
    kind.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = static_cast<uint32_t>(device_.index());
    Handle handle = nullptr;
    if (functions().create(&handle, size(bytes), &kind, 0) == ACL_SUCCESS) return handle;
    wait();  // libtorch may keep what nobody uses
    c10_npu::NPUCachingAllocator::emptyCache();
    return functions().create(&handle, size(bytes), &kind, 0) == ACL_SUCCESS ? handle : nullptr;
  }
  void map(std::byte* at, int64_t bytes, Handle handle) const {
    check(functions().map(at, size(bytes), 0, handle, 0), "memory is not mapped");
  }
  void open(std::byte* at, int64_t bytes) const {
    const aclrtStream stream = c10_npu::getCurrentNPUStream(device_.index()).stream();
    check(functions().set_bytes(at, size(bytes), 0, size(bytes), stream), "memory is not cleared");
  }
  void unmap(std::byte* at, int64_t) const { check(functions().unmap(at), "memory is not unmapped"); }
  void drop(Handle handle) const { check(functions().release(handle), "memory is not released"); }
  void wait() const {
    c10_npu::set_device(device_.index());
    c10_npu::device_synchronize();
  }

 private:
  static constexpr uint64_t kHugePages = 1;
  static size_t size(int64_t bytes) { return static_cast<size_t>(bytes); }

  at::Device device_;
};

void synchronize_device(at::Device device) {
  try {
    Driver(device).wait();
  } catch (const c10::Error& e) {
    throw device_failed(device, without_backtrace(e));
  }
}

std::string described(at::Device device) {
  Driver::use(device);
  size_t left = 0, all = 0;
  check(functions().memory(ACL_HBM_MEM, &left, &all), "no word of its memory");
  return join_text(functions().name(), ", ", bytes_text(static_cast<int64_t>(all)));
}

// Of the machine's devices, whichever of them this process sees.
std::string uuid_of(at::Device device) {
  Driver::use(device);
  aclrtUuid uuid = {};
  check(functions().uuid(device.index(), &uuid), "no word of which device it is");
  std::string text = "Ascend ";
  for (const char byte : uuid.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

const Backend kAscend = {"npu",
                         at::kPrivateUse1,
                         [] { return static_cast<int>(c10_npu::device_count()); },
                         [] {
                           return std::pair<std::string, std::string>("no Ascend device answers", "one that npu-smi lists, or cpu");
                         },
                         Driver::use,
                         synchronize_device,
                         described,
                         uuid_of,
                         [](at::Device device, int64_t num_bytes) -> std::unique_ptr<Memory> {
                           return std::make_unique<MappedMemory<Driver>>(Driver(device), num_bytes);
                         },
                         [](at::Device) { return std::unique_ptr<Graphs>(); }};

}  // namespace

const Backend& npu::backend() { return kAscend; }

}  // namespace tandem::device
