// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/row_sampler.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include "tandem/base/rng.h"

namespace tandem::rollout {

std::vector<Drawn> draw_rows(const model::Decoder& decoder, int64_t num_tokens, const at::Tensor& logits_SRV,
                             std::span<const RowDraw> draws) {
  std::vector<Drawn> drawn(draws.size());
  if (draws.empty()) return drawn;
  const auto draw_some = [&](int64_t begin, int64_t end) {
    const int64_t num_shards = logits_SRV.size(0), num_rows = logits_SRV.size(1), shard = logits_SRV.size(2);
    const float* base = logits_SRV.data_ptr<float>();
    std::vector<const float*> parts(static_cast<size_t>(num_shards));
    for (int64_t d = begin; d < end; ++d) {
      const auto& [row, request, position] = draws[static_cast<size_t>(d)];
      for (int64_t s = 0; s < num_shards; ++s) parts[static_cast<size_t>(s)] = base + (s * num_rows + row) * shard;
      RandomStream random(request->seed, static_cast<uint64_t>(value(request->sample)), static_cast<uint64_t>(position));
      const LogitRow logits{parts, shard, decoder.config().vocab_size, num_tokens};
      drawn[static_cast<size_t>(d)] = draw(logits, request->sampling, random.uniform());
    }
  };
  if (logits_SRV.defined()) at::parallel_for(0, std::ssize(draws), 1, draw_some);
  if (comm::Group* stages = decoder.place().pp) {
    at::Tensor bytes = at::from_blob(drawn.data(), {std::ssize(drawn) * static_cast<int64_t>(sizeof(Drawn))}, at::kByte);
    stages->broadcast(bytes, stages->size() - 1);
  }
  return drawn;
}

}  // namespace tandem::rollout
