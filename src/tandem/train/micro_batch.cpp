// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/micro_batch.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "tandem/base/check.h"

namespace tandem::train {
namespace {

int64_t size(std::span<const int32_t> tokens) { return static_cast<int64_t>(tokens.size()); }

// Rows with one prompt; indices into what is packed.
using Group = std::vector<size_t>;

// Tokens of a row that go through the model.
size_t num_computed(const Row& row) { return row.prompt.size() + row.response.size() - 1; }

// The routes of tokens [begin, begin + count) of a row.
std::span<const int16_t> routes_of(const Row& row, size_t begin, size_t count) {
  const size_t width = row.routes.size() / num_computed(row);
  return row.routes.subspan(begin * width, count * width);
}

at::Tensor routes_tensor(const std::vector<int16_t>& routes, size_t tokens) {
  if (routes.empty()) return {};
  TANDEM_CHECK(routes.size() % tokens == 0, routes.size(), " routes for ", tokens, " tokens: only some rows have theirs");
  return at::tensor(routes).view({static_cast<int64_t>(tokens), -1});
}

// Groups that go through the model together.
using Pass = std::vector<Group>;

// `shares` says of each row of `which` whether its prompt is that of the row before.
std::vector<Pass> cut(std::span<const Row> rows, std::span<const size_t> which, const std::vector<bool>& shares, int64_t budget_tokens) {
  std::vector<Pass> passes;
  int64_t tokens = 0;
  for (size_t i = 0; i < which.size(); ++i) {
    const Row& row = rows[which[i]];
    const int64_t response = size(row.response), alone = size(row.prompt) + response - 1;
    const bool joins = !passes.empty() && tokens + (shares[i] ? response : alone) <= budget_tokens;
    if (!joins) passes.emplace_back();
    if (joins && shares[i]) passes.back().back().push_back(which[i]);
    else passes.back().push_back({which[i]});
    tokens = !joins ? alone : tokens + (shares[i] ? response : alone);
  }
  return passes;
}

MicroBatch build(std::span<const Row> rows, const Pass& groups) {
  MicroBatch batch;
  std::vector<uint8_t> trainable;
  std::vector<int64_t> ids, positions, predictors, targets;
  std::vector<int16_t> routes;
  const auto append = [&](std::span<const int32_t> tokens, int64_t position) {
    for (int32_t id : tokens) ids.push_back(id), positions.push_back(position++);
  };
  const auto append_routes = [&](const Row& row, size_t begin, size_t count) {
    const std::span<const int16_t> more = routes_of(row, begin, count);
    routes.insert(routes.end(), more.begin(), more.end());
  };
  for (const Group& group : groups) {
    const std::span<const int32_t> prompt = rows[group[0]].prompt;
    // The prompt's last token predicts a response's first, so each branch begins with a copy of it: a stem is the rest.
    model::kernel::Tree tree{static_cast<int64_t>(ids.size()), size(prompt) - 1, {}};
    append(prompt.first(prompt.size() - 1), 0);
    const size_t stem = prompt.size() - 1;
    append_routes(rows[group[0]], 0, stem);
    for (size_t i : group) {
      const std::span<const int32_t> response = rows[i].response;
      batch.rows.push_back(i);
      batch.response_offsets.push_back(static_cast<int64_t>(targets.size()));
      targets.insert(targets.end(), response.begin(), response.end());
      if (rows[i].trainable.empty()) trainable.resize(targets.size(), 1);
      else trainable.insert(trainable.end(), rows[i].trainable.begin(), rows[i].trainable.end());
      TANDEM_CHECK(trainable.size() == targets.size(), rows[i].trainable.size(), " marks for ", response.size(), " response tokens");
      for (int64_t t = 0; t < size(response); ++t) predictors.push_back(static_cast<int64_t>(ids.size()) + t);
      append(prompt.last(1), size(prompt) - 1);
      append(response.first(response.size() - 1), size(prompt));
      append_routes(rows[i], stem, response.size());
      tree.branches.push_back(size(response));
    }
    if (group.size() == 1) {  // nothing is shared: one sequence
      tree.stem += tree.branches[0];
      tree.branches.clear();
    }
    batch.trees.push_back(std::move(tree));
  }
  batch.response_offsets.push_back(static_cast<int64_t>(targets.size()));
  batch.tokens = {at::tensor(ids), at::tensor(positions), at::tensor(predictors), routes_tensor(routes, ids.size()), {}};
  batch.targets_R = at::tensor(targets);
  batch.trainable_R = at::tensor(trainable).to(at::kBool);
  return batch;
}

}  // namespace

int64_t Row::num_trainable() const {
  return trainable.empty() ? size(response) : std::accumulate(trainable.begin(), trainable.end(), int64_t{0});
}

bool share_prompt(const Row& a, const Row& b) {
  if (a.prompt.size() < 2 || !std::ranges::equal(a.prompt, b.prompt)) return false;
  const size_t stem = a.prompt.size() - 1;
  return std::ranges::equal(routes_of(a, 0, stem), routes_of(b, 0, stem));
}

std::vector<MicroBatch> pack(std::span<const Row> rows, int64_t budget_tokens) {
  std::vector<size_t> all(rows.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return pack(rows, all, budget_tokens);
}

std::vector<MicroBatch> pack(std::span<const Row> rows, std::span<const size_t> which, int64_t budget_tokens) {
  std::vector<bool> shares(which.size());
  for (size_t i = 0; i < which.size(); ++i) {
    const Row& row = rows[which[i]];
    TANDEM_CHECK(!row.prompt.empty() && !row.response.empty(), "row ", which[i], " has no prompt or no response");
    TANDEM_CHECK(row.routes.size() % num_computed(row) == 0, row.routes.size(), " routes for row ", which[i]);
    shares[i] = i > 0 && share_prompt(rows[which[i - 1]], row);
  }
  std::vector<Pass> passes = cut(rows, which, shares, budget_tokens);
  // As few passes, but level: the smallest budget that needs no more of them.
  for (int64_t low = 0; budget_tokens - low > 1;) {
    const int64_t middle = low + (budget_tokens - low) / 2;
    std::vector<Pass> tried = cut(rows, which, shares, middle);
    if (tried.size() > passes.size()) low = middle;
    else budget_tokens = middle, passes = std::move(tried);
  }
  std::vector<MicroBatch> batches;
  for (const Pass& pass : passes) batches.push_back(build(rows, pass));
  return batches;
}

void deal_tokens(MicroBatch& batch, comm::Group& cp) {
  TANDEM_CHECK(!batch.parallel.group, "a micro-batch is dealt once");
  batch.parallel = {&cp, model::op::context_share(batch.trees, cp.size())};
  std::vector<int64_t> response(static_cast<size_t>(batch.tokens.ids_T.numel()), -1);  // that a token predicts
  const int64_t* predictors = batch.tokens.rows_R.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < batch.tokens.rows_R.numel(); ++r) response[static_cast<size_t>(predictors[r])] = r;
  for (int rank = 0; rank < cp.size(); ++rank) {
    std::vector<int64_t>& predicted = batch.responses_by_rank.emplace_back();
    for (int64_t t : batch.parallel.share.tokens(rank))
      if (const int64_t r = response[static_cast<size_t>(t)]; r >= 0) predicted.push_back(r);
  }
  const std::vector<int64_t> mine = batch.parallel.share.tokens(cp.rank());
  std::vector<int64_t> rows;
  for (size_t i = 0; i < mine.size(); ++i)
    if (response[static_cast<size_t>(mine[i])] >= 0) rows.push_back(static_cast<int64_t>(i));
  const at::Tensor tokens = at::tensor(mine);
  for (at::Tensor* t : {&batch.tokens.ids_T, &batch.tokens.positions_T, &batch.tokens.replayed_routes_TX})
    if (t->defined()) *t = t->index_select(0, tokens);
  batch.tokens.rows_R = at::tensor(rows);
  batch.targets_R = batch.targets_R.index_select(0, at::tensor(batch.responses_by_rank[static_cast<size_t>(cp.rank())]));
}

at::Tensor whole_responses(const MicroBatch& batch, const at::Tensor& mine) {
  if (!batch.parallel.group) return mine;
  model::op::RowShares shares{batch.parallel.group, {0}};
  std::vector<int64_t> place(static_cast<size_t>(batch.response_offsets.back()));
  int64_t at = 0;
  for (const std::vector<int64_t>& predicted : batch.responses_by_rank) {
    for (int64_t r : predicted) place[static_cast<size_t>(r)] = at++;
    shares.bounds.push_back(at);
  }
  const at::Tensor all = model::op::scale_gradient(model::op::gather_rows(mine, shares), 1.0 / batch.parallel.group->size());
  return all.index_select(0, at::tensor(place).to(all.device()));
}

void pad_micro_batches(std::vector<MicroBatch>& batches, int64_t count) {
  while (std::ssize(batches) < count) batches.push_back(build({}, {}));
}

}  // namespace tandem::train
