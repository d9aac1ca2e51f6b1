// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/start_skew.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "tandem/base/check.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::comm {
namespace {

constexpr int kQuestions = 16;
constexpr int kTag = 0;

double received(Group& group, int from) {
  at::Tensor value = at::empty({1}, at::kDouble);
  group.receive(value, from, kTag);
  return *value.const_data_ptr<double>();
}

void sent(Group& group, int to, double value) { group.send(at::empty({1}, at::kDouble).fill_(value), to, kTag); }

}  // namespace

std::string kernel_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

double measured_clock_offset_s(Group& world, const std::function<double()>& clock) {
  if (world.rank() > 0) {
    for (int i = 0; i < kQuestions; ++i) {
      (void)received(world, 0);
      sent(world, 0, clock());
    }
    return received(world, 0);
  }
  for (int rank = 1; rank < world.size(); ++rank) {
    double shortest_s = std::numeric_limits<double>::infinity(), offset_s = 0;
    for (int i = 0; i < kQuestions; ++i) {
      const double asked_s = clock();
      sent(world, rank, asked_s);
      const double theirs_s = received(world, rank), answered_s = clock();
      if (answered_s - asked_s >= shortest_s) continue;
      shortest_s = answered_s - asked_s;
      offset_s = asked_s + shortest_s / 2 - theirs_s;
    }
    sent(world, rank, offset_s);
  }
  return 0;
}

double clock_offset_s(Group& world) {
  const std::vector<std::string> ids = texts_of_all(world, kernel_id());
  const bool is_one_kernel = !ids.front().empty() && std::ranges::count(ids, ids.front()) == world.size();
  return is_one_kernel ? 0 : measured_clock_offset_s(world, now_s);
}

void StartSkew::starts(const std::string& stage, double at_s) {
  stages_.push_back(stage);
  starts_s_.push_back(at_s + offset_s_);
}

std::map<std::string, double> StartSkew::take_metrics() {
  std::vector<double> last_s = starts_s_, first_s;
  for (const double start_s : starts_s_) first_s.push_back(-start_s);
  max_over(world_, last_s);
  max_over(world_, first_s);
  double most_s = 0;
  std::map<std::string, double> metrics;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const double skew_s = last_s[i] + first_s[i];
    metrics["time/start_skew_" + stages_[i] + "_s"] = skew_s;
    most_s = std::max(most_s, skew_s);
  }
  metrics["time/start_skew_s"] = most_s;
  stages_.clear();
  starts_s_.clear();
  return metrics;
}

}  // namespace tandem::comm
