// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/kernels.h"

#include <bit>
#include <cmath>
#include <string_view>

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::model::kernel {
namespace {

const char* name_of(Library library) {
  return library == Library::kBlas ? "blas" : library == Library::kOneDnn ? "onednn" : "brgemm";
}
const char* name_of(Logits logits) { return logits == Logits::kCopies ? "float" : logits == Logits::kBlas ? "half" : "brgemm"; }

}  // namespace

std::string to_text(const GemmChoice& c) {
  return join_text(name_of(c.forward), ' ', name_of(c.input_grad), ' ', name_of(c.weight_grad), ' ', name_of(c.logits));
}

std::optional<GemmChoice> parse_choice(const std::string& text) {
  constexpr Library kAll[] = {Library::kBlas, Library::kOneDnn, Library::kBrgemm};
  for (Library forward : kAll)
    for (Library input_grad : kAll)
      for (Library weight_grad : kAll)
        for (Logits logits : {Logits::kCopies, Logits::kBlas, Logits::kBrgemm})
          if (const GemmChoice choice{forward, input_grad, weight_grad, logits}; to_text(choice) == text) return choice;
  return std::nullopt;
}

float AttentionShape::scale() const { return softmax_scale > 0 ? softmax_scale : 1.0f / std::sqrt(static_cast<float>(head_dim)); }

Trees stems(std::span<const int64_t> lengths) {
  Trees trees;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    trees.push_back({begin, length, {}});
    begin += length;
  }
  return trees;
}

AttentionRows columns_of(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t Q = shape.q_width();
  return {qkv.narrow(1, 0, Q), qkv.narrow(1, Q, qkv.size(1) - Q)};
}

const Backend& backend_named(const std::string& name, at::Device device, const std::string& option) {
  const bool is_npu = std::string_view(device::backend_of(device).name) == "npu";
  const Backend* own = device.is_cpu() ? &cpu::backend() : device.is_cuda() ? cuda::backend() : is_npu ? &npu::backend() : nullptr;
  if (name == "aten" || (name == "auto" && !own)) return aten::backend();
  if (name == "auto") return *own;
  if (name != "cpu" && name != "cuda" && name != "npu") throw UserError(option, "is '" + name + "'", "auto, cpu, cuda, npu or aten");
  if (!own || name != own->name)
    throw UserError(option, join_text("is ", name, ", and tensors are on ", device.str()),
                    own ? join_text("auto, ", own->name, " or aten") : "auto or aten");
  return *own;
}

std::vector<Drawn> draws_of(const at::Tensor& words_4D) {
  TANDEM_CHECK(words_4D.is_cpu() && words_4D.is_contiguous(), "words of draws");
  const int64_t D = words_4D.size(1);
  const float* words = words_4D.data_ptr<float>();
  std::vector<Drawn> drawn;
  drawn.reserve(static_cast<size_t>(D));
  for (int64_t d = 0; d < D; ++d) {
    if (const float check = words[3 * D + d]; !std::isfinite(check)) throw NotFinite(check);
    drawn.push_back({std::bit_cast<int32_t>(words[d]), words[D + d], words[2 * D + d]});
  }
  return drawn;
}

NotFinite::NotFinite(double log_sum)
    : UserError("model", join_text("the logits of a next token are not finite: their log-sum is ", log_sum),
                "weights without NaN or infinities; in a run a lower train.lr, from the last good checkpoint") {}

Kernels::Kernels(const Backend& backend, c10::ScalarType dtype, bool parity, at::Device device)
    : backend_(&backend),
      device_(device),
      numerics_{dtype, parity, parity ? backend.product.plain_choice(dtype) : backend.product.measured_choice(dtype)} {
  TANDEM_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "dtype");
  if (parity && device.is_cuda())
    throw UserError("parity", "rows have other bits in other company on " + device.str(), "no parity mode, or the processor");
}

std::string Kernels::description() const {
  if (backend_->product.choices == nullptr) return join_text("by ", backend_->name, parity() ? ", parity" : "");
  const GemmChoice& c = choice();
  return join_text("forward ", name_of(c.forward), ", input gradient ", name_of(c.input_grad), ", weight gradient ", name_of(c.weight_grad),
                   c.logits == Logits::kCopies ? "" : ", bfloat16 logits ", c.logits == Logits::kCopies ? "" : name_of(c.logits),
                   parity() ? ", parity" : "");
}

}  // namespace tandem::model::kernel
