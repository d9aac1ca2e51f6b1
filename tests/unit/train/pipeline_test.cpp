// SPDX-License-Identifier: Apache-2.0
// The order of passes is complete, can run without deadlock, delivers messages in order, and holds as little as it says.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tandem/base/check.h"
#include "tandem/train/pipeline.h"

namespace tandem::train {
namespace {

struct Stage {
  std::vector<PipelineAction> actions;
  size_t next = 0;
};

// Runs all stages with buffered messages, each as far as it can go; returns the most forward passes that await their backward one.
std::vector<int64_t> run(int stages, int chunks, int64_t micro_batches) {
  std::vector<Stage> all;
  for (int s = 0; s < stages; ++s) all.push_back({pipeline_actions({stages, chunks, s}, micro_batches)});
  std::set<std::pair<int, int64_t>> forward, backward;  // done: (chunk * stages + stage, micro-batch)
  std::vector<int64_t> held(all.size(), 0), most(all.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      Stage& stage = all[static_cast<size_t>(s)];
      while (stage.next < stage.actions.size()) {
        const PipelineAction a = stage.actions[stage.next];
        const int place = a.chunk * stages + s, last = stages * chunks - 1;
        const bool ready = a.forward ? place == 0 || forward.contains({place - 1, a.micro_batch})
                                     : forward.contains({place, a.micro_batch}) && (place == last ||
                                                                                    backward.contains({place + 1, a.micro_batch}));
        if (!ready) break;
        EXPECT_TRUE((a.forward ? forward : backward).insert({place, a.micro_batch}).second);
        held[static_cast<size_t>(s)] += a.forward ? 1 : -1;
        most[static_cast<size_t>(s)] = std::max(most[static_cast<size_t>(s)], held[static_cast<size_t>(s)]);
        ++stage.next;
        moved = true;
      }
    }
  }
  EXPECT_EQ(std::ssize(forward), micro_batches * stages * chunks);
  EXPECT_EQ(forward, backward);
  return most;
}

TEST(Pipeline, EveryShapeRunsToItsEndAndHoldsLittle) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= (stages > 1 ? 4 : 1); ++chunks)
      for (int64_t count = 0; count <= 17; ++count) {
        const int64_t n = padded_micro_batches({stages, chunks, 0}, count);
        EXPECT_GE(n, count);
        EXPECT_LT(n, count + (chunks > 1 ? stages : 1));
        const std::vector<int64_t> most = run(stages, chunks, n);
        for (int s = 0; s < stages; ++s) {
          const int64_t bound = chunks == 1 ? stages - s : (stages - s - 1) * 2 + (chunks - 1) * stages + 1;
          EXPECT_EQ(most[static_cast<size_t>(s)], std::min(bound, n * chunks)) << stages << " stages, " << chunks << " chunks, " << n;
        }
      }
}

TEST(Pipeline, MicroBatchesOfAChunkPassInOrder) {
  for (int stages : {2, 3, 4})
    for (int chunks : {1, 2, 3})
      for (int s = 0; s < stages; ++s) {
        std::map<std::pair<bool, int>, int64_t> last;
        for (const PipelineAction& a : pipeline_actions({stages, chunks, s}, 3 * stages)) {
          const auto [place, is_new] = last.try_emplace({a.forward, a.chunk}, -1);
          EXPECT_EQ(a.micro_batch, place->second + 1);
          place->second = a.micro_batch;
        }
      }
}

TEST(Pipeline, GradientsOfLaterChunksAreFinalFirst) {
  std::vector<int> order;
  for (const PipelineAction& a : pipeline_actions({3, 3, 1}, 6))
    if (!a.forward && a.micro_batch == 5) order.push_back(a.chunk);
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
}

TEST(Pipeline, OneForwardOneBackward) {
  std::string text;
  for (const PipelineAction& a : pipeline_actions({4, 1, 2}, 4)) text += join_text(a.forward ? "F" : "B", a.micro_batch, " ");
  EXPECT_EQ(text, "F0 F1 B0 F2 B1 F3 B2 B3 ");
}

}  // namespace
}  // namespace tandem::train
