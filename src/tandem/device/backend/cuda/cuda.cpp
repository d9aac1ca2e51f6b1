// SPDX-License-Identifier: Apache-2.0
// CUDA: tensors by libtorch; arenas by the driver's virtual memory, whose functions are looked up where the driver is.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/strings.h"
#include "tandem/device/device.h"
#include "tandem/device/fault.h"

namespace tandem::device {
namespace {

// Whole allocations of the driver take 2 MiB at least; few large ones are mapped faster.
constexpr int64_t kLargeChunk = 32 << 20, kChunk = 2 << 20, kManyLarge = 8;

template <class Function>
Function* found(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) throw PeerError(join_text("the CUDA driver cannot be loaded: ", ::dlerror()));
  void* const function = ::dlsym(library, name);
  if (!function) throw PeerError(join_text("the CUDA driver has no ", name, " (one of CUDA 12 or later has it)"));
  return reinterpret_cast<Function*>(function);
}

struct Driver {
  decltype(&::cuMemAddressReserve) reserve = found<decltype(::cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&::cuMemAddressFree) free = found<decltype(::cuMemAddressFree)>("cuMemAddressFree");
  decltype(&::cuMemCreate) create = found<decltype(::cuMemCreate)>("cuMemCreate");
  decltype(&::cuMemRelease) release = found<decltype(::cuMemRelease)>("cuMemRelease");
  decltype(&::cuMemMap) map = found<decltype(::cuMemMap)>("cuMemMap");
  decltype(&::cuMemUnmap) unmap = found<decltype(::cuMemUnmap)>("cuMemUnmap");
  decltype(&::cuMemSetAccess) set_access = found<decltype(::cuMemSetAccess)>("cuMemSetAccess");
  decltype(&::cuMemsetD8Async) set_bytes = found<decltype(::cuMemsetD8Async)>("cuMemsetD8Async");
  decltype(&::cuGetErrorString) error_text = found<decltype(::cuGetErrorString)>("cuGetErrorString");
};

const Driver& driver() {
  static const Driver one;
  return one;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().error_text(result, &text);
  throw PeerError(join_text("the CUDA driver: ", what, ": ", text ? text : "unknown error"));
}

class CudaMemory final : public Memory {
 public:
  CudaMemory(at::Device device, int64_t num_bytes) : device_(device) {
    c10::cuda::set_device(device.index());
    c10::cuda::device_synchronize();  // makes the context, where there is none
    chunk_bytes_ = num_bytes >= kManyLarge * kLargeChunk ? kLargeChunk : kChunk;
    handles_.resize(static_cast<size_t>((num_bytes + chunk_bytes_ - 1) / chunk_bytes_));
    CUdeviceptr address = 0;
    check(driver().reserve(&address, size(0, std::ssize(handles_)), 0, 0, 0), "no addresses");
    address_ = reinterpret_cast<std::byte*>(address);
  }
  ~CudaMemory() override {
    try {
      for (int64_t c = 0; c < std::ssize(handles_); ++c)
        if (handles_[static_cast<size_t>(c)] != 0) release(c, c + 1);
    } catch (const std::exception&) {  // a lost device has told who waited for it
      return;
    }
    driver().free(at(0), size(0, std::ssize(handles_)));
  }
  bool back(int64_t first, int64_t last) override {
    c10::cuda::set_device(device_.index());
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_.index()};
    for (int64_t c = first; c < last; ++c) {
      CUmemGenericAllocationHandle handle = 0;
      CUresult made = driver().create(&handle, size(c, c + 1), &kind, 0);
      if (made == CUDA_ERROR_OUT_OF_MEMORY) {  // libtorch may keep what nobody uses
        c10::cuda::device_synchronize();
        c10::cuda::CUDACachingAllocator::emptyCache();
        made = driver().create(&handle, size(c, c + 1), &kind, 0);
      }
      if (made == CUDA_ERROR_OUT_OF_MEMORY) {
        if (c > first) release(first, c);
        return false;
      }
      check(made, "no memory");
      check(driver().map(at(c), size(c, c + 1), 0, handle, 0), "memory is not mapped");
      handles_[static_cast<size_t>(c)] = handle;
    }
    const CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().set_access(at(first), size(first, last), &access, 1), "no access to memory");
    const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
    check(driver().set_bytes(at(first), 0, size(first, last), stream), "memory is not cleared");
    return true;
  }
  bool release(int64_t first, int64_t last) override {
    c10::cuda::set_device(device_.index());
    c10::cuda::device_synchronize();
    for (int64_t c = first; c < last; ++c) {
      check(driver().unmap(at(c), size(c, c + 1)), "memory is not unmapped");
      check(driver().release(handles_[static_cast<size_t>(c)]), "memory is not released");
      handles_[static_cast<size_t>(c)] = 0;
    }
    return true;
  }

 private:
  size_t size(int64_t first, int64_t last) const { return static_cast<size_t>((last - first) * chunk_bytes_); }
  CUdeviceptr at(int64_t chunk) const { return reinterpret_cast<CUdeviceptr>(address_) + static_cast<CUdeviceptr>(chunk * chunk_bytes_); }

  const at::Device device_;
  std::vector<CUmemGenericAllocationHandle> handles_;  // by chunk; 0: no memory
};

