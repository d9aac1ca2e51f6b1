// SPDX-License-Identifier: Apache-2.0
// The backward pass of attention on one thread while another one draws and multiplies, as ranks do that are threads of a process. On CUDA
// operators ask libtorch whether they must repeat their bits, and throw where they cannot; here a stand-in asks for them.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tandem/model/kernel/aten/flash.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::model::kernel {
namespace {

// Takes a while, and gives gradients of zeros.
void flash_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, count);
  const at::Tensor q = arguments[1].toTensor(), k = arguments[2].toTensor(), v = arguments[3].toTensor();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  torch::jit::drop(*stack, count);
  for (const at::Tensor& of : {q, k, v}) stack->push_back(at::zeros_like(of));
}

// As operators on CUDA do that add in any order.
void as_on_cuda(const char* what) { at::globalContext().alertNotDeterministic(what); }

TEST(Repeating, AThreadDrawsAndMultipliesWhileAnotherOneIsInAttentionsBackwardPass) {
  torch::Library stand_in(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  stand_in.impl("_flash_attention_backward", torch::CppFunction::makeFromBoxedFunction<&flash_backward>());
  constexpr int64_t kTokens = 12, kDraws = 4, kIds = 50;
  const AttentionShape shape{2, 1, 8};
  std::atomic<bool> ended = false;
  std::thread trains([&] {
    const std::vector<int64_t> lengths = {5, 7};
    const aten::FlashPlan plan = aten::flash_plan(stems(lengths), at::kCPU);
    const at::Tensor qkv = at::randn({kTokens, shape.width()}), d_qkv = at::ones_like(qkv), o = at::randn({kTokens, shape.q_width()});
    const AttentionOutput out{o, at::randn({kTokens, shape.num_heads}), o};
    for (int pass = 0; pass < 100; ++pass)
      aten::flash_packed_backward(columns_of(qkv, shape), out, plan, shape, columns_of(d_qkv, shape));
    EXPECT_EQ(d_qkv.abs().sum().item<float>(), 0) << "the stand-in has run";
    ended = true;
  });
  const at::Tensor logits = at::randn({1, kDraws, kIds}), x = at::randn({kDraws, 16}), w = at::randn({8, 16});
  const DrawArgs args{at::arange(kDraws), at::ones({kDraws}, at::kDouble), at::zeros({kDraws}, at::kLong),
                      at::full({kDraws}, 0.9, at::kDouble), at::full({kDraws}, 0.5, at::kDouble), kIds, kIds};
  const Backend& backend = aten::backend();
  EXPECT_NO_THROW(while (!ended) {
    as_on_cuda("a draw by top-p");
    (void)backend.logit.draw(logits, args);
    as_on_cuda("a product");
    at::Tensor y = at::empty({kDraws, 8});
    backend.product.forward({}, y, x, w);
  });
  trains.join();
}

}  // namespace
}  // namespace tandem::model::kernel
