// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/group/group_assembly.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "../../tiny_model.h"
#include "tandem/base/error.h"

namespace tandem::rollout {
namespace {

using test::TinyModel;

Options small(int64_t max_running = 8) {
  Options o;
  o.max_running = max_running;
  o.kv_cache_mib = 16;
  return o;
}

GroupRequest request_of(int64_t group, int64_t prompt_tokens, int64_t samples, int64_t new_tokens) {
  GroupRequest r;
  r.group.id = data::GroupId{group};
  for (int64_t i = 0; i < prompt_tokens; ++i) r.group.prompt.ids.push_back(static_cast<int32_t>((7 * group + 5 * i + 3) % 60 + 2));
  r.num_samples = samples;
  r.first_sample = group * 100;
  r.sampling.max_new_tokens = new_tokens;
  r.seed = 5;
  return r;
}

struct Case {
  TinyModel model{test::tiny_config(), at::kFloat, true};  // parity: tokens may be compared across batches
  Engine engine;
  GroupAssembly groups{engine};

  explicit Case(const Options& options = small(), int64_t max_context = 64)
      : engine(options, {model.decoder, model.arena, model.decoder.config().vocab_size, max_context}) {
    engine.switch_weights(model.parameters, data::PolicyVersion{0});
  }
  // Steps until nothing runs; a hang is a failure, not a timeout.
  std::vector<data::Group> finish(int64_t most_steps = 3000) {
    std::vector<data::Group> all;
    for (; engine.running() && most_steps > 0; --most_steps) {
      engine.step();
      for (data::Group& g : groups.finished()) all.push_back(std::move(g));
    }
    EXPECT_GT(most_steps, 0) << "the engine never came to an end";
    std::sort(all.begin(), all.end(), [](const data::Group& a, const data::Group& b) { return a.id < b.id; });
    return all;
  }
  void expect_empty() { EXPECT_EQ(engine.counts().free_blocks, engine.counts().blocks); }
};

std::vector<std::vector<int32_t>> tokens_of(const std::vector<data::Group>& groups) {
  std::vector<std::vector<int32_t>> all;
  for (const data::Group& g : groups)
    for (const data::Sample& s : g.samples) all.push_back(s.ids);
  return all;
}

TEST(Engine, AResponseEndsWithItsStopId) {
  Case plain;
  plain.groups.admit(request_of(0, 6, 1, 40));
  const data::Sample whole = plain.finish().at(0).samples.at(0);
  ASSERT_EQ(whole.ids.size(), 40u);
  EXPECT_EQ(whole.finish, data::FinishReason::kLength);
  const int32_t stop = whole.ids[9];
  const auto first = std::find(whole.ids.begin(), whole.ids.end(), stop) - whole.ids.begin();

  for (bool ignored : {false, true}) {
    Case stopped;
    GroupRequest r = request_of(0, 6, 1, 40);
    r.stop_ids = {stop};
    r.sampling.ignore_eos = ignored;
    stopped.groups.admit(std::move(r));
    const data::Sample sample = stopped.finish().at(0).samples.at(0);
    EXPECT_EQ(sample.ids.size(), ignored ? 40u : static_cast<size_t>(first) + 1);
    EXPECT_TRUE(std::equal(sample.ids.begin(), sample.ids.end(), whole.ids.begin()));
    EXPECT_EQ(sample.finish, ignored ? data::FinishReason::kLength : data::FinishReason::kStop);
    EXPECT_EQ(sample.logprobs.size(), sample.ids.size());
    stopped.expect_empty();
  }
}

// Ends a response with its n-th token.
TokenListener stop_after(int64_t n) {
  return [left = n](int32_t) mutable { return --left != 0; };
}

TEST(Engine, AStopTextEndsEachSampleByItself) {
  Case c;
  GroupRequest r = request_of(0, 6, 4, 40);
  int64_t next = 3;
  r.make_listener = [&] { return stop_after(next++); };
  c.groups.admit(std::move(r));
  const data::Group group = c.finish().at(0);
  std::vector<size_t> lengths;
  for (const data::Sample& s : group.samples) {
    lengths.push_back(s.ids.size());
    EXPECT_EQ(s.finish, data::FinishReason::kStop);
  }
  EXPECT_EQ(lengths, (std::vector<size_t>{3, 4, 5, 6}));
}

TEST(Engine, CancelFreesWhatAGroupHoldsAndLeavesTheOthersAlone) {
  Case alone;
  alone.groups.admit(request_of(1, 20, 3, 12));
  const auto want = tokens_of(alone.finish());

  Case c(small(4));
  for (int64_t g = 0; g < 4; ++g) c.groups.admit(request_of(g, 20, 3, 12));
  for (int i = 0; i < 3; ++i) c.engine.step();
  EXPECT_EQ(c.groups.unfinished().size(), 4u);
  for (int64_t g : {0, 2, 3}) c.groups.cancel(data::GroupId{g});  // running, partly started, waiting
  EXPECT_EQ(c.groups.unfinished(), std::vector<data::GroupId>{data::GroupId{1}});
  const auto groups = c.finish();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(tokens_of(groups), want);
  c.expect_empty();
}

TEST(Engine, PreemptionChangesNoToken) {
  Case wide(small(16));
  Case narrow(small(16), 4);  // a pool for contexts of 4 tokens: 17 * 2 blocks
  for (Case* c : {&wide, &narrow})
    for (int64_t g = 0; g < 4; ++g) c->groups.admit(request_of(g, 20 + 3 * g, 4, 60));
  const auto want = tokens_of(wide.finish()), got = tokens_of(narrow.finish());
  EXPECT_EQ(wide.engine.counts().preemptions, 0);
  EXPECT_GT(narrow.engine.counts().preemptions, 0);
  EXPECT_EQ(got, want);
  narrow.expect_empty();
}

TEST(Engine, AGroupThatJustFitsThePoolAloneIsAnswered) {
  // Blocks for one context only: the prompt kept for later samples must give way to the sample that runs.
  for (int64_t prompt : {30, 32, 33}) {
    Case c(small(1), 8);  // (1 + 1) * 2 blocks = 64 tokens
    ASSERT_EQ(c.engine.counts().blocks, 4);
    c.groups.admit(request_of(0, prompt, 3, 64 - prompt));
    const auto groups = c.finish();
    ASSERT_EQ(groups.size(), 1u);
    for (const data::Sample& s : groups[0].samples) EXPECT_EQ(static_cast<int64_t>(s.ids.size()), 64 - prompt);
    c.expect_empty();
  }
}

TEST(Engine, AGroupWhoseFirstSampleEndsAtOnceIsAnsweredWhole) {
  for (int64_t max_running : {1, 2, 8}) {
    Case c(small(max_running));
    GroupRequest r = request_of(0, 6, 5, 1);
    c.groups.admit(std::move(r));
    const auto groups = c.finish();
    ASSERT_EQ(groups.size(), 1u) << max_running;
    for (const data::Sample& s : groups[0].samples) EXPECT_EQ(s.ids.size(), 1u);
    c.expect_empty();
  }
}

TEST(Engine, SamplesOfAGroupDifferAndDoNotDependOnItsSize) {
  Case many, one;
  many.groups.admit(request_of(0, 9, 6, 20));
  one.groups.admit(request_of(0, 9, 1, 20));
  const auto all = tokens_of(many.finish());
  EXPECT_EQ(all[0], tokens_of(one.finish())[0]);
  EXPECT_NE(all[0], all[1]);
}

TEST(Engine, EachSampleMayHaveALengthOfItsOwn) {
  Case c;
  GroupRequest r = request_of(0, 9, 3, 5);
  r.max_new_tokens = {1, 17, 30};
  c.groups.admit(std::move(r));
  const data::Group group = c.finish().at(0);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(group.samples[i].ids.size(), (std::vector<size_t>{1, 17, 30}[i]));
}

TEST(Engine, AGreedyAnswerStandsBesideTheSamplesAndChangesNoneOfThem) {
  Case plain, with, greedy;
  plain.groups.admit(request_of(0, 9, 3, 12));
  GroupRequest r = request_of(0, 9, 3, 12);
  r.with_greedy = true;
  with.groups.admit(std::move(r));
  r = request_of(0, 9, 1, 12);
  r.sampling.temperature = 0;
  greedy.groups.admit(std::move(r));
  const auto samples = plain.finish(), beside = with.finish(), alone = greedy.finish();
  EXPECT_FALSE(samples.at(0).greedy);
  EXPECT_EQ(tokens_of(beside), tokens_of(samples));
  ASSERT_TRUE(beside.at(0).greedy);
  EXPECT_EQ(beside[0].greedy->ids, alone.at(0).samples.at(0).ids);
  EXPECT_FALSE(alone[0].greedy);
  with.expect_empty();
}

TEST(Engine, AGroupIsWholeOnceItsGreedyAnswerIsToo) {
  Case c(small(2));
  GroupRequest r = request_of(0, 6, 2, 40);
  int64_t next = 3;
  r.make_listener = [&] { return stop_after(next++); };
  r.with_greedy = true;
  c.groups.admit(std::move(r));
  r = request_of(1, 6, 2, 40);
  r.with_greedy = true;
  c.groups.admit(std::move(r));
  c.engine.step();
  EXPECT_EQ(c.groups.unfinished().size(), 2u);
  c.groups.cancel(data::GroupId{1});
  const auto groups = c.finish();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].samples[1].ids.size(), 4u);
  EXPECT_EQ(groups[0].greedy->ids.size(), 5u) << "it came last";
  c.expect_empty();
}

