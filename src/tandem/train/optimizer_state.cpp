// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/optimizer_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/device/device.h"

namespace tandem::train {
OptimizerState::OptimizerState(const StateSetup& s, std::span<const Slice> slices)
    : setup_(s), slices_(slices.begin(), slices.end()), coming_(s.arena.device()), leaving_(s.arena.device()) {
  for (const Slice& slice : slices_) size_ += slice.size;
  TANDEM_CHECK(!s.swap || s.host, "a swapped optimizer needs the host's memory");
  const auto state = [&](const char* owner) {
    return std::make_unique<device::Swappable>(device::Home{s.swap ? *s.host : s.arena, s.owner_prefix + owner, s.host}, size_, at::kFloat);
  };
  m_ = state("optimizer");
  v_ = state("optimizer");
  if (has_half()) master_ = state("master_weights");
  if (!s.swap) return;
  const int64_t room = (std::min(size_, s.chunk_elements) + 1) / 2 * 2;
  chunk_ = s.arena.allocate(s.owner_prefix + "optimizer", {has_half() ? 3 : 2, room}, at::kFloat);
  for (const device::Swappable* each : {m_.get(), v_.get(), master_.get()})
    if (each) pinned_.push_back(device::pinned(s.arena.device(), each->tensor().data_ptr(), each->tensor().nbytes()));
}

void OptimizerState::adopt_values() {
  if (!has_half()) return;
  for (const Slice& s : slices_) master_->tensor().narrow(0, s.at, s.size).copy_(setup_.values.narrow(0, s.begin, s.size));
}

void OptimizerState::update(const Stretch& s, const model::kernel::AdamStep& step) {
  if (setup_.swap) return update_by_chunks(s, step);
  const auto part = [&](const std::unique_ptr<device::Swappable>& state) { return state->tensor().narrow(0, s.at, s.size); };
  const at::Tensor values = setup_.values.narrow(0, s.begin, s.size);
  setup_.kernels.adamw(
      {has_half() ? part(master_) : values, has_half() ? values : at::Tensor(), s.grad.narrow(0, 0, s.size), part(m_), part(v_)}, step);
}

// Through memory of the device, piece by piece: while one is updated the next one comes and the last one leaves. Each element goes the way
// it goes without.
void OptimizerState::update_by_chunks(const Stretch& s, const model::kernel::AdamStep& step) {
  const int64_t half = chunk_.size(1) / 2, pieces = s.size > 0 ? (s.size + half - 1) / half : 0;
  const device::Swappable* const states[] = {m_.get(), v_.get(), master_.get()};
  const auto size_of = [&](int64_t p) { return std::min(half, s.size - p * half); };
  const auto here = [&](int64_t p, int64_t state) { return chunk_[state].narrow(0, p % 2 * half, size_of(p)); };
  const auto there = [&](int64_t p, int64_t state) { return states[state]->tensor().narrow(0, s.at + p * half, size_of(p)); };
  const auto bring = [&](int64_t p) {
    if (p < pieces)
      coming_.run([&] {
        for (int64_t i = 0; i < chunk_.size(0); ++i) here(p, i).copy_(there(p, i), /*non_blocking=*/true);
      });
  };
  coming_.wait_for_compute();  // the room was another stretch's
  bring(0);
  for (int64_t p = 0; p < pieces; ++p) {
    coming_.let_compute_wait();
    coming_.wait_for(leaving_);  // the piece before the last has left the other half
    bring(p + 1);
    const at::Tensor values = setup_.values.narrow(0, s.begin + p * half, size_of(p)), master = has_half() ? here(p, 2) : values;
    const at::Tensor grad = s.grad.narrow(0, p * half, size_of(p));
    setup_.kernels.adamw({master, has_half() ? values : at::Tensor(), grad, here(p, 0), here(p, 1)}, step);
    leaving_.wait_for_compute();
    leaving_.run([&] {
      for (int64_t i = 0; i < chunk_.size(0); ++i) there(p, i).copy_(here(p, i), /*non_blocking=*/true);
    });
  }
  leaving_.synchronize();
}

int64_t OptimizerState::moved(int64_t (device::Swappable::*way)()) {
  int64_t copied = 0;
  for (device::Swappable* state : {m_.get(), v_.get(), master_.get()})
    if (state && !setup_.swap) copied += (state->*way)();  // a swapped one is there
  return copied;
}

const std::vector<std::string>& OptimizerState::names() {
  static const std::vector<std::string> kNames = {"m", "master", "v"};
  return kNames;
}

std::vector<at::Tensor> OptimizerState::parts(const std::string& name) const {
  if (name == "m") return {m_->contents()};
  if (name == "v") return {v_->contents()};
  TANDEM_CHECK(name == "master", "state ", name);
  if (has_half()) return {master_->contents()};
  const at::Tensor& values = setup_.home ? setup_.home->contents() : setup_.values;
  std::vector<at::Tensor> parts;
  for (const Slice& s : slices_) parts.push_back(values.narrow(0, s.begin, s.size));
  return parts;
}

at::Tensor OptimizerState::tensor(const std::string& name) const {
  const std::vector<at::Tensor> all = parts(name);
  if (all.size() == 1) return all.front().cpu();
  return all.empty() ? at::zeros({0}, at::kFloat) : at::cat(all).cpu();
}

std::vector<StatePiece> OptimizerState::pieces() const {
  std::vector<StatePiece> pieces;
  for (const Slice& s : slices_)
    for (const model::ParameterEntry& e : setup_.table.entries) {
      const int64_t from = std::max(e.offset, s.begin), to = std::min(e.offset + e.num_elements, s.begin + s.size);
      if (e.parameter.trained && from < to) pieces.push_back({&e, from - e.offset, to - e.offset, s.at + from - s.begin});
    }
  return pieces;
}

void OptimizerState::restore(const ReadPiece& read) {
  for (const StatePiece& piece : pieces()) {
    const int64_t n = piece.end - piece.begin;
    at::Tensor values = setup_.values.narrow(0, piece.entry->offset + piece.begin, n);
    const auto part = [&](const std::unique_ptr<device::Swappable>& state) { return state->tensor().narrow(0, piece.at, n); };
    const auto read_to = [&](const char* name, at::Tensor to) {
      const at::Tensor host = to.cpu();
      read(name, piece, host);
      if (!to.is_cpu()) to.copy_(host);
    };
    read_to("m", part(m_));
    read_to("v", part(v_));
    read_to("master", has_half() ? part(master_) : values);
    if (has_half()) values.copy_(part(master_));
  }
}

}  // namespace tandem::train
