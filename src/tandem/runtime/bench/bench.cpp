// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unistd.h>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"
#include "tandem/device/process.h"
#include "tandem/model/flops.h"
#include "tandem/rollout/group_assembly.h"
#include "tandem/runtime/bench/report.h"
#include "tandem/runtime/session/model_on_rank.h"
#include "tandem/runtime/run.h"
#include "tandem/text/tokenizer_files.h"
#include "tandem/train/balance.h"
#include "tandem/train/trainer.h"

namespace tandem::runtime {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The most this process ever held in memory, loading and the check of the answer included: what an arena does not count shows here.
double peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) {
  }
  TANDEM_CHECK(status.good(), "/proc/self/status has no VmHWM");
  return 1024 * std::stod(line.substr(6));
}

// What several lengths were, without the list.
json lengths_summary(std::vector<int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  return {{"min", lengths.front()}, {"median", lengths[lengths.size() / 2]}, {"max", lengths.back()},
          {"total", std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}};
}

// `read` holds the conditions of this benchmark alone; those that every benchmark reads are added here.
json report(const char* name, const BenchOptions& o, json read, const Figures& figures) {
  read.update({{"model", o.model}, {"dtype", o.dtype}, {"parity", o.parity}, {"seed", o.seed}, {"repeats", o.repeats},
               {"threads", o.threads > 0 ? o.threads : device::num_cores()}});
  return bench_report(name, read, figures);
}

// A folder that goes away with this object.
struct Scratch {
  std::string dir = join_text(fs::temp_directory_path().string(), "/tandem-bench-", ::getpid());
  Scratch() { fs::remove_all(dir), fs::create_directories(dir); }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(dir, ignored);
  }
};

// The model's files beside a tokenizer whose every id is one of the model's: prompts of exact length, sampling over the
// whole vocabulary.
std::string with_tokenizer(const std::string& model, const std::string& dir) {
  const model::ModelConfig config = model::read_config(model);
  std::string alphabet;
  for (char c = ' '; c <= '~'; ++c) alphabet += c;
  std::vector<std::string> fillers = {"<eos>"};
  const auto wanted = static_cast<size_t>(std::max<int64_t>(config.vocab_size - static_cast<int64_t>(alphabet.size()), 1));
  while (fillers.size() < wanted) fillers.push_back("<filler" + std::to_string(fillers.size()) + ">");
  text::write_char_tokenizer(dir, alphabet, fillers);
  for (const auto& entry : fs::directory_iterator(fs::absolute(model))) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tokenizer")) fs::create_symlink(entry.path(), dir + "/" + name);
  }
  return dir;
}

std::string write_prompts(const std::string& path, const BenchOptions& o) {
  std::ofstream out(path);
  const std::vector<std::string> words = {"sum", "of", "two", "and", "ten", "plus", "six", "one"};
  for (int64_t i = 0; i < o.prompts * (o.repeats + 1); ++i) {
    std::string text = "Q" + std::to_string(i) + ":";
    for (int64_t j = 0; static_cast<int64_t>(text.size()) < o.prompt_len; ++j)
      text += " " + words[static_cast<size_t>((i * 7 + j * 3) % 8)];
    text.resize(static_cast<size_t>(o.prompt_len), '.');
    out << json{{"question", text}, {"answer", "1"}}.dump() << "\n";
  }
  return path;
}

std::vector<json> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

RunConfig grpo_config(const BenchOptions& o, const std::string& dir) {
  const auto text = [](auto value) { return option_text(&value); };
  const auto whole = [](int64_t n) { return std::to_string(n); };
  return load_config("", {{"run.dir", dir + "/run"}, {"run.steps", whole(o.repeats + 1)}, {"run.parity", o.parity ? "true" : "false"},
                          {"run.seed", whole(o.seed)}, {"model.path", with_tokenizer(o.model, dir + "/model")}, {"model.dtype", o.dtype},
                          {"data.train", write_prompts(dir + "/prompts.jsonl", o)}, {"data.shuffle", "false"},
                          {"reward.rule", "regex"}, {"reward.pattern", "1"}, {"rollout.max_new_tokens", whole(o.new_tokens)},
                          {"rollout.ignore_eos", "true"}, {"rollout.max_running", whole(o.prompts * o.gens)},
                          {"algo.kl_coef", text(o.beta)}, {"schedule.groups_per_step", whole(o.prompts)},
                          {"schedule.group_size", whole(o.gens)}, {"checkpoint.every_steps", "0"},
                          {"parallel.threads", whole(o.threads)}});
}

}  // namespace