TEST(Engine, ASwitchOfWeightsMarksTheTokensThatFollow) {
  Case c;
  for (int64_t g = 0; g < 2; ++g) c.groups.admit(request_of(g, 9, 2, 12));
  for (int i = 0; i < 5; ++i) c.engine.step();
  c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});
  for (const data::Group& g : c.finish()) {
    EXPECT_EQ(value(g.version), 0);
    for (const data::Sample& s : g.samples) {
      EXPECT_TRUE(std::is_sorted(s.versions.begin(), s.versions.end()));
      EXPECT_EQ(s.versions.front(), 0);
      EXPECT_EQ(s.versions.back(), 1);
    }
  }
  c.expect_empty();
}

TEST(Engine, ASwitchWhileSamplesWaitToForkComputesTheirPromptAgain) {
  Case c(small(1));
  for (int64_t g = 0; g < 2; ++g) c.groups.admit(request_of(g, 9, 3, 4));
  c.engine.step();
  c.engine.step();
  c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});
  const auto groups = c.finish();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].samples[0].versions.front(), 0);
  EXPECT_EQ(groups[0].samples[1].versions.front(), 1);
  EXPECT_EQ(value(groups[0].version), 0);
  EXPECT_EQ(value(groups[1].version), 1);
  c.expect_empty();
}

