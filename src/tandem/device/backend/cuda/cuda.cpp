// SPDX-License-Identifier: Apache-2.0
// CUDA: tensors by libtorch; arenas by the driver's virtual memory, whose functions are looked up where the driver is.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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
  return function_of<Function>("libcuda.so.1", name);
}

struct Functions {
  decltype(&::cuMemAddressReserve) reserve = of_driver<decltype(::cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&::cuMemAddressFree) free = of_driver<decltype(::cuMemAddressFree)>("cuMemAddressFree");
  decltype(&::cuMemCreate) create = of_driver<decltype(::cuMemCreate)>("cuMemCreate");
  decltype(&::cuMemRelease) release = of_driver<decltype(::cuMemRelease)>("cuMemRelease");
  decltype(&::cuMemMap) map = of_driver<decltype(::cuMemMap)>("cuMemMap");
  decltype(&::cuMemUnmap) unmap = of_driver<decltype(::cuMemUnmap)>("cuMemUnmap");
  decltype(&::cuMemSetAccess) set_access = of_driver<decltype(::cuMemSetAccess)>("cuMemSetAccess");
  decltype(&::cuMemsetD8Async) set_bytes = of_driver<decltype(::cuMemsetD8Async)>("cuMemsetD8Async");
  decltype(&::cuDeviceGetAttribute) attribute = of_driver<decltype(::cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  decltype(&::cuGetErrorString) error_text = of_driver<decltype(::cuGetErrorString)>("cuGetErrorString");
};

const Functions& functions() {
  static const Functions one;
  return one;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  functions().error_text(result, &text);
  throw PeerError(join_text("the CUDA driver: ", what, ": ", text ? text : "unknown error"));
}

// What mapped_memory.h asks of a driver.
class Driver {
 public:
  using Handle = CUmemGenericAllocationHandle;

  explicit Driver(at::Device device) : device_(device) {
    c10::cuda::set_device(device.index());
    c10::cuda::device_synchronize();  // makes the context, where there is none
    // Where ranks are threads, NCCL reads a peer's tensors by their addresses.
    for (int i = 0; i < c10::cuda::device_count(); ++i)
      if (i == device.index() || reaches(i)) access_.push_back({location_of(i), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    int exports = 0;
    check(functions().attribute(&exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device.index()),
          "no word of handles that other processes take");
    exports_ = exports != 0;
  }
  std::byte* reserve(int64_t bytes) const {
    CUdeviceptr address = 0;
    check(functions().reserve(&address, size(bytes), 0, 0, 0), "no addresses");
    return reinterpret_cast<std::byte*>(address);
  }
  void free(std::byte* address, int64_t bytes) const { check(functions().free(pointer(address), size(bytes)), "addresses are not freed"); }
  Handle make(int64_t bytes) const {
    c10::cuda::set_device(device_.index());
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = location_of(device_.index());
    // NCCL's registration and symmetric memory of other processes take no other memory.
    if (exports_) kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Handle handle = 0;
    CUresult made = functions().create(&handle, size(bytes), &kind, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {  // libtorch may keep what nobody uses
      c10::cuda::device_synchronize();
      c10::cuda::CUDACachingAllocator::emptyCache();
      made = functions().create(&handle, size(bytes), &kind, 0);
    }
    if (made == CUDA_ERROR_OUT_OF_MEMORY) return {};
    check(made, "no memory");
    return handle;
  }
  void map(std::byte* at, int64_t bytes, Handle handle) const {
    check(functions().map(pointer(at), size(bytes), 0, handle, 0), "memory is not mapped");
  }
  void open(std::byte* at, int64_t bytes) const {
    check(functions().set_access(pointer(at), size(bytes), access_.data(), access_.size()), "no access to memory");
    const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
    check(functions().set_bytes(pointer(at), 0, size(bytes), stream), "memory is not cleared");
  }
  void unmap(std::byte* at, int64_t bytes) const { check(functions().unmap(pointer(at), size(bytes)), "memory is not unmapped"); }
  void drop(Handle handle) const { check(functions().release(handle), "memory is not released"); }
  void wait() const {
    c10::cuda::set_device(device_.index());
    c10::cuda::device_synchronize();
  }

 private:
  static size_t size(int64_t bytes) { return static_cast<size_t>(bytes); }
  static CUdeviceptr pointer(std::byte* address) { return reinterpret_cast<CUdeviceptr>(address); }
  static CUmemLocation location_of(int index) { return {CU_MEM_LOCATION_TYPE_DEVICE, index}; }
  bool reaches(int other) const {
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, other, device_.index()) == cudaSuccess) return can != 0;
    (void)cudaGetLastError();
    return false;
  }

  at::Device device_;
  std::vector<CUmemAccessDesc> access_;  // this device, and those that can reach its memory
  bool exports_ = false;
};

// Where graphs of a device are captured, one at a time: a stream for the life of the process, since cuBLAS keeps a workspace for each that
// it meets.
struct CaptureStream {
  c10::cuda::CUDAStream stream;
  std::mutex mutex = {};
};

CaptureStream& capture_stream(at::Device device) {
  static std::mutex mutex;
  static std::map<at::DeviceIndex, std::unique_ptr<CaptureStream>> streams;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CaptureStream>& one = streams[device.index()];
  if (!one) one.reset(new CaptureStream{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())});
  return *one;
}

// Memory that graphs share.
struct CaptureRoom {
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(at::Device device, std::shared_ptr<CaptureRoom> room) : device_(device), room_(std::move(room)) {}
  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard here(device_);
    CaptureStream& on = capture_stream(device_);
    const std::lock_guard lock(on.mutex);
    bool is_capturing = false;
    try {
      c10::cuda::device_synchronize();
      const c10::cuda::CUDAStreamGuard guard(on.stream);
      work();
      on.stream.synchronize();
      graph_.capture_begin(room_->pool, cudaStreamCaptureModeThreadLocal);
      is_capturing = true;
      work();
      is_capturing = false;
      graph_.capture_end();
    } catch (const std::exception&) {
      if (is_capturing) end_capture();
      throw;
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
  const std::shared_ptr<CaptureRoom> room_;  // as long as the graph uses its pool
  at::cuda::CUDAGraph graph_;
};

class CudaGraphs final : public Graphs {
 public:
  explicit CudaGraphs(at::Device device) : device_(device) {}
  // Libtorch takes no pool again that nobody uses: a room ends with its last graph.
  std::unique_ptr<Graph> make() override {
    std::shared_ptr<CaptureRoom> room = room_.lock();
    if (!room) room_ = room = std::make_shared<CaptureRoom>();
    return std::make_unique<CudaGraph>(device_, std::move(room));
  }