json bench_grpo_step(const BenchOptions& o) {
  const Scratch scratch;
  RunRequest request;
  request.config = grpo_config(o, scratch.dir);
  log::quiet(true);
  run_rl(request);
  log::quiet(false);
  Figures figures;
  const double tokens = static_cast<double>(o.prompts * o.gens * o.new_tokens), bound = o.parity ? 0 : o.dtype == "float32" ? 1e-6 : 2e-3;
  for (const json& m : read_lines(scratch.dir + "/run/metrics.jsonl")) {
    const double kl = m.at("actor/kl_rollout_train"), length = m.at("data/response_tokens_mean");
    TANDEM_CHECK(std::abs(kl) <= bound, "rollout and training disagree: ", kl);
    TANDEM_CHECK(length == static_cast<double>(o.new_tokens), "responses of another length");
    TANDEM_CHECK(std::isfinite(m.at("actor/grad_norm").get<double>()), "gradient");
    if (m.at("step") == 1) continue;  // the warm-up
    const double step = m.at("time/step_s"), generate = m.at("time/rollout_s");
    figures["step_s"].push_back(step);
    figures["generate_s"].push_back(generate);
    figures["train_s"].push_back(step - generate);
    figures["reference_s"].push_back(m.value("time/reference_s", 0.0));
    figures["tokens_per_s"].push_back(tokens / step);
  }
  return report("grpo_step", o, {{"prompts", o.prompts}, {"gens", o.gens}, {"prompt_len", o.prompt_len}, {"new", o.new_tokens},
                                 {"beta", o.beta}}, figures);
}

namespace {

// A model of its own, for the benchmarks that need no run.
struct Bench {
  const BenchOptions& options;
  device::Arena arena{"device"};
  std::unique_ptr<comm::Group> alone = comm::single();
  model::kernel::Gemm gemm;
  ModelOnRank model;

  explicit Bench(const BenchOptions& o)
      : options(o), gemm(threads_then_dtype(o), o.parity), model(model::read_config(o.model), {}, gemm, {arena, "weights"}) {
    model.load(o.model);
  }
  static c10::ScalarType threads_then_dtype(const BenchOptions& o) {
    device::set_compute_threads(static_cast<int>(o.threads > 0 ? o.threads : device::num_cores()));
    return dtype_of(o.dtype, "--dtype");
  }
  std::vector<int32_t> random_ids(int64_t n, uint64_t stream) const {
    RandomStream random(static_cast<uint64_t>(options.seed), stream);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(3 + random.below(model.config().vocab_size - 3)));
    return ids;
  }
};

struct Generated {
  double seconds = 0;
  int64_t steps = 0;
  std::vector<data::Group> groups;
};

Generated generate(Bench& bench, const std::vector<int64_t>& lengths) {
  const BenchOptions& o = bench.options;
  monitor::Recorder recorder;
  rollout::Options engine_options;
  engine_options.max_running = o.batch;
  engine_options.kv_cache_mib = 4096;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  rollout::Engine engine(engine_options,
                         {bench.model.decoder(), bench.arena, recorder, bench.model.config().vocab_size, o.prompt_len + longest});
  engine.switch_weights(bench.model.parameters(), data::PolicyVersion{0});
  rollout::GroupAssembly groups(engine);
  Generated out;
  const double begin = now_s();
  for (size_t i = 0; i < lengths.size(); ++i) {
    rollout::GroupRequest request;
    request.group.id = data::GroupId{static_cast<int64_t>(i)};
    request.group.prompt.ids = bench.random_ids(o.prompt_len, i);
    request.first_sample = static_cast<int64_t>(i);
    request.sampling.max_new_tokens = lengths[i];
    request.sampling.ignore_eos = true;
    request.seed = static_cast<uint64_t>(o.seed);
    groups.admit(std::move(request));
  }
  for (; engine.running(); ++out.steps) {
    engine.step();
    for (data::Group& group : groups.finished()) out.groups.push_back(std::move(group));
  }
  out.seconds = now_s() - begin;
  return out;
}

