// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device/register.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "tandem/base/check.h"
#include "tests/fake_device/queue.h"
#include "tests/fake_device/trouble.h"

namespace tandem::device::fake {
namespace {

constexpr auto kName = "fake";
constexpr auto kType = c10::DeviceType::PrivateUse1;
thread_local c10::DeviceIndex current = 0;

c10::Device here() { return {kType, current}; }
bool is_fake(const at::Tensor& t) { return t.defined() && t.device().type() == kType; }
Queue& queue_of_tensor(const at::Tensor& t) { return queue_of(t.device().index()); }

// ---- memory

struct Block {
  void* memory;
  size_t bytes;
  c10::DeviceIndex device;
  std::shared_ptr<Room> room;  // of the capture that made it
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  c10::reportMemoryUsageToProfiler(block->memory, -static_cast<int64_t>(block->bytes), 0, 0, {kType, block->device});
  if (!block->room) queue_of(block->device).give_bytes(static_cast<int64_t>(block->bytes));
  queue_of(block->device).free(block->memory, block->bytes, block->room.get());
  delete block;
}

// What was not computed yet is NaN, or -1.
class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, here()};
    std::shared_ptr<Room> room = queue_of(current).room();
    const bool is_there = room || queue_of(current).take_bytes(static_cast<int64_t>(bytes));
    void* memory = room ? room->take(bytes) : is_there ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, memory, "fake device out of memory. Tried to allocate ", bytes, " bytes.");
    std::memset(memory, 0xFF, bytes);
    queue_of(current).made(memory, bytes);
    c10::reportMemoryUsageToProfiler(memory, static_cast<int64_t>(bytes), 0, 0, here());
    return {memory, new Block{memory, bytes, current, std::move(room)}, &free_block, here()};
  }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "a storage of a fake device was copied"); }
};

FakeAllocator& allocator() {
  static FakeAllocator one;
  return one;
}

// ---- devices and streams: one stream each

// What had been queued when it was recorded.
struct Event {
  c10::DeviceIndex device;
  int64_t end;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override { return {kType, std::exchange(current, d.index())}; }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device d) const override { current = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(num_devices()); }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {s.device_index(), queue_of(s.device_index()).num_pushed()};
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    if (event) queue_of(static_cast<Event*>(event)->device).drain_until(static_cast<Event*>(event)->end);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeStream(const c10::Stream& s) const override { queue_of(s.device_index()).drain(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { queue_of(index).drain(); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices()); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
};

// ---- tensors

struct OnDevice {
  explicit OnDevice(std::optional<c10::Device> device) {
    if (device && device->has_index()) current = device->index();
  }
  ~OnDevice() { current = before; }
  const c10::DeviceIndex before = current;
};

using Keys = c10::DispatchKeySet;

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const OnDevice on(device);
  return at::detail::empty_generic(size, &allocator(), Keys(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const OnDevice on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), Keys(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// From the host a plain copy has read its source when it returns; one that does not block reads it late, as a device would.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (is_fake(to)) {
    at::Tensor source;
    if (is_fake(from)) {
      if (from.device() != to.device()) queue_of_tensor(from).drain();
      source = host_view(from);
      if (from.device() != to.device()) source = source.clone();
    } else {
      TORCH_CHECK(!queue_of_tensor(to).is_capturing(), "what is captured must not read the host");
      source = non_blocking ? from : from.clone();
    }
    queue_of_tensor(to).push("copy", [target = host_view(to), source]() mutable { target.copy_(source); });
    return to;
  }
  at::Tensor target = to;
  if (non_blocking) {
    queue_of_tensor(from).push("copy to the host", [target, source = host_view(from)]() mutable { target.copy_(source); });
    return to;
  }
  queue_of_tensor(from).drain();
  target.copy_(host_view(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "a copy that resizes, on a fake device");
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& t) {
  queue_of_tensor(t).drain();
  return host_view(t).item();
}

// Libtorch knows the shapes of results only where an operator is described to it; these are not.
at::Tensor index_select(const at::Tensor& from, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = from.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, from.dim()))] = index.numel();
  at::Tensor out = at::empty(sizes, from.options());
  return at::index_select_out(out, from, dim, index);
}

at::Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const double size = std::ceil((end.toDouble() - start.toDouble()) / step.toDouble());
  out.resize_({static_cast<int64_t>(size)});
  queue_of_tensor(out).push("arange", [to = host_view(out), start, end, step]() mutable { at::arange_out(to, start, end, step); });
  return out;
}

// ---- everything else: the processor's operator, late

