// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/row_sampler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "tandem/base/rng.h"

namespace tandem::rollout {
namespace {

model::kernel::DrawArgs args_of(const model::Decoder& decoder, int64_t num_tokens, std::span<const RowDraw> draws) {
  const int64_t D = std::ssize(draws);
  const auto column = [&](c10::ScalarType dtype) { return at::empty({D}, dtype); };
  model::kernel::DrawArgs args{column(at::kLong),   column(at::kDouble), column(at::kLong),           column(at::kDouble),
                               column(at::kDouble), decoder.config().vocab_size, num_tokens};
  int64_t *rows = args.rows_D.data_ptr<int64_t>(), *top_k = args.top_k_D.data_ptr<int64_t>();
  double *temperature = args.temperature_D.data_ptr<double>(), *top_p = args.top_p_D.data_ptr<double>(),
         *uniform = args.uniform_D.data_ptr<double>();
  for (int64_t d = 0; d < D; ++d) {
    const auto& [row, request, position] = draws[static_cast<size_t>(d)];
    RandomStream random(request->seed, static_cast<uint64_t>(value(request->sample)), static_cast<uint64_t>(position));
    rows[d] = row;
    temperature[d] = request->sampling.temperature;
    top_k[d] = request->sampling.top_k;
    top_p[d] = request->sampling.top_p;
    uniform[d] = random.uniform();
  }
  return args;
}

}  // namespace

void RowSampler::begin(const at::Tensor& logits_SRV, std::span<const RowDraw> draws) {
  num_draws_ = draws.size();
  words_4D_.reset();
  if (!logits_SRV.defined() || draws.empty()) return;
  words_4D_ = decoder_.kernels().logit().draw(logits_SRV, args_of(decoder_, num_tokens_, draws));
  copy_.begin(words_4D_);
}

at::Tensor RowSampler::tokens_D() const { return words_4D_.defined() ? words_4D_[0].view(at::kInt) : at::Tensor(); }

std::vector<Drawn> RowSampler::finish() {
  const at::Tensor words_4D = std::exchange(words_4D_, {});
  std::vector<Drawn> drawn = words_4D.defined() ? model::kernel::draws_of(copy_.wait()) : std::vector<Drawn>(num_draws_);
  if (comm::Group* stages = decoder_.place().pp; stages && !drawn.empty()) {
    at::Tensor bytes = at::from_blob(drawn.data(), {std::ssize(drawn) * static_cast<int64_t>(sizeof(Drawn))}, at::kByte);
    stages->broadcast(bytes, stages->size() - 1);
  }
  return drawn;
}

}  // namespace tandem::rollout