// The engine's log-probabilities against those of a training forward pass over the whole sequence.
void check_generated(Bench& bench, const Generated& generated, const std::vector<int64_t>& lengths) {
  const double bound = bench.options.parity ? 0 : bench.options.dtype == "float32" ? 2e-3 : 0.25;
  TANDEM_CHECK(generated.groups.size() == lengths.size(), "groups are missing");
  for (const data::Group& group : generated.groups) {
    const data::Sample& sample = group.samples[0];
    TANDEM_CHECK(static_cast<int64_t>(sample.ids.size()) == lengths[static_cast<size_t>(value(group.id))], "a response of another length");
    if (value(group.id) > 3) continue;
    train::Row row;
    row.prompt = group.prompt.ids;
    row.response = sample.ids;
    const auto scored = train::score(bench.model.decoder(), bench.model.parameters(), std::span(&row, 1), 1.0, row.num_tokens());
    for (size_t t = 0; t < sample.ids.size(); ++t)
      TANDEM_CHECK(std::abs(scored[0][t] - sample.logprobs[t]) <= bound, "log-probability ", sample.logprobs[t], " against ", scored[0][t]);
  }
}

// How long each response of bench_generate is; one per sequence.
std::vector<int64_t> lengths_to_generate(const BenchOptions& o) {
  if (o.mode == "fixed") {
    if (!o.lengths.empty()) throw UserError("--lengths", "is not read in fixed mode", "--new for the length of all, or --mode ragged");
    const int64_t sequences = o.sequences > 0 ? o.sequences : o.batch, tokens = o.response_tokens > 0 ? o.response_tokens : 64;
    return std::vector<int64_t>(static_cast<size_t>(sequences), tokens);
  }
  if (o.mode != "ragged") throw UserError("--mode", "'" + o.mode + "'", "fixed or ragged");
  if (o.lengths.empty()) throw UserError("--lengths", "is missing", "a JSON array of response lengths for ragged generation");
  std::vector<int64_t> lengths = o.lengths;
  const auto given = static_cast<int64_t>(lengths.size());
  if (o.sequences > given)
    throw UserError("--prompts", join_text("is ", o.sequences, ", and --lengths has ", given), join_text("expected at most ", given));
  if (o.sequences > 0) lengths.resize(static_cast<size_t>(o.sequences));
  for (int64_t& n : lengths)
    if (o.response_tokens > 0) n = std::min(n, o.response_tokens);
  return lengths;
}

}  // namespace

json bench_generate(const BenchOptions& o) {
  const std::vector<int64_t> lengths = lengths_to_generate(o);
  Bench bench(o);
  const double useful = std::accumulate(lengths.begin(), lengths.end(), 0.0), num = static_cast<double>(lengths.size());
  const std::vector<int64_t> one(lengths.size(), 1);
  Figures figures;
  for (int64_t i = 0; i <= o.repeats; ++i) {
    const Generated first = generate(bench, one), all = generate(bench, lengths);
    if (i == 0) {
      check_generated(bench, all, lengths);
      continue;  // the warm-up
    }
    const double after_first_s = std::max(1e-9, all.seconds - first.seconds);
    figures["e2e_tok_s"].push_back(useful / all.seconds);
    figures["prefill_tok_s"].push_back(num * static_cast<double>(o.prompt_len) / first.seconds);
    figures["ms_per_step"].push_back(1e3 * after_first_s / static_cast<double>(std::max<int64_t>(1, all.steps - first.steps)));
    figures["decode_tok_s"].push_back((useful - num) / after_first_s);
  }
  return report("generate", o, {{"mode", o.mode}, {"batch", o.batch}, {"sequences", lengths.size()}, {"prompt_len", o.prompt_len},
                                {"lengths", lengths_summary(lengths)}}, figures);
}

