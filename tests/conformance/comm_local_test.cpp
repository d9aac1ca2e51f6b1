// SPDX-License-Identifier: Apache-2.0
#include "comm_suite.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

class LocalComm : public testing::TestWithParam<std::tuple<int, suite::Case>> {};

TEST_P(LocalComm, Conforms) {
  const auto& [ranks, c] = GetParam();
  run_local(ranks, 60, c.body);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalComm, testing::Combine(testing::Values(1, 2, 3, 4), testing::ValuesIn(suite::cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + std::string("_") + std::to_string(std::get<0>(info.param));
                         });

TEST(SingleGroup, Conforms) {
  for (const suite::Case& c : suite::cases()) c.body(*single());
}

TEST(LocalMessages, AFaultNamesTheSender) {
  for (const suite::Fault& fault : suite::message_faults()) {
    std::string said = "nothing";
    try {
      run_local(2, fault.deadline_s, [&](Group& world) { suite::play(fault, world, said); });
    } catch (const PeerError&) {
    }
    EXPECT_EQ(said.substr(0, std::strlen(fault.survivor_says)), fault.survivor_says) << fault.name;
  }
}

}  // namespace
}  // namespace tandem::comm
