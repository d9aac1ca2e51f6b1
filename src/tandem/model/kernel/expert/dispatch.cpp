// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/expert/dispatch.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>
#include <span>

#include "tandem/model/kernel/step.h"

namespace tandem::model::kernel {
namespace {

// to[to_row(i)] = from[from_row(i)], rows of any dtype.
void copy_rows(const at::Tensor& from, const at::Tensor& to, int64_t count, const auto& from_row, const auto& to_row) {
  const size_t bytes = static_cast<size_t>(from.size(1)) * from.element_size();
  const char* source = static_cast<const char*>(from.data_ptr());
  char* target = static_cast<char*>(to.data_ptr());
  for_rows(count, from.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(target + static_cast<size_t>(to_row(i)) * bytes, source + static_cast<size_t>(from_row(i)) * bytes, bytes);
  });
}

int64_t itself(int64_t i) { return i; }

void exchange(comm::Group& peers, const at::Tensor& from, const std::vector<int64_t>& from_rows, const at::Tensor& to,
              const std::vector<int64_t>& to_rows) {
  const auto bytes = [](const at::Tensor& t) { return std::span(static_cast<std::byte*>(t.data_ptr()), t.nbytes()); };
  const auto width = from.size(1) * static_cast<int64_t>(from.element_size());
  std::vector<int64_t> from_bytes = from_rows, to_bytes = to_rows;
  for (std::vector<int64_t>* counts : {&from_bytes, &to_bytes})
    for (int64_t& n : *counts) n *= width;
  peers.all_to_all_v(bytes(from), from_bytes, bytes(to), to_bytes);
}

}  // namespace

Dispatch::Dispatch(const at::Tensor& experts, const ExpertPlace& place)
    : num_tokens_(experts.size(0)), num_choices_(experts.size(1)), peers_(place.peers) {
  sort(experts, place.bounds.back());
  if (peers_) agree(place);
}

void Dispatch::sort(const at::Tensor& experts, int64_t num_experts) {
  const int64_t* chosen = experts.data_ptr<int64_t>();
  const auto expert_of = [&](int64_t i) { return static_cast<size_t>(chosen[i]); };
  offsets_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < experts.numel(); ++i) ++offsets_[expert_of(i) + 1];
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  std::vector<int64_t> next = offsets_;
  choice_.resize(static_cast<size_t>(experts.numel()));
  row_.resize(choice_.size());
  for (int64_t i = 0; i < experts.numel(); ++i) {
    const int64_t r = next[expert_of(i)]++;
    choice_[static_cast<size_t>(r)] = i;
    row_[static_cast<size_t>(i)] = r;
  }
}

// Tells every peer how many rows come for each of its experts. What arrives is by peer, then by expert; what stays here is by
// expert, then by peer.
void Dispatch::agree(const ExpertPlace& place) {
  std::vector<int64_t> counts(offsets_.size() - 1);
  for (size_t e = 0; e < counts.size(); ++e) counts[e] = offsets_[e + 1] - offsets_[e];
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
  offsets_.assign(1, 0);
  for (size_t e = 0; e < held; ++e) {
    int64_t rows = offsets_.back();
    for (size_t p = 0; p < size; ++p) begin[p * held + e] = std::exchange(rows, rows + theirs[p * held + e]);
    offsets_.push_back(rows);
  }
  for (size_t p = 0; p < size; ++p) {
    const size_t before = arrival_.size();
    for (size_t e = 0; e < held; ++e)
      for (int64_t i = 0; i < theirs[p * held + e]; ++i) arrival_.push_back(begin[p * held + e] + i);
    received_.push_back(static_cast<int64_t>(arrival_.size() - before));
  }
}

void Dispatch::for_experts(bool side_by_side, const std::function<void(int64_t, int64_t, int64_t)>& run) const {
  const auto some = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t first = offsets_[static_cast<size_t>(e)], count = offsets_[static_cast<size_t>(e) + 1] - first;
      if (count > 0) run(e, first, count);
    }
  };
  if (side_by_side) at::parallel_for(0, std::ssize(offsets_) - 1, 1, some);
  else some(0, std::ssize(offsets_) - 1);
}

at::Tensor Dispatch::send(const at::Tensor& rows) const {
  if (!peers_) return rows;
  const at::Tensor arrived = at::empty({std::ssize(arrival_), rows.size(1)}, rows.options()), sorted = at::empty_like(arrived);
  exchange(*peers_, rows, sent_, arrived, received_);
  copy_rows(arrived, sorted, arrived.size(0), itself, [&](int64_t i) { return arrival_[static_cast<size_t>(i)]; });
  return sorted;
}

at::Tensor Dispatch::send_back(const at::Tensor& rows) const {
  if (!peers_) return rows;
  const at::Tensor leaving = at::empty_like(rows), back = at::empty({std::ssize(choice_), rows.size(1)}, rows.options());
  copy_rows(rows, leaving, rows.size(0), [&](int64_t i) { return arrival_[static_cast<size_t>(i)]; }, itself);
  exchange(*peers_, leaving, received_, back, sent_);
  return back;
}

at::Tensor Dispatch::gather(const at::Tensor& x) const {
  const at::Tensor rows = at::empty({std::ssize(choice_), x.size(1)}, x.options());
  copy_rows(x, rows, rows.size(0), [&](int64_t i) { return choice_[static_cast<size_t>(i)] / num_choices_; }, itself);
  return send(rows);
}

at::Tensor Dispatch::combine(const at::Tensor& y) const {
  const at::Tensor rows = send_back(y);
  const int64_t W = y.size(1), k = num_choices_;
  at::Tensor out = at::empty({num_tokens_, W}, y.options());
  for_rows(num_tokens_, W * k, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(W));
    by_dtype(y, [&]<class E>(E) {
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t i = t * k; i < (t + 1) * k; ++i)
          row_table<E>().add_columns(pointer<E>(rows) + row_[static_cast<size_t>(i)] * W, W, sums.data());
        row_table<E>().from_float(sums.data(), W, pointer<E>(out) + t * W);
      }
    });
  });
  return out;
}

at::Tensor Dispatch::to_rows(const at::Tensor& weights) const {
  const at::Tensor rows = at::empty({std::ssize(choice_), 1}, at::kFloat);
  for (size_t r = 0; r < choice_.size(); ++r) rows.data_ptr<float>()[r] = weights.data_ptr<float>()[choice_[r]];
  return send(rows).view({-1});
}

at::Tensor Dispatch::to_tokens(const at::Tensor& weights) const {
  const at::Tensor rows = send_back(weights.view({-1, 1}));
  at::Tensor out = at::empty({num_tokens_, num_choices_}, at::kFloat);
  for (size_t r = 0; r < choice_.size(); ++r) out.data_ptr<float>()[choice_[r]] = rows.data_ptr<float>()[r];
  return out;
}

}  // namespace tandem::model::kernel
