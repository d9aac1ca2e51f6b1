// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/expert/dispatch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <numeric>
#include <span>

namespace tandem::model::op {
namespace {

void exchange(comm::Group& peers, const at::Tensor& rows, const std::vector<int64_t>& from_rows, const at::Tensor& arrived,
              const std::vector<int64_t>& to_rows) {
  const auto width = rows.size(1) * static_cast<int64_t>(rows.element_size());
  std::vector<int64_t> from_bytes = from_rows, to_bytes = to_rows;
  for (std::vector<int64_t>* counts : {&from_bytes, &to_bytes})
    for (int64_t& n : *counts) n *= width;
  at::Tensor to = arrived;
  peers.all_to_all_v(rows, from_bytes, to, to_bytes);
}

}  // namespace

Dispatch::Dispatch(const kernel::Kernels& kernels, const at::Tensor& experts, const ExpertPlace& place)
    : kernels_(kernels),
      num_tokens_(experts.size(0)),
      num_choices_(experts.size(1)),
      sorted_(kernels.expert().sort(experts, place.bounds.back())),
      rows_(sorted_.rows),
      peers_(place.peers) {
  if (peers_) agree(place);
}

// Tells every peer how many rows come for each of its experts. What arrives is by peer, then by expert; what stays here is by
// expert, then by peer.
void Dispatch::agree(const ExpertPlace& place) {
  std::vector<int64_t> counts(rows_.offsets.size() - 1);
  for (size_t e = 0; e < counts.size(); ++e) counts[e] = rows_.offsets[e + 1] - rows_.offsets[e];
  const auto size = static_cast<size_t>(peers_->size());
  const auto held = static_cast<size_t>(place.num_held());
  constexpr auto kWidth = static_cast<int64_t>(sizeof(int64_t));
  std::vector<int64_t> to_bytes, from_bytes(size, place.num_held() * kWidth), theirs(size * held);
  for (size_t p = 0; p < size; ++p) {
    to_bytes.push_back((place.bounds[p + 1] - place.bounds[p]) * kWidth);
    sent_.push_back(std::accumulate(counts.begin() + place.bounds[p], counts.begin() + place.bounds[p + 1], int64_t{0}));
  }
  peers_->all_to_all_v(std::as_bytes(std::span(counts)), to_bytes, std::as_writable_bytes(std::span(theirs)), from_bytes);
  std::vector<int64_t> begin(size * held);  // of a peer's rows for an expert
  rows_.offsets.assign(1, 0);
  for (size_t e = 0; e < held; ++e) {
    int64_t rows = rows_.offsets.back();
    for (size_t p = 0; p < size; ++p) begin[p * held + e] = std::exchange(rows, rows + theirs[p * held + e]);
    rows_.offsets.push_back(rows);
  }
  std::vector<int64_t> arrival, departure(static_cast<size_t>(rows_.num_rows()));
  for (size_t p = 0; p < size; ++p) {
    const size_t before = arrival.size();
    for (size_t e = 0; e < held; ++e)
      for (int64_t i = 0; i < theirs[p * held + e]; ++i) arrival.push_back(begin[p * held + e] + i);
    received_.push_back(static_cast<int64_t>(arrival.size() - before));
  }
  for (size_t i = 0; i < arrival.size(); ++i) departure[static_cast<size_t>(arrival[i])] = static_cast<int64_t>(i);
  arrival_ = at::tensor(arrival, sorted_.row_N.options());
  departure_ = at::tensor(departure, sorted_.row_N.options());
}

at::Tensor Dispatch::send(const at::Tensor& rows) const {
  if (!peers_) return rows;
  const at::Tensor arrived = at::empty({departure_.numel(), rows.size(1)}, rows.options());
  exchange(*peers_, rows, sent_, arrived, received_);
  return kernels_.row().gather(arrived, departure_);
}

at::Tensor Dispatch::send_back(const at::Tensor& rows) const {
  if (!peers_) return rows;
  const at::Tensor leaving = kernels_.row().gather(rows, arrival_),
                   back = at::empty({sorted_.choice_S.numel(), rows.size(1)}, rows.options());
  exchange(*peers_, leaving, received_, back, sent_);
  return back;
}

at::Tensor Dispatch::gather(const at::Tensor& x) const { return send(kernels_.row().gather(x, sorted_.token_S)); }

at::Tensor Dispatch::combine(const at::Tensor& y) const { return kernels_.expert().combine(send_back(y), sorted_.row_N, num_choices_); }

at::Tensor Dispatch::to_rows(const at::Tensor& weights) const {
  return send(kernels_.row().gather(weights.view({-1, 1}), sorted_.choice_S)).view({-1});
}

at::Tensor Dispatch::to_tokens(const at::Tensor& weights) const {
  return kernels_.row().gather(send_back(weights.view({-1, 1})), sorted_.row_N).view({num_tokens_, num_choices_});
}

}  // namespace tandem::model::op
