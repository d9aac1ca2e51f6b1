// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cuda/program.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::model::kernel::cuda {
namespace {

void* library_of(const std::vector<const char*>& names) {
  for (const char* name : names)
    if (void* const library = ::dlopen(name, RTLD_NOW)) return library;
  throw PeerError(join_text("kernels for CUDA: ", names.front(), " cannot be loaded"));
}

template <class Function>
Function* found(void* library, const char* name) {
  void* const function = ::dlsym(library, name);
  if (!function) throw PeerError(join_text("kernels for CUDA: there is no ", name));
  return reinterpret_cast<Function*>(function);
}

struct Compiler {
  void* library = library_of({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  decltype(&::nvrtcCreateProgram) create = found<decltype(::nvrtcCreateProgram)>(library, "nvrtcCreateProgram");
  decltype(&::nvrtcCompileProgram) compile = found<decltype(::nvrtcCompileProgram)>(library, "nvrtcCompileProgram");
  decltype(&::nvrtcGetProgramLogSize) log_size = found<decltype(::nvrtcGetProgramLogSize)>(library, "nvrtcGetProgramLogSize");
  decltype(&::nvrtcGetProgramLog) log = found<decltype(::nvrtcGetProgramLog)>(library, "nvrtcGetProgramLog");
  decltype(&::nvrtcGetCUBINSize) size = found<decltype(::nvrtcGetCUBINSize)>(library, "nvrtcGetCUBINSize");
  decltype(&::nvrtcGetCUBIN) get = found<decltype(::nvrtcGetCUBIN)>(library, "nvrtcGetCUBIN");
  decltype(&::nvrtcAddNameExpression) add_name = found<decltype(::nvrtcAddNameExpression)>(library, "nvrtcAddNameExpression");
  decltype(&::nvrtcGetLoweredName) lowered = found<decltype(::nvrtcGetLoweredName)>(library, "nvrtcGetLoweredName");
  decltype(&::nvrtcDestroyProgram) destroy = found<decltype(::nvrtcDestroyProgram)>(library, "nvrtcDestroyProgram");
};

struct Loader {
  void* library = library_of({"libcuda.so.1"});
  decltype(&::cuModuleLoadData) load = found<decltype(::cuModuleLoadData)>(library, "cuModuleLoadData");
  decltype(&::cuModuleGetFunction) function = found<decltype(::cuModuleGetFunction)>(library, "cuModuleGetFunction");
  decltype(&::cuLaunchKernel) launch = found<decltype(::cuLaunchKernel)>(library, "cuLaunchKernel");
  decltype(&::cuGetErrorString) text = found<decltype(::cuGetErrorString)>(library, "cuGetErrorString");
};
const Loader& loader() {
  static const Loader one;
  return one;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  loader().text(result, &text);
  throw PeerError(join_text("kernels for CUDA: ", what, ": ", text ? text : "unknown error"));
}

struct Compiled {
  std::vector<char> code;
  std::map<std::string, std::string> names;  // of a kernel for a dtype, such as rope<float>: as the code has it
};

Compiled compiled(const std::string& architecture) {
  const Compiler compiler;
  nvrtcProgram program = nullptr;
  if (compiler.create(&program, kSource, "tandem.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS)
    throw PeerError("kernels for CUDA: NVRTC makes no program");
  std::vector<std::string> wanted;
  for (const char* const* name = kTemplates; *name; ++name)
    for (const char* dtype : {"<float>", "<Half>"}) wanted.push_back(join_text(*name, dtype));
  for (const std::string& name : wanted) compiler.add_name(program, name.c_str());
  const char* options[] = {architecture.c_str(), "--std=c++17"};
  if (compiler.compile(program, 2, options) != NVRTC_SUCCESS) {
    size_t size = 0;
    compiler.log_size(program, &size);
    std::string log(size, ' ');
    compiler.log(program, log.data());
    throw PeerError("kernels for CUDA do not compile: " + log);
  }
  size_t size = 0;
  compiler.size(program, &size);
  Compiled out{std::vector<char>(size), {}};
  compiler.get(program, out.code.data());
  for (const std::string& name : wanted) {
    const char* lowered = nullptr;
    compiler.lowered(program, name.c_str(), &lowered);
    out.names[name] = lowered ? lowered : "";
  }
  compiler.destroy(&program);
  return out;
}

// Of one device.
class Program {
 public:
  explicit Program(c10::DeviceIndex index) {
    c10::cuda::device_synchronize();  // makes the context, where there is none
    const cudaDeviceProp* p = at::cuda::getDeviceProperties(index);
    Compiled out = compiled(join_text("--gpu-architecture=sm_", p->major, p->minor));
    names_ = std::move(out.names);
    check(loader().load(&module_, out.code.data()), "the program is not loaded");
  }
  CUfunction function(const std::string& name, const char* dtype) {
    CUfunction& f = functions_[name + dtype];
    if (f) return f;
    const auto found = names_.find(name + dtype);
    check(loader().function(&f, module_, found == names_.end() ? name.c_str() : found->second.c_str()), name.c_str());
    return f;
  }

 private:
  CUmodule module_ = nullptr;  // for the life of the process
  std::map<std::string, std::string> names_;
  std::map<std::string, CUfunction> functions_;
};

CUfunction function_of(const std::string& name, const char* dtype, c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::unique_ptr<Program>> programs;
  std::lock_guard lock(mutex);
  std::unique_ptr<Program>& program = programs[index];
  if (!program) program = std::make_unique<Program>(index);
  return program->function(name, dtype);
}

}  // namespace

void launch(const char* name, const at::Tensor& like, int64_t num_blocks, int threads, std::initializer_list<const void*> arguments) {
  if (num_blocks == 0) return;
  const c10::DeviceIndex index = like.device().index();
  const c10::cuda::CUDAGuard here(like.device());
  const CUfunction f = function_of(name, like.scalar_type() == at::kFloat ? "<float>" : "<Half>", index);
  std::vector<void*> all;
  for (const void* argument : arguments) all.push_back(const_cast<void*>(argument));
  check(loader().launch(f, static_cast<unsigned>(num_blocks), 1, 1, static_cast<unsigned>(threads), 1, 1, 0,
                        c10::cuda::getCurrentCUDAStream(index), all.data(), nullptr),
        name);
}

}  // namespace tandem::model::kernel::cuda
