// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/network.h"

#include <gtest/gtest.h>

#include "../../error_text.h"
#include "tandem/comm/backend/machines.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

using Ranks = std::vector<int>;

const std::vector<Address> kHere = {{"eth0", "10.1.0.7", 16, false}, {"ib0", "192.168.5.7", 24, false}, {"eth0", "10.9.0.7", 24, false},
                                    {"lo", "127.0.0.1", 8, true}};

std::string names(const std::string& choice) {
  std::string all;
  for (const Address& a : chosen(kHere, choice, "TANDEM_INTERFACE")) all += a.text + " ";
  return all;
}

TEST(Network, AnInterfaceIsChosenByNameOrBySubnet) {
  EXPECT_EQ(chosen(kHere, "", "x"), kHere);
  EXPECT_EQ(names("ib0"), "192.168.5.7 ");
  EXPECT_EQ(names("eth0"), "10.1.0.7 10.9.0.7 ");
  EXPECT_EQ(names("10.1.0.0/16"), "10.1.0.7 ");
  EXPECT_EQ(names("192.168.5.128/24"), "192.168.5.7 ") << "bits behind the prefix do not count";
  EXPECT_EQ(names("10.0.0.0/8,eth0"), "10.1.0.7 10.9.0.7 ") << "each once";
  EXPECT_EQ(names("0.0.0.0/0"), "10.1.0.7 192.168.5.7 10.9.0.7 127.0.0.1 ");
}

TEST(Network, AChoiceThatNamesNothingHereIsRefusedWithWhatIsHere) {
  for (const char* wrong : {"eth7", "eth0,eth7", "10.2.0.0/16", "192.168.5.128/25", "10.1.0.0/33", "10.1.0.0/x", "10.1.0.0/", "10.1.0.7"}) {
    const std::string said = test::error_of([&] { names(wrong); });
    EXPECT_NE(said.find("TANDEM_INTERFACE: no address of this machine is of `"), std::string::npos) << wrong << ": " << said;
    EXPECT_NE(said.find("eth0 10.1.0.7/16, ib0 192.168.5.7/24"), std::string::npos) << said;
  }
}

TEST(Network, ThisMachineHasItsLoopbackLast) {
  const std::vector<Address> all = own_addresses();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.back().is_loopback);
  EXPECT_EQ(all.back().text, "127.0.0.1");
  EXPECT_EQ(all.back().prefix_bits, 8);
}

TEST(Machines, RanksOfAMachineBecomeNeighboursAndRankZeroStaysFirst) {
  // Dealt to two machines in turn.
  const WorldOrder order = order_by_machine({0, 1, 0, 1, 0, 1});
  EXPECT_EQ(order.launched, (Ranks{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(order.machine, (Ranks{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(to_text(order, {"a", "a", "a", "b", "b", "b"}),
            "ranks 0-2 on a (the launcher's 0, 2, 4), ranks 3-5 on b (the launcher's 1, 3, 5)");
}

TEST(Machines, RanksThatAreNeighboursAlreadyKeepTheirNumbers) {
  const WorldOrder order = order_by_machine({0, 0, 2, 3, 3});
  EXPECT_EQ(order.launched, (Ranks{0, 1, 2, 3, 4}));
  EXPECT_EQ(order.machine, (Ranks{0, 0, 1, 2, 2}));
  EXPECT_EQ(order.num_machines(), 3);
  EXPECT_EQ(to_text(order, {"a", "a", "b", "c", "c"}), "ranks 0-1 on a, rank 2 on b, ranks 3-4 on c");
}

/// A group that says it runs on these machines. Split, it becomes one of its last rank alone.
class Placed : public Group {
 public:
  explicit Placed(const Ranks& machines) : Group("placed", 0, counted(machines)) { set_machines(machines); }
  explicit Placed(int world_rank) : Group("part", 0, Ranks{world_rank}) {}
  std::string death() override { return ""; }

 private:
  void do_abort(const std::string&) noexcept override {}
  static Ranks counted(const Ranks& machines) {
    Ranks ranks;
    for (size_t i = 0; i < machines.size(); ++i) ranks.push_back(static_cast<int>(i));
    return ranks;
  }
  void do_barrier() override {}
  void do_broadcast(at::Tensor&, int) override {}
  void do_all_reduce(at::Tensor&, ReduceOp) override {}
  void do_all_gather(at::Tensor&, const at::Tensor&) override {}
  void do_reduce_scatter(at::Tensor&, const at::Tensor&) override {}
  void do_all_to_all_v(std::span<const std::byte>, std::span<const int64_t>, std::span<std::byte>, std::span<const int64_t>) override {}
  void do_send(const at::Tensor&, int, int) override {}
  void do_receive(at::Tensor&, int, int) override {}
  bool do_arrived(int, int) override { return false; }
  std::unique_ptr<Group> do_split(int, const std::string&) override {
    return std::make_unique<Placed>(size() - 1);
  }
};

TEST(Machines, ABlockOfRanksNeverSpansTwoMachines) {
  EXPECT_EQ(ranks_per_machine(Placed({0, 0, 0, 0})), 4);
  EXPECT_EQ(ranks_per_machine(Placed({0, 0, 0, 0, 1, 1, 1, 1})), 4);
  EXPECT_EQ(ranks_per_machine(Placed({0, 0, 0, 0, 1, 1})), 2) << "unequal numbers: their greatest common divisor";
  EXPECT_EQ(ranks_per_machine(Placed({0, 0, 0, 1, 1})), 1);
  run_local(3, 30, [](Group& world) { EXPECT_EQ(ranks_per_machine(world), 3); });
}

TEST(Machines, AGroupThatIsSplitKnowsTheMachines) {
  Placed world({0, 0, 1});
  EXPECT_EQ(world.split(0, "part")->machine(0), 1);
}

}  // namespace
}  // namespace tandem::comm
