// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/session/session.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tandem::session {
namespace {

config::RunConfig settings() {
  config::RunConfig c;
  c.model.path = std::string(TANDEM_SOURCE_DIR) + "/tests/fixtures/qwen2_tied";
  c.run.parity = true;
  c.train.lr = 1e-2;
  return c;
}

// Answers to two prompts, with advantages of both signs.
std::vector<Row> drawn(Session& session) {
  std::vector<data::Prompt> prompts(2);
  prompts[0].ids = {3, 4, 5}, prompts[1].ids = {6, 7};
  serve::GenerateOptions how;
  how.n = 3, how.sampling.max_new_tokens = 8;
  std::vector<Row> rows;
  for (const data::Group& group : session.sample(prompts, how))
    for (const data::Sample& sample : group.samples) {
      Row& row = rows.emplace_back(Row{prompts[static_cast<size_t>(group.prompt.row)].ids, sample.ids, sample.logprobs});
      row.advantages.assign(sample.ids.size(), rows.size() % 2 ? 1.0f : -0.5f);
      row.version = value(group.version);
    }
  return rows;
}

// Trains twice on the same rows, which `change` changes in between.
train::StepReport trained_again(const std::function<void(Row&)>& change) {
  Session session(settings(), {});
  std::vector<Row> rows = drawn(session);
  EXPECT_EQ(session.forward_backward(rows, 1.0).ratio_max, 1.0);
  session.step();
  for (Row& row : rows) change(row);
  session.forward_backward(rows, 1.0);
  return session.step();
}

TEST(Session, SamplesThatTheWeightsHaveLeftAreComparedWithTheirSampler) {
  const train::StepReport as_drawn = trained_again([](Row&) {});
  const train::StepReport by_hand = trained_again([](Row& row) { row.old = row.behavior; });
  const train::StepReport of_another = trained_again([](Row& row) { row.version.reset(); });
  const train::StepReport as_if_fresh = trained_again([](Row& row) { row.version = 1; });
  EXPECT_GT(as_drawn.ratio_max, 1.01);
  EXPECT_EQ(as_if_fresh.ratio_max, 1.0);
  for (const train::StepReport& alike : {by_hand, of_another}) {
    EXPECT_EQ(as_drawn.ratio_max, alike.ratio_max);
    EXPECT_EQ(as_drawn.grad_norm, alike.grad_norm);
  }
  EXPECT_NE(as_drawn.grad_norm, as_if_fresh.grad_norm);
}

TEST(Session, AVersionThatIsNotThereYetIsRefused) {
  Session session(settings(), {});
  std::vector<Row> rows = drawn(session);
  rows[1].version = 1;
  EXPECT_EQ(test::error_of([&] { session.forward_backward(rows, 1.0); }),
            "row 1: its version is 1 (0 to 0, the updates so far, or none for another policy's)");
  rows[1].version = 0;
  EXPECT_GT(session.forward_backward(rows, 1.0).trained_tokens, 0);
}

}  // namespace
}  // namespace tandem::session
