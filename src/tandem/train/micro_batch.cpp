// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/micro_batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "tandem/base/check.h"

namespace tandem::train {
namespace {

MicroBatch pack_rows(std::span<const Row> rows, std::vector<size_t> chosen) {
  MicroBatch batch;
  int64_t T = 0, R = 0;
  for (size_t i : chosen) {
    TANDEM_CHECK(!rows[i].prompt.empty() && !rows[i].response.empty(), "row ", i, " has no prompt or no response");
    T += rows[i].num_tokens();
    R += static_cast<int64_t>(rows[i].response.size());
  }
  batch.ids_T = at::empty({T}, at::kLong);
  batch.positions_T = at::empty({T}, at::kLong);
  batch.predictors_R = at::empty({R}, at::kLong);
  batch.targets_R = at::empty({R}, at::kLong);
  int64_t* id = batch.ids_T.data_ptr<int64_t>();
  int64_t* position = batch.positions_T.data_ptr<int64_t>();
  int64_t* predictor = batch.predictors_R.data_ptr<int64_t>();
  int64_t* target = batch.targets_R.data_ptr<int64_t>();
  int64_t token = 0, response = 0;
  for (size_t i : chosen) {
    const Row& row = rows[i];
    batch.offsets.push_back(token);
    batch.response_offsets.push_back(response);
    int64_t p = 0;
    for (const auto part : {row.prompt, row.response})
      for (int32_t x : part) {
        if (p >= static_cast<int64_t>(row.prompt.size())) predictor[response] = token - 1, target[response++] = x;
        id[token] = x;
        position[token++] = p++;
      }
  }
  batch.offsets.push_back(token);
  batch.response_offsets.push_back(response);
  batch.rows = std::move(chosen);
  return batch;
}

}  // namespace

std::vector<MicroBatch> pack(std::span<const Row> rows, int64_t budget_tokens) {
  std::vector<MicroBatch> batches;
  std::vector<size_t> chosen;
  int64_t tokens = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!chosen.empty() && tokens + rows[i].num_tokens() > budget_tokens) {
      batches.push_back(pack_rows(rows, std::exchange(chosen, {})));
      tokens = 0;
    }
    chosen.push_back(i);
    tokens += rows[i].num_tokens();
  }
  if (!chosen.empty()) batches.push_back(pack_rows(rows, std::move(chosen)));
  return batches;
}

std::vector<int> balance(std::span<const int64_t> lengths, int parts) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<int64_t> load(static_cast<size_t>(parts), 0);
  std::vector<int> part(lengths.size());
  for (size_t i : order) {
    const auto lightest = std::min_element(load.begin(), load.end());
    *lightest += lengths[i];
    part[i] = static_cast<int>(lightest - load.begin());
  }
  return part;
}

}  // namespace tandem::train