TEST(Engine, APromptHalfRunAtASwitchRunsAgainUnderTheNewWeights) {
  Options chunked = small();
  chunked.prefill_tokens = 16;
  const auto answers = [&](bool switched) {
    Case c(chunked);
    TinyModel other(test::tiny_config(), at::kFloat, true, 0.3, 2);
    if (!switched) c.engine.switch_weights(other.parameters, data::PolicyVersion{1});
    c.groups.admit(request_of(0, 40, 2, 5));
    c.groups.admit(request_of(1, 40, 2, 5));
    if (switched) {
      c.engine.step();
      c.engine.step();
      EXPECT_EQ(c.groups.without_token().size(), 2u);
      c.engine.switch_weights(other.parameters, data::PolicyVersion{1});
    }
    std::vector<data::Group> groups = c.finish();
    c.expect_empty();
    return groups;
  };
  const auto switched = answers(true), fresh = answers(false);
  ASSERT_EQ(tokens_of(switched), tokens_of(fresh));
  for (size_t g = 0; g < 2; ++g)
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(switched[g].samples[s].logprobs, fresh[g].samples[s].logprobs);  // no old key is left
}

// The same tokens with and without.
TEST(Engine, RunsAheadOfTheTokensThatTheHostKnows) {
  if (!DecodeGraphs::serves(Case().model.decoder)) GTEST_SKIP() << "a device without graphs: nothing runs ahead";
  const auto answer = [](bool graphs) {
    Options options = small(3);  // some wait, so that prompts come between
    options.graphs = graphs;
    options.kv_block_tokens = 16;
    Case c(options);
    int64_t next = 3;
    for (int64_t g = 0; g < 4; ++g) {
      GroupRequest r = request_of(g, 5 + 9 * g, 2, 20);
      if (g % 2 == 1) r.make_listener = [&] { return stop_after(next++); };
      c.groups.admit(std::move(r));
    }
    for (int64_t step = 0; step < 9; ++step) c.engine.step();
    c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});
    const std::vector<data::Group> groups = c.finish();
    c.expect_empty();
    const EngineCounts counts = c.engine.counts();
    if (graphs) EXPECT_GT(2 * counts.ran_ahead, counts.drawn) << "of all tokens most run ahead";
    else EXPECT_EQ(counts.ran_ahead, 0);
    std::vector<std::vector<float>> logprobs;
    for (const data::Group& group : groups)
      for (const data::Sample& sample : group.samples) logprobs.push_back(sample.logprobs);
    return std::pair(tokens_of(groups), logprobs);
  };
  EXPECT_EQ(answer(true), answer(false));
}

TEST(Engine, CountsDrawnTokensAndKnowsWhoHasNone) {
  Case c(small(2));
  for (int64_t g = 0; g < 3; ++g) c.groups.admit(request_of(g, 9, 2, 4));
  EXPECT_EQ(c.groups.without_token().size(), 3u);
  c.engine.step();
  EXPECT_EQ(c.groups.without_token(), (std::vector<data::GroupId>{data::GroupId{2}}));
  c.finish();
  EXPECT_EQ(c.engine.counts().drawn, 3 * 2 * 4);
  EXPECT_TRUE(c.groups.without_token().empty());
}