// Calls `each` for the tensors of a value, and puts what it returns in their place.
template <class Each>
c10::IValue with_tensors(const c10::IValue& value, const Each& each) {
  if (value.isTensor()) return each(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(each(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      out.push_back(t ? std::optional<at::Tensor>(each(*t)) : std::nullopt);
    return out;
  }
  return value;
}

// The device of all tensors among the arguments. One number may be on the host.
c10::Device device_of(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const c10::IValue& argument : arguments)
    with_tensors(argument, [&](const at::Tensor& t) {
      if (!is_fake(t)) {
        TORCH_CHECK(!t.defined() || t.dim() == 0, op.schema().name(), ": a tensor of the host among those of a fake device");
        return t;
      }
      TORCH_CHECK(!device || *device == t.device(), op.schema().name(), ": tensors of ", *device, " and of ", t.device());
      device = t.device();
      return t;
    });
  TORCH_CHECK(device, op.schema().name(), " makes a tensor on a fake device in a way that is not known");
  return *device;
}

// What it returns is what it has written into its arguments.
bool writes_in_place(const c10::FunctionSchema& schema) {
  return std::ranges::all_of(schema.returns(), [](const c10::Argument& r) { return r.alias_info() && r.alias_info()->isWrite(); });
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(&stack);
  if (op.schema().name() != wrong_operator()) return;
  for (const c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().is_floating_point()) value.toTensor().mul_(1.01);
}

// All but the result.
std::vector<int64_t> common_sizes(at::ArrayRef<c10::IValue> arguments, const at::Tensor& result) {
  std::vector<int64_t> sizes;
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined() && !argument.toTensor().is_same(result))
      sizes = at::infer_size(sizes, argument.toTensor().sizes());
  return sizes;
}

// The shape of what the operator returns is not known before it has run.
void wait_for_shape(Queue& queue, const c10::FunctionSchema& schema) {
  TORCH_CHECK(!queue.is_capturing(), schema.name(), " cannot be captured: its result has no known shape");
  queue.drain();
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, count);
  const c10::Device device = device_of(op, arguments);
  Queue& queue = queue_of(device.index());
  torch::jit::Stack on_host, written;
  std::vector<std::pair<at::Tensor, at::Tensor>> rooms;  // tensors that get their size from what is written into them, and the host's
  for (size_t i = 0; i < count; ++i) {
    on_host.push_back(with_tensors(arguments[i], [](const at::Tensor& t) {
      if (is_fake(t)) return host_view(t);
      return t.defined() ? t.clone() : t;
    }));
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (!alias || !alias->isWrite()) continue;
    written.push_back(arguments[i]);
    if (!arguments[i].isTensor() || arguments[i].toTensor().sizes() != at::IntArrayRef({0})) continue;
    rooms.emplace_back(arguments[i].toTensor(), at::empty({0}, arguments[i].toTensor().scalar_type()));
    on_host.back() = rooms.back().second;
  }
  if (rooms.size() == 1 && op.hasTag(at::Tag::pointwise)) {  // of the shape that its arguments have together
    const at::Tensor& out = rooms[0].first;
    out.resize_(common_sizes(arguments, out));
    for (size_t i = 0; i < count; ++i)
      if (arguments[i].isTensor() && arguments[i].toTensor().is_same(out)) on_host[i] = host_view(out);
    rooms.clear();
  }
  if (writes_in_place(schema)) {
    const size_t results = schema.returns().size();
    TORCH_CHECK(results <= written.size(), schema.name(), " returns more than it writes");
    if (rooms.empty()) {
      queue.push(schema.name().c_str(), [op, on_host = std::move(on_host)] {
        torch::jit::Stack again = on_host;
        run_on_host(op, again);
      });
    } else {
      wait_for_shape(queue, schema);
      run_on_host(op, on_host);
      for (const auto& [to, from] : rooms) to.resize_(from.sizes()).copy_(from);
    }
    torch::jit::drop(*stack, count);
    for (size_t i = 0; i < results; ++i) stack->push_back(written[i]);
    return;
  }
  for (const c10::Argument& result : schema.returns())
    TORCH_CHECK(!result.alias_info(), schema.name(), " makes a view in a way that is not known on a fake device");
  wait_for_shape(queue, schema);
  run_on_host(op, on_host);
  torch::jit::drop(*stack, count);
  for (const c10::IValue& result : on_host)
    stack->push_back(with_tensors(result, [&](const at::Tensor& t) {
      return t.defined() ? t.to(device, /*non_blocking=*/false, /*copy=*/true) : t;
    }));
}

void register_all() {
  c10::register_privateuse1_backend(kName);
  c10::SetAllocator(kType, &allocator());
  static const Guard guard;
  static const c10::impl::DeviceGuardImplRegistrar guards(kType, &guard);
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  static torch::Library rest(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own.impl("empty.memory_format", empty);
  own.impl("empty_strided", empty_strided);
  own.impl("as_strided", at::native::as_strided_tensorimpl);
  own.impl("view", at::native::view);
  own.impl("_reshape_alias", at::native::_reshape_alias);
  own.impl("resize_", at::native::resize_);
  own.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  own.impl("_copy_from", copy_from);
  own.impl("_copy_from_and_resize", copy_from_and_resize);
  own.impl("_local_scalar_dense", local_scalar);
  own.impl("index_select", index_select);
  own.impl("arange.start_out", arange);
}

}  // namespace

at::Tensor host_view(const at::Tensor& t) {
  return at::for_blob(t.data_ptr(), t.sizes())
      .strides(t.strides())
      .options(at::TensorOptions(t.scalar_type()))
      .target_device(at::kCPU)
      .make_tensor();
}

bool can_register() { return !c10::is_privateuse1_backend_registered() || c10::get_privateuse1_backend() == kName; }

void register_device() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace tandem::device::fake
