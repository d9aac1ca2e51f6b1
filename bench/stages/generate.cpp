// SPDX-License-Identifier: Apache-2.0
#include "stages/generate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "stages/loaded_model.h"
#include "report.h"
#include "tandem/generate/generator.h"
#include "tandem/train/trainer.h"

namespace tandem::bench {
namespace {

using nlohmann::json;

struct Generated {
  double seconds = 0;
  int64_t steps = 0;
  std::vector<data::Group> groups;
};

rollout::Options engine_options(const GenerateOptions& o) {
  rollout::Options options;
  options.max_running = o.batch;
  options.kv_block_tokens = o.kv_block_tokens;
  options.kv_cache_mib = o.kv_cache_mib;
  options.graphs = o.graphs;
  return options;
}

// Nothing is found in the cache of what was generated before.
Generated generated(LoadedModel& loaded, const GenerateOptions& o, const std::vector<int64_t>& lengths, rollout::Engine& engine) {
  engine.forget_cache();
  const auto length_of = [&](data::SampleId id) { return lengths[static_cast<size_t>(value(id))]; };
  const auto seed = static_cast<uint64_t>(o.seed);
  generate::Generator generator({.sampling = {.ignore_eos = true}, .seed = seed, .most_tokens = length_of}, engine);
  Generated out;
  const double begin = now_s();
  for (size_t i = 0; i < lengths.size(); ++i)
    generator.admit(data::GroupId{static_cast<int64_t>(i)}, {.ids = loaded.random_ids(o.prompt_len, i)});
  for (; generator.step(); ++out.steps)
    for (data::Group& group : generator.take_ended()) out.groups.push_back(std::move(group));
  out.seconds = now_s() - begin;
  return out;
}

// The engine's log-probabilities against those of a training forward pass over the whole sequence.
void check_generated(LoadedModel& loaded, const Generated& generated, const std::vector<int64_t>& lengths) {
  const double bound = loaded.options.parity ? 0 : loaded.options.dtype == "float32" ? 2e-3 : 0.25;
  TANDEM_CHECK(generated.groups.size() == lengths.size(), "groups are missing");
  for (const data::Group& group : generated.groups) {
    const data::Sample& sample = group.samples[0];
    TANDEM_CHECK(static_cast<int64_t>(sample.ids.size()) == lengths[static_cast<size_t>(value(group.id))], "a response of another length");
    if (value(group.id) > 3) continue;
    train::Row row;
    row.prompt = group.prompt.ids;
    row.response = sample.ids;
    const auto scored = train::score(loaded.model.decoder(), loaded.model.parameters(), std::span(&row, 1), 1.0, row.num_tokens());
    for (size_t t = 0; t < sample.ids.size(); ++t)
      TANDEM_CHECK(std::abs(scored[0][t] - sample.logprobs[t]) <= bound, "log-probability ", sample.logprobs[t], " against ", scored[0][t]);
  }
}

// How long each response is; one per sequence.
std::vector<int64_t> lengths_to_generate(const GenerateOptions& o) {
  if (o.mode == "fixed") {
    if (!o.lengths.empty()) throw UserError("--lengths", "is not read in fixed mode", "--new for the length of all, or --mode ragged");
    const int64_t sequences = o.prompts > 0 ? o.prompts : o.batch, tokens = o.new_tokens > 0 ? o.new_tokens : 64;
    return std::vector<int64_t>(static_cast<size_t>(sequences), tokens);
  }
  if (o.mode != "ragged") throw UserError("--mode", "'" + o.mode + "'", "fixed or ragged");
  if (o.lengths.empty()) throw UserError("--lengths", "is missing", "a JSON array of response lengths for ragged generation");
  std::vector<int64_t> lengths = o.lengths;
  const auto given = static_cast<int64_t>(lengths.size());
  if (o.prompts > given)
    throw UserError("--prompts", join_text("is ", o.prompts, ", and --lengths has ", given), join_text("expected at most ", given));
  if (o.prompts > 0) lengths.resize(static_cast<size_t>(o.prompts));
  for (int64_t& n : lengths)
    if (o.new_tokens > 0) n = std::min(n, o.new_tokens);
  return lengths;
}

// What is measured in one go.
struct Turn {
  std::string prefix;  // of its figures
  GenerateOptions options;
  std::vector<int64_t> lengths;
};

std::vector<Turn> turns_of(const GenerateOptions& o) {
  if (o.shapes.empty()) return {{"", o, lengths_to_generate(o)}};
  if (o.mode != "fixed") throw UserError("--shapes", "is not read in " + o.mode + " mode", "--mode fixed");
  std::vector<Turn> turns;
  for (const std::string& shape : o.shapes) {
    GenerateOptions own = o;
    int end = 0;
    if (std::sscanf(shape.c_str(), "%9ldx%9ld%n", &own.batch, &own.prompt_len, &end) != 2 || static_cast<size_t>(end) != shape.size() ||
        own.batch < 1 || own.prompt_len < 1)
      throw UserError("--shapes", "'" + shape + "'", "sequences and tokens of a prompt, such as 64x2048");
    const std::vector<int64_t> lengths = lengths_to_generate(own);
    turns.push_back({shape + " ", std::move(own), lengths});
  }
  return turns;
}

// Adds the turn's figures. Returns the tokens of a block.
int64_t measure(LoadedModel& loaded, const Turn& turn, Figures& figures) {
  const GenerateOptions& o = turn.options;
  const std::vector<int64_t>& lengths = turn.lengths;
  const double useful = std::accumulate(lengths.begin(), lengths.end(), 0.0), num = static_cast<double>(lengths.size());
  const std::vector<int64_t> one(lengths.size(), 1);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const model::Decoder& decoder = loaded.model.decoder();
  rollout::Engine engine(engine_options(o), {decoder, loaded.arena, decoder.config().vocab_size, o.prompt_len + longest});
  engine.switch_weights(loaded.model.parameters(), data::PolicyVersion{0});
  for (int64_t i = 0; i <= o.repeats; ++i) {
    const Generated first = generated(loaded, o, one, engine), all = generated(loaded, o, lengths, engine);
    if (i == 0) {
      check_generated(loaded, all, lengths);
      continue;  // the warm-up
    }
    const double after_first_s = std::max(1e-9, all.seconds - first.seconds);
    const auto add = [&](const char* name, double value) { figures[turn.prefix + name].push_back(value); };
    add("e2e_tok_s", useful / all.seconds);
    add("prefill_tok_s", num * static_cast<double>(o.prompt_len) / first.seconds);
    add("ms_per_step", 1e3 * after_first_s / static_cast<double>(std::max<int64_t>(1, all.steps - first.steps)));
    add("decode_tok_s", (useful - num) / after_first_s);
  }
  return engine.counts().block_tokens;
}

}  // namespace

void describe(OptionVisitor& field, GenerateOptions& o) {
  field("mode", o.mode, "All responses of one length, or each its own", one_of({"fixed", "ragged"}));
  field("batch", o.batch, "Sequences that run at a time", at_least(1));
  field("prompts", o.prompts, "Prompts; 0 is one batch in fixed mode, one for each length in ragged mode", at_least(0));
  field("prompt_len", o.prompt_len, "Tokens of a prompt", at_least(1));
  field("shapes", o.shapes,
        "Sequences and tokens of a prompt, such as 64x2048, in place of --batch and --prompt-len; several are measured by one process");
  field("new", o.new_tokens, "Tokens of a response in fixed mode, where 0 is 64; the most of one in ragged mode, where 0 is no bound",
        at_least(0));
  field("kv_block_tokens", o.kv_block_tokens, "Tokens held by one KV block; 0 takes what the device reads fastest",
        zero_or_power_of_two(16));
  field("kv_cache_mib", o.kv_cache_mib, "Most memory of the KV cache", at_least(1));
  field("graphs", o.graphs, "Capture decode steps as graphs, where the device has graphs");
  describe(field, static_cast<Computing&>(o));
}

json generate(const GenerateOptions& o) {
  const std::vector<Turn> turns = turns_of(o);
  LoadedModel loaded(o);
  Figures figures;
  int64_t block_tokens = 0;
  for (const Turn& turn : turns) block_tokens = measure(loaded, turn, figures);
  json conditions = {{"mode", o.mode}, {"kv_block_tokens", block_tokens}, {"graphs", o.graphs}};
  if (o.shapes.empty()) conditions.update({{"batch", o.batch}, {"prompt_len", o.prompt_len}, {"sequences", turns.front().lengths.size()}});
  else conditions["shapes"] = o.shapes;
  conditions["lengths"] = lengths_summary(turns.front().lengths);
  return report("generate", o, conditions, figures);
}

}  // namespace tandem::bench