namespace {

model::TokenWork work_of(int64_t length) {
  model::TokenWork work;
  work.add(length);
  return work;
}

// Random sequences with random advantages, as rows of a training step.
struct TrainWork {
  std::vector<std::vector<int32_t>> ids;
  std::vector<float> behavior;
  std::vector<train::Row> rows;
  model::TokenWork work;
  double response_tokens = 0;

  explicit TrainWork(const Bench& bench) {
    const BenchOptions& o = bench.options;
    const auto longest = static_cast<size_t>(*std::max_element(o.lengths.begin(), o.lengths.end()));
    behavior.assign(longest, static_cast<float>(-std::log(bench.model.config().vocab_size)));
    RandomStream random(static_cast<uint64_t>(o.seed), 1);
    rows.resize(o.lengths.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t n = o.prompt_len + o.lengths[i];
      ids.push_back(bench.random_ids(n, i));
      rows[i].prompt = std::span(ids[i]).first(static_cast<size_t>(o.prompt_len));
      rows[i].response = std::span(ids[i]).subspan(static_cast<size_t>(o.prompt_len));
      rows[i].behavior = std::span(behavior).first(rows[i].response.size());
      rows[i].advantage = random.normal();
      work.add(n);
      response_tokens += static_cast<double>(o.lengths[i]);
    }
  }
};

// Of a dense model, what has to be computed: products of the body for every token, the head for response tokens, attention by its
// causal half; times 3 for training. What the last layer does after its attention is done for response tokens alone.
double needed_flops(const model::ModelConfig& c, const TrainWork& w) {
  const double per_layer = static_cast<double>(c.hidden_size * (2 * c.q_size() + 2 * c.kv_size() + 3 * c.intermediate_size));
  const double after_attention = static_cast<double>(c.hidden_size * (c.q_size() + 3 * c.intermediate_size));
  const double body = static_cast<double>(c.num_layers) * per_layer * w.work.tokens - after_attention * (w.work.tokens - w.response_tokens);
  const double head = static_cast<double>(c.vocab_size * c.hidden_size) * w.response_tokens;
  return 6 * (body + head + static_cast<double>(c.num_layers * c.q_size()) * w.work.squares);
}

// Log-probabilities of the packed step against those of each sequence alone; `rows` are those that this rank tells.
void check_trained(const BenchOptions& o, std::span<const size_t> rows, const std::vector<std::vector<float>>& alone,
                   const std::vector<std::vector<float>>& packed) {
  const double bound = o.dtype == "float32" ? 1e-3 : 0.25;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float>& want = alone[rows[i]];
    for (size_t t = 0; t < want.size(); ++t)
      TANDEM_CHECK(std::abs(want[t] - packed[i][t]) <= bound, "packed against alone: ", packed[i][t], ", ", want[t]);
  }
}

// The rows of a data-parallel rank, dealt level.
std::vector<size_t> rows_of_rank(const TrainWork& w, const model::ModelConfig& config, const model::Layout& layout, int rank) {
  std::vector<double> costs;
  for (const std::vector<int32_t>& ids : w.ids) costs.push_back(model::training_flops(config, work_of(std::ssize(ids))));
  const std::vector<int> owner = train::balance(costs, layout.dp);
  std::vector<size_t> mine;
  for (size_t i = 0; i < owner.size(); ++i)
    if (owner[i] == layout.dp_rank(rank)) mine.push_back(i);
  return mine;
}

struct TrainBench {
  const BenchOptions& options;
  const train::Options train;
  const model::Layout layout;
  const TrainWork& work;
  const std::vector<std::vector<float>>& alone;  // log-probabilities of each sequence
};