TEST(Engine, AFurtherTurnFindsTheTurnBeforeAndDrawsTheSameBits) {
  const auto answer = [](bool found) {
    Case c;
    c.groups.admit(request_of(0, 20, 1, 9));
    data::Group turn = c.finish().at(0);
    if (!found) c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});  // nothing is found under another version
    GroupRequest further = request_of(1, 0, 1, 8);
    further.group.prompt.ids = turn.prompt.ids;
    for (const std::vector<int32_t>& more : {turn.samples[0].ids, std::vector<int32_t>{7, 8, 9}})
      further.group.prompt.ids.insert(further.group.prompt.ids.end(), more.begin(), more.end());
    c.groups.admit(std::move(further));
    const data::Sample sample = c.finish().at(0).samples.at(0);
    EXPECT_EQ(c.engine.counts().found_tokens, found ? 20 + 8 : 0);
    c.expect_empty();
    return std::pair(sample.ids, sample.logprobs);
  };
  EXPECT_EQ(answer(true), answer(false));
}

TEST(Engine, ASampleWithAFirstTokenThatIsDroppedCountsAsWithout) {
  Case c(small(1));
  GroupRequest twin = request_of(0, 9, 1, 4);
  twin.group.id = data::GroupId{7};
  c.groups.admit(request_of(0, 9, 1, 4));
  c.groups.admit(std::move(twin));  // the same prompt: draws from the row of the first, and waits for a slot
  c.engine.step();
  EXPECT_EQ(c.groups.without_token(), (std::vector<data::GroupId>{data::GroupId{7}}));
  EXPECT_EQ(c.engine.counts().drawn, 1);
  c.engine.switch_weights(c.model.parameters, data::PolicyVersion{1});
  const auto groups = c.finish();
  EXPECT_EQ(value(groups.at(0).version), 0);
  EXPECT_EQ(value(groups.at(1).version), 1);
  EXPECT_EQ(c.engine.counts().drawn, 8);
}

TEST(Engine, ACompletionThatNobodyTookIsForgottenWithItsGroup) {
  Case c;
  GroupRequest r = request_of(0, 9, 2, 4);
  r.max_new_tokens = {1, 4};
  c.groups.admit(std::move(r));
  c.engine.step();
  c.groups.cancel(data::GroupId{0});
  EXPECT_FALSE(c.engine.running());
  EXPECT_TRUE(c.groups.finished().empty());
  c.expect_empty();
}

TEST(Engine, WithoutWeightsItRefusesToGenerate) {
  Case c;
  c.groups.admit(request_of(0, 9, 1, 4));
  c.engine.drop_weights();
  EXPECT_THROW(c.engine.step(), InternalError);
}

TEST(Engine, PromptsThatCannotBeAnsweredAreUserErrors) {
  Case c;
  EXPECT_THROW(c.groups.admit(request_of(0, 0, 1, 4)), UserError);
  EXPECT_THROW(c.groups.admit(request_of(0, 120, 1, 9)), UserError);  // the model's context is 128
  EXPECT_NO_THROW(c.groups.admit(request_of(0, 120, 1, 8)));
  GroupRequest shorter = request_of(1, 120, 2, 1000);  // its own lengths count, not the common one
  shorter.max_new_tokens = {1, 8};
  EXPECT_NO_THROW(c.groups.admit(std::move(shorter)));
  GroupRequest longer = request_of(1, 120, 2, 1);
  longer.max_new_tokens = {1, 9};
  EXPECT_THROW(c.groups.admit(std::move(longer)), UserError);
  GroupRequest foreign = request_of(2, 4, 1, 4);
  foreign.group.prompt.ids[2] = 64;
  EXPECT_THROW(c.groups.admit(std::move(foreign)), UserError);
  Case tight(small(1), 8);
  EXPECT_THROW(tight.groups.admit(request_of(0, 60, 1, 5)), UserError);  // 65 tokens, 64 in the pool
}

TEST(Engine, GreedyTokensAreThoseOfAFreshPassOverTheSequence) {
  Case c;
  GroupRequest r = request_of(0, 9, 1, 15);
  r.sampling.temperature = 0;
  c.groups.admit(std::move(r));
  const data::Group group = c.finish().at(0);
  at::NoGradGuard off;
  std::vector<int32_t> ids = group.prompt.ids;
  for (int32_t token : group.samples[0].ids) {
    const auto T = static_cast<int64_t>(ids.size());
    at::Tensor all = at::empty({T}, at::kLong);
    std::copy(ids.begin(), ids.end(), all.data_ptr<int64_t>());
    model::PackedContext context(c.model.kernels, {{0, T, {}}});
    const at::Tensor hidden = c.model.decoder.forward(c.model.parameters, {all, at::arange(T, at::kLong), {}}, context);
    const at::Tensor logits = c.model.decoder.local_logits(c.model.parameters, hidden.narrow(0, T - 1, 1));
    ASSERT_EQ(logits.argmax().item<int64_t>(), token);
    ids.push_back(token);
  }
}

}  // namespace
}  // namespace tandem::rollout
