// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/hand_over.h"

#include <gtest/gtest.h>

#include <set>

#include "tandem/reshard/plan_make.h"
#include "tandem/reshard/plan_weights.h"
#include "../../tiny_model.h"

namespace tandem::reshard {
namespace {

constexpr int64_t kBucket_bytes = 128 << 10;

// Large enough for dozens of chunks and of buckets.
model::ModelConfig wide_config(bool sparse) {
  model::ModelConfig config = sparse ? test::experts_config("qwen3_moe") : test::tiny_config();
  config.hidden_size = 128, config.intermediate_size = 256, config.num_layers = 8, config.vocab_size = 512;
  config.num_heads = 4, config.num_kv_heads = 4, config.head_dim = 32;
  if (sparse) config.moe.num_experts = 8, config.moe.intermediate_size = 64;
  return config;
}

/// One rank of a switch, followed bucket by bucket without moving anything.
class Rank {
 public:
  Rank(const model::ModelConfig& config, const Plan& plan, const model::Layout& from, const model::Layout& to, int rank)
      : part_(part_of(plan, rank)), source_(config, from, rank, arena_), target_(config, to, rank, arena_) {}

  void follow() {
    const HandOver hand = hand_over(part_, {source_.table, source_.memory}, {target_.table, target_.memory});
    ASSERT_EQ(hand.come.size(), std::max<size_t>(1, part_.buckets.size()));
    ASSERT_EQ(hand.leave.size(), hand.come.size());
    target_.memory.leave();
    const int64_t both = bytes_of(source_) + bytes_of(target_), larger = std::max(bytes_of(source_), bytes_of(target_));
    int64_t most = 0;
    std::set<int64_t> came, left;
    for (size_t b = 0; b < hand.come.size(); ++b) {
      for (int64_t chunk : hand.come[b]) {
        EXPECT_TRUE(came.insert(chunk).second) << "chunk " << chunk << " comes twice";
        target_.memory.come_back(chunk, chunk + 1);
      }
      most = std::max(most, arena_.bytes());
      if (b < part_.buckets.size()) touch(part_.buckets[b]);
      for (int64_t chunk : hand.leave[b]) {
        EXPECT_TRUE(left.insert(chunk).second) << "chunk " << chunk << " leaves twice";
        source_.memory.leave(chunk, chunk + 1);
      }
    }
    EXPECT_TRUE(target_.memory.is_present()) << "all of the target has memory in the end";
    EXPECT_TRUE(source_.memory.is_away()) << "and none of the source";
    // In step along the table: most of one side has left when most of the other has come.
    EXPECT_LE(most, larger + kBucket_bytes + (both - larger) / 2) << "of " << both << " for both";
  }

 private:
  struct Side {
    Side(const model::ModelConfig& config, const model::Layout& layout, int rank, device::Arena& arena)
        : table(model::parameter_table(config, layout, rank)),
          memory({arena, "weights", nullptr, device::Keep::kNothing}, table.num_elements, at::kFloat) {}
    model::ParameterTable table;
    device::Swappable memory;
  };
  static int64_t bytes_of(const Side& side) { return side.table.num_elements * 4; }

  // Writes or reads the corners of a box; without memory that would end the test.
  static void touch_box(Side& side, int32_t number, const Box& box, bool write) {
    const std::string name = model::flat_order(model::family::parameters(side.table.config))[static_cast<size_t>(number)].name;
    for (const model::ParameterEntry& e : side.table.entries) {
      if (e.parameter.name != name) continue;
      at::Tensor part = side.table.view(side.memory.tensor(), e);
      for (size_t d = 0; d < box.begin.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d] - e.box.begin[d],
                                                                       box.extent(d));
      if (write) part.fill_(1);
      else (void)part.sum();
      return;
    }
    FAIL() << "nothing of " << name << " is here";
  }

  void touch(const RankPlan::Bucket& bucket) {
    for (const auto& copy : bucket.copies) touch_box(source_, copy.number, copy.box, false), touch_box(target_, copy.number, copy.box,
                                                                                                       true);
    for (const auto& move : bucket.sends)
      for (const Box& box : move.boxes) touch_box(move.from_target ? target_ : source_, move.number, box, false);
    for (const auto& move : bucket.receives)
      for (const Box& box : move.boxes) touch_box(target_, move.number, box, true);
  }

  device::Arena arena_{"device"};
  RankPlan part_;
  Side source_, target_;
};

void follow_all(const model::ModelConfig& config, const std::string& from_text, const std::string& to_text) {
  SCOPED_TRACE(from_text + " to " + to_text);
  const model::Layout from = model::parse_layout(from_text, "from"), to = model::parse_layout(to_text, "to");
  PlanOptions options;
  options.element_bytes = 4, options.bucket_bytes = kBucket_bytes, options.may_alias = false;
  const Plan plan = make_plan(table_of(config, {1, from}, {1, to}), options);
  for (int rank = 0; rank < from.world(); ++rank) Rank(config, plan, from, to, rank).follow();
}

TEST(HandOver, NothingIsReadAfterItLeftOrWrittenBeforeItCameAndBothSidesKeepPace) {
  for (const auto& [from, to] : {std::pair("pp4", "dp4"), std::pair("dp4", "pp4"), std::pair("tp4", "dp2,tp2"), std::pair("dp2,pp2", "tp4"),
                                 std::pair("tp2,pp2", "dp2,tp2"), std::pair("dp4", "tp4")})
    follow_all(wide_config(false), from, to);
}

TEST(HandOver, SoItIsWithExperts) {
  for (const auto& [from, to] : {std::pair("dp2,pp2,ep2", "dp4,ep4"), std::pair("dp4,ep2", "dp2,tp2,ep4"), std::pair("tp4", "dp4,ep4")})
    follow_all(wide_config(true), from, to);
}

}  // namespace
}  // namespace tandem::reshard