// Where graphs of one device are captured, and the memory that they share: what one has computed is read before another is replayed.
struct CaptureRoom {
  c10::cuda::CUDAStream stream;
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
};
CaptureRoom& capture_room(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, CaptureRoom> rooms;
  std::lock_guard lock(mutex);
  const auto found = rooms.find(index);
  if (found != rooms.end()) return found->second;
  return rooms.emplace(index, CaptureRoom{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index)}).first->second;
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(at::Device device) : device_(device) {}
  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard here(device_);
    bool is_capturing = false;
    try {
      c10::cuda::device_synchronize();
      CaptureRoom& room = capture_room(device_.index());
      const c10::cuda::CUDAStreamGuard guard(room.stream);
      work();
      room.stream.synchronize();
      graph_.capture_begin(room.pool, cudaStreamCaptureModeThreadLocal);
      is_capturing = true;
      work();
      is_capturing = false;
      graph_.capture_end();
    } catch (const std::exception& e) {
      if (is_capturing) end_capture();
      throw device_failed(device_, join_text("a graph: ", without_backtrace(e)));
    }
  }
  void replay() override { graph_.replay(); }

 private:
  // After a failure, whatever that ends with: the first error is told.
  void end_capture() noexcept {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
    }
  }

  const at::Device device_;
  at::cuda::CUDAGraph graph_;
};

std::string described(at::Device device) {
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  return join_text(properties->name, ", ", bytes_text(static_cast<int64_t>(properties->totalGlobalMem)));
}

// A system may bound how much is pinned: then the rest is copied by way of what is.
bool pin(void* memory, size_t bytes) {
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  log::warning("CUDA does not pin ", bytes_text(static_cast<int64_t>(bytes)), " of the host, so copies are slower: ", cudaGetErrorString(error));
  return false;
}

std::string pci_address(at::Device device) {
  char text[32] = "";
  (void)cudaDeviceGetPCIBusId(text, sizeof text, device.index());
  return text;
}

const Backend kCuda = {"cuda",
                       at::kCUDA,
                       [] { return static_cast<int>(c10::cuda::device_count()); },
                       [] {
                         return std::pair<std::string, std::string>("no CUDA device answers", "one that nvidia-smi lists, or cpu");
                       },
                       [](at::Device device) { c10::cuda::set_device(device.index()); },
                       [](at::Device device) {
                         try {
                           c10::cuda::set_device(device.index());
                           c10::cuda::device_synchronize();
                         } catch (const c10::Error& e) {
                           throw device_failed(device, without_backtrace(e));
                         }
                       },
                       described,
                       pci_address,
                       [](at::Device device, int64_t num_bytes) -> std::unique_ptr<Memory> {
                         return std::make_unique<CudaMemory>(device, num_bytes);
                       },
                       [](at::Device device) -> std::unique_ptr<Graph> { return std::make_unique<CudaGraph>(device); },
                       /*has_host_memory=*/false,
                       pin,
                       [](void* memory) { (void)cudaHostUnregister(memory); }};

}  // namespace

const Backend& cuda::backend() { return kCuda; }

}  // namespace tandem::device