// Seconds of each measured step, and the peaks of this rank's arena; of rank 0 where the ranks differ.
void train_on_rank(const TrainBench& b, const model::kernel::Gemm& gemm, comm::Group& world, Figures& figures) {
  const BenchOptions& o = b.options;
  const int64_t threads = o.threads > 0 ? o.threads : device::num_cores();
  device::set_compute_threads(static_cast<int>(std::max<int64_t>(1, threads / world.size())));
  comm::Mesh mesh(world, model::mesh_sizes(b.layout));
  device::Arena arena("device"), host("host");
  ModelOnRank model(model::read_config(o.model), model::place_in(b.layout, mesh), gemm, {arena, "weights"});
  model.load(o.model);
  train::Trainer trainer(b.train, {model.table(), model.decoder(), model.values(), train::Ranks::in(mesh, model.config()), arena, {}, 0,
                                   &host});
  trainer.start();
  const std::vector<size_t> mine = rows_of_rank(b.work, model.config(), b.layout, world.rank());
  std::vector<train::Row> rows;
  for (size_t i : mine) rows.push_back(b.work.rows[i]);
  const algo::Recipe recipe = algo::recipe_of(algo::named_recipe("grpo"));
  for (int64_t i = 0; i <= o.repeats; ++i) {
    world.barrier();
    const double begin = now_s();
    const train::StepReport step = trainer.policy_step(rows, recipe, 1.0, 1e-6);
    const double seconds = now_s() - begin;
    if (i == 0 && b.layout.speaks(world.rank())) check_trained(o, mine, b.alone, step.logprobs);
    if (i == 0 || world.rank() != 0) continue;  // the first is the warm-up
    figures["step_s"].push_back(seconds);
    figures["peak_bytes"].push_back(static_cast<double>(arena.peak_bytes()));
    figures["activation_peak_bytes"].push_back(static_cast<double>(step.activation_peak_bytes));
    figures["peak_rss_bytes"].push_back(peak_rss_bytes());
  }
}

}  // namespace

json bench_train_step(const BenchOptions& o) {
  if (o.lengths.empty()) throw UserError("--lengths", "is missing", "a JSON array of response lengths");
  train::Options options;
  if (o.micro_batch_tokens > 0) options.micro_batch_tokens = o.micro_batch_tokens;
  options.recompute = o.recompute;
  options.swap_optimizer = o.swap_optimizer;
  const model::ModelConfig config = model::read_config(o.model);
  const model::Layout layout = model::parse_layout(o.train_layout, "--train-layout");
  model::check_layout(layout, config, model::Use::kTraining, "--train-layout");
  std::optional<Bench> bench(std::in_place, o);
  const TrainWork w(*bench);
  const auto separate = train::score(bench->model.decoder(), bench->model.parameters(), w.rows, 1.0, 1);
  const model::kernel::Gemm gemm = bench->gemm;
  bench.reset();  // its weights are not those that are trained
  constexpr double kDeadlineS = 3600;
  Figures figures;
  comm::run_local(layout.world(), kDeadlineS, [&](comm::Group& world) {
    train_on_rank({o, options, layout, w, separate}, gemm, world, figures);
  });
  const double flops = model::training_flops(config, w.work);
  for (double seconds : std::vector(figures["step_s"])) {
    figures["tokens_per_s"].push_back(w.work.tokens / seconds);
    figures["gflops"].push_back(flops / seconds / 1e9);
    if (config.moe.num_experts == 0 && config.mla.kv_rank == 0) figures["needed_gflops"].push_back(needed_flops(config, w) / seconds / 1e9);
  }
  return report("train_step", o, {{"sequences", w.rows.size()}, {"prompt_len", o.prompt_len}, {"lengths", lengths_summary(o.lengths)},
                                  {"micro_batch_tokens", options.micro_batch_tokens}, {"train_layout", model::to_string(layout)},
                                  {"recompute", o.recompute}, {"swap_optimizer", o.swap_optimizer}}, figures);
}

}  // namespace tandem::runtime
