// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/row_sampler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "tandem/base/rng.h"

namespace tandem::rollout {
namespace {

model::kernel::DrawArgs args_of(const model::Decoder& decoder, int64_t num_tokens, std::span<const RowDraw> draws) {
  const int64_t D = std::ssize(draws);
  const auto column = [&](c10::ScalarType dtype) { return at::empty({D}, dtype); };
  model::kernel::DrawArgs args{column(at::kLong),   column(at::kDouble), column(at::kLong),           column(at::kDouble),
                               column(at::kDouble), decoder.config().vocab_size, num_tokens};
  for (int64_t d = 0; d < D; ++d) {
    const auto& [row, request, position] = draws[static_cast<size_t>(d)];
    RandomStream random(request->seed, static_cast<uint64_t>(value(request->sample)), static_cast<uint64_t>(position));
    args.rows_D.data_ptr<int64_t>()[d] = row;
    args.temperature_D.data_ptr<double>()[d] = request->sampling.temperature;
    args.top_k_D.data_ptr<int64_t>()[d] = request->sampling.top_k;
    args.top_p_D.data_ptr<double>()[d] = request->sampling.top_p;
    args.uniform_D.data_ptr<double>()[d] = random.uniform();
  }
  return args;
}

}  // namespace

at::Tensor RowSampler::begin(const at::Tensor& logits_SRV, std::span<const RowDraw> draws) {
  num_draws_ = draws.size();
  has_words_ = logits_SRV.defined() && !draws.empty();
  if (!has_words_) return {};
  const at::Tensor words_4D = decoder_.kernels().logit().draw(logits_SRV, args_of(decoder_, num_tokens_, draws));
  words_4D_.begin(words_4D);
  return words_4D[0].view(at::kInt);
}

std::vector<Drawn> RowSampler::finish() {
  std::vector<Drawn> drawn(num_draws_);
  if (has_words_) {
    const model::kernel::Draws out = model::kernel::draws_of(words_4D_.wait());
    for (size_t d = 0; d < drawn.size(); ++d)
      drawn[d] = {out.tokens_D.data_ptr<int32_t>()[d], out.logprobs_D.data_ptr<float>()[d], out.kept_mass_D.data_ptr<float>()[d]};
  }
  if (comm::Group* stages = decoder_.place().pp; stages && !drawn.empty()) {
    at::Tensor bytes = at::from_blob(drawn.data(), {std::ssize(drawn) * static_cast<int64_t>(sizeof(Drawn))}, at::kByte);
    stages->broadcast(bytes, stages->size() - 1);
  }
  return drawn;
}

}  // namespace tandem::rollout