 private:
  const at::Device device_;
  std::weak_ptr<CaptureRoom> room_;
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
  log::warning("CUDA does not pin ", bytes_text(static_cast<int64_t>(bytes)), " of the host, so copies are slower: ",
               cudaGetErrorString(error));
  return false;
}

std::string pci_address(at::Device device) {
  char text[32] = "";
  (void)cudaDeviceGetPCIBusId(text, sizeof text, device.index());
  return text;
}

// A driver that is older than the runtime finds no device, and nvidia-smi lists them all the same.
std::pair<std::string, std::string> why_none() {
  int driver = 0, runtime = 0;
  const bool is_known = cudaDriverGetVersion(&driver) == cudaSuccess && cudaRuntimeGetVersion(&runtime) == cudaSuccess;
  const auto version = [](int v) { return join_text(v / 1000, ".", v % 1000 / 10); };
  if (is_known && driver == 0) return {"no NVIDIA driver is here", "a machine with one, or cpu"};
  if (is_known && driver / 1000 < runtime / 1000)
    return {join_text("the driver is for CUDA ", version(driver), ", and libtorch for ", version(runtime)), "a newer driver, or cpu"};
  return {"no CUDA device answers", "one that nvidia-smi lists and CUDA_VISIBLE_DEVICES does not hide, or cpu"};
}

// For the whole process, before its first tensor there, and never again: operators of all threads read these.
// Parts of a sum in bfloat16 are added up in float32, as the processor does. The backward pass of attention repeats its bits only in
// libtorch's deterministic mode; in it operators that cannot repeat theirs throw, of which none is used here: neither torch 2.11 nor 2.13
// has a cumsum that does.
void set_up_once() {
  static const bool once = [] {
    // Products repeat their bits with it, and libtorch would throw without: it looks at the first product of the process. It is as large as
    // the one that libtorch takes on its own.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::Context& context = at::globalContext();
    context.setAllowBF16ReductionCuBLAS(false);
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    return true;
  }();
  (void)once;
}

const Backend kCuda = {"cuda",
                       at::kCUDA,
                       [] { return static_cast<int>(c10::cuda::device_count()); },
                       why_none,
                       [](at::Device device) {
                         set_up_once();
                         c10::cuda::set_device(device.index());
                       },
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
                         return std::make_unique<MappedMemory<Driver>>(Driver(device), num_bytes);
                       },
                       [](at::Device device) -> std::unique_ptr<Graphs> { return std::make_unique<CudaGraphs>(device); },
                       /*has_host_memory=*/false,
                       pin,
                       [](void* memory) { (void)cudaHostUnregister(memory); }};

}  // namespace

const Backend& cuda::backend() { return kCuda; }

}  // namespace tandem::device
