// SPDX-License-Identifier: Apache-2.0
// Which workers draw as a run does, and which it lets differ.
#include <gtest/gtest.h>

#include "tandem/worker/joining.h"

namespace tandem::worker {
namespace {

using queue::call::Join;

const Join kFloat{"store", "float32", "cpu"}, kHalf{"store", "bfloat16", "cpu"}, kAsRecipe{"store", "", "cpu"};
const Join kOnCuda{"store", "", "cuda"}, kRelay{"store"};

config::RunConfig recipe(const std::string& correction, bool parity = false) {
  config::RunConfig config;
  config.algo.correction = correction;
  config.run.parity = parity;
  config.model.dtype = "float32";
  return config;
}

TEST(Joining, WithoutACorrectionAWorkerDrawsAsTheRunDoes) {
  const Drawing run = drawing_of(recipe("none"), "cpu");
  EXPECT_EQ(run, (Drawing{.dtype = "float32", .device = "cpu", .is_device_open = true}));
  for (const Join& each : {kFloat, kAsRecipe, kRelay}) EXPECT_EQ(refusal_of(run, each), "");
  EXPECT_EQ(refusal_of(run, kHalf),
            "generates in bfloat16 on cpu, and the run expects float32 on cpu without a correction (--dtype float32, or start the run with "
            "algo.correction=token)");
  EXPECT_EQ(refusal_of(run, kOnCuda),
            "generates in float32 on cuda, and the run expects float32 on cpu without a correction (start the run with "
            "algo.correction=token)");
}

TEST(Joining, WhereTheLossCorrectsAWorkerMayDiffer) {
  const Drawing run = drawing_of(recipe("token"), "cpu");
  for (const Join& each : {kFloat, kHalf, kAsRecipe, kOnCuda, kRelay}) EXPECT_EQ(refusal_of(run, each), "");
  EXPECT_EQ(drawing_text(run, kHalf), "bfloat16 on cpu");
  EXPECT_EQ(drawing_text(run, kOnCuda), "float32 on cuda");
  EXPECT_EQ(drawing_text(run, kRelay), "");
}

TEST(Joining, UnderParityTheDtypeIsTheRuns) {
  const Drawing run = drawing_of(recipe("token", true), "cpu");
  EXPECT_EQ(refusal_of(run, kAsRecipe), "");
  EXPECT_EQ(refusal_of(run, kOnCuda), "");
  EXPECT_EQ(refusal_of(run, kHalf),
            "generates in bfloat16 on cpu, and the run expects float32 on cpu under --parity (--dtype float32)");
}

// The worker goes by the same recipe.
TEST(Joining, ADeviceThatTheRecipeNamesIsThatOfAll) {
  config::RunConfig config = recipe("none");
  config.run.device = "cpu";
  EXPECT_EQ(refusal_of(drawing_of(config, "cpu"), kOnCuda), "");
}

TEST(Joining, TheDtypeIsThatOfRolloutWhereTheRecipeHasOne) {
  config::RunConfig config = recipe("none");
  config.rollout.dtype = "bfloat16";
  EXPECT_EQ(refusal_of(drawing_of(config, "cpu"), kHalf), "");
  EXPECT_NE(refusal_of(drawing_of(config, "cpu"), kFloat), "");
}

}  // namespace
}  // namespace tandem::worker
