// SPDX-License-Identifier: Apache-2.0
#include "tandem/python/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>

#include "tandem/algo/algorithm.h"
#include "tandem/base/check.h"
#include "tandem/checkpoint/lock_file.h"
#include "tandem/checkpoint/run_state.h"
#include "tandem/config/algorithm.h"
#include "tandem/model/flops.h"
#include "tandem/serve/answers.h"
#include "tandem/python/session/crew.h"
#include "tandem/text/turns.h"
#include "tandem/train/balance.h"

namespace tandem::session {
namespace {

// Options that a whole run reads, and a session does not.
constexpr const char* kUnread[] = {"algo.advantage", "algo.gamma", "algo.lambda", "algo.kl_in_reward", "algo.kl_target", "algo.kl_horizon",
                                   "algo.mask_truncated", "algo.filter_groups", "algo.max_filter_rounds", "algo.mini_batches",
                                   "algo.epochs", "algo.max_kl", "model.ref_model_load_path", "run.steps", "checkpoint.every_steps"};

void check_unread(const config::RunConfig& c) {
  for (const char* section : {"algo", "model", "run", "checkpoint"})
    for (const std::string& option : config::changed_options(c, section))
      if (std::ranges::find(kUnread, option) != std::end(kUnread))
        throw UserError(option, "is set, and a loop of your own does that itself", "without it: docs/python.md");
}

// What a session does not do must not be asked for.
const config::RunConfig& checked(const config::RunConfig& config) {
  for (const char* section : {"data", "reward", "critic", "schedule", "supervised", "eval", "memory"})
    for (const std::string& option : config::changed_options(config, section))
      throw UserError(option, "is set, and a loop of your own does not read it",
                      "options of run, model, rollout, algo, train, checkpoint and parallel");
  check_unread(config);
  if (config.model.path.empty()) throw UserError("model.path", "is empty", "a Hugging Face directory");
  if (config.parallel.placement != "colocated")
    throw UserError("parallel.placement", "is " + config.parallel.placement + ", and a loop of your own has all ranks at each call",
                    "colocated");
  if (config::algorithm_of(config).needs_critic())
    throw UserError("algo.name", "is " + config.algo.name + ", which needs a critic", "an algorithm without one");
  if (algo::names_function(config.algo.loss))
    throw UserError("algo.loss", "names " + config.algo.loss, "a function that forward_backward is given");
  return config;
}

train::Row view(const Row& row) {
  train::Row out;
  out.prompt = row.prompt, out.response = row.response, out.behavior = row.behavior;
  out.advantages = row.advantages, out.old = row.old, out.reference = row.reference, out.trainable = row.trainable;
  return out;
}

// Old log-probabilities of a row that brings none are its sampler's, unless that had the weights of now: then they are the current ones.
train::Row view_after(int64_t num_steps, const Row& row) {
  train::Row out = view(row);
  if (out.old.empty() && row.version != num_steps) out.old = row.behavior;
  return out;
}

// The rows that a rank trains or scores: those of its replica. Replicas get level work.
std::vector<size_t> dealt(std::span<const Row> rows, const model::ModelConfig& config, const policy::Ranks& ranks) {
  std::vector<double> costs;
  for (const Row& row : rows) {
    model::TokenWork work;
    work.add(std::ssize(row.prompt) + std::ssize(row.response));
    costs.push_back(model::training_flops(config, work));
  }
  const std::vector<int> owners = train::balance(costs, ranks.train_layout.dp);
  std::vector<size_t> mine;
  for (size_t i = 0; i < rows.size(); ++i)
    if (owners[i] == ranks.train_dp_rank()) mine.push_back(i);
  return mine;
}

// One call at a time.
class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
    if (flag_.exchange(true)) throw UserError("the policy", "is in another call", "one call at a time, and none from within a loss");
  }
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

struct Session::State {
  const config::RunConfig config;
  const model::ModelConfig model;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat;
  const algo::Algorithm algorithm;
  std::unique_ptr<Crew> crew;
  const int process = ::getpid();
  std::atomic<bool> is_busy = false;
  int64_t num_steps = 0, num_samples = 0;
  bool has_gradient = false;
  bool engines_are_left = false;  // in the middle of sequences, on some ranks
  checkpoint::LockFile lock;      // of run.dir, from the first save or load on

  State(const config::RunConfig& c, StopRequested asked_to_stop)
      : config(checked(c)),
        model(model::read_config(c.model.path)),
        algorithm(algo::algorithm_of(config::resolved_correction(c, model.moe.num_experts > 0))),
        crew(std::make_unique<Crew>(config, std::move(asked_to_stop))) {
    if (text::Tokenizer::present_in(c.model.path)) tokenizer = text::Tokenizer::load(c.model.path);
    if (text::ChatTemplate::present_in(c.model.path)) chat = text::ChatTemplate::load(c.model.path);
  }

  ~State() {
    if (::getpid() != process) (void)crew.release();  // its threads are those of the process that forked
  }

  int64_t num_tokens() const { return tokenizer ? std::min(tokenizer->vocab_size(), model.vocab_size) : model.vocab_size; }
  const text::Tokenizer& text_of() const {
    if (!tokenizer) throw UserError(config.model.path, "has no tokenizer", "token ids instead of a text");
    return *tokenizer;
  }

  void check_ids(std::span<const int32_t> ids, const std::string& where) const {
    const auto wrong = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= model.vocab_size; });
    if (wrong != ids.end()) throw UserError(where, join_text("token id ", *wrong), join_text("0 to ", model.vocab_size - 1));
  }

  // Keeps other runs and loops out of run.dir, and this one from one that it does not go on from.
  void hold_folder(bool loads) {
    if (lock.holds()) return;
    const std::string& dir = config.run.dir;
    const std::vector<checkpoint::CheckpointPlace> there = checkpoint::newest_first(dir + "/checkpoint");
    if (loads && there.empty()) return;
    if (!there.empty() && !loads)
      throw UserError(dir, join_text("holds step ", there.front().step, " of another loop or run, and saving would remove it"),
                      "load() before the first update, to go on from it, or another dir");
    std::error_code failed;
    std::filesystem::create_directories(dir, failed);  // the lock says what is wrong
    lock = checkpoint::LockFile(dir + "/.lock");
  }

  // Holds off other calls while it lives.
  Busy begin() {
    if (::getpid() != process) throw UserError("the policy", "was opened by another process", "a policy of its own in each process");
    return Busy(is_busy);
  }

  // Errors: UserError naming the row.
  void check(std::span<const Row> rows) const {
    if (rows.empty()) throw UserError("rows", "are none", "at least one");
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      const std::string where = join_text("row ", i);
      if (row.prompt.empty()) throw UserError(where, "has a prompt without a token", "at least one");
      if (row.response.empty()) throw UserError(where, "has a response without a token", "at least one");
      check_ids(row.prompt, where + ", prompt"), check_ids(row.response, where + ", response");
      const auto tokens = static_cast<int64_t>(row.prompt.size() + row.response.size());
      if (tokens > model.max_positions)
        throw UserError(where, join_text("has ", tokens, " tokens"), join_text("at most ", model.max_positions));
    }
  }

  // What a policy loss reads. Errors: UserError naming row and column.
  void check_columns(std::span<const Row> rows, bool built_in) const {
    const auto wrong = [](size_t row, const char* column, const std::string& what, const std::string& right) {
      throw UserError(join_text("row ", row), join_text("its ", column, " ", what), right);
    };
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      const auto check_one = [&](const char* column, std::span<const float> values, bool is_needed) {
        if (values.empty() && !is_needed) return;
        if (values.size() != row.response.size())
          wrong(i, column, join_text("have ", values.size(), " values"), join_text("one for each of its ", row.response.size(), " tokens"));
        for (float value : values)
          if (!std::isfinite(value)) wrong(i, column, join_text("have the value ", value), "finite numbers");
      };
      check_one("logprobs", row.behavior, true);
      check_one("advantages", row.advantages, true);
      check_one("old log-probabilities", row.old, algorithm.correction.normalize);
      check_one("reference log-probabilities", row.reference, built_in && algorithm.has_kl_loss());
      if (!row.trainable.empty() && row.trainable.size() != row.response.size())
        wrong(i, "mask", join_text("has ", row.trainable.size(), " values"),
              join_text("one for each of its ", row.response.size(), " tokens"));
      if (row.reference.empty() != rows.front().reference.empty())
        wrong(i, "reference", "is unlike that of row 0", "a column in all rows or in none");
      if (row.version && (*row.version < 0 || *row.version > num_steps))
        wrong(i, "version", join_text("is ", *row.version),
              join_text("0 to ", num_steps, ", the updates so far, or none for another policy's"));
    }
  }
};

Session::Session(const config::RunConfig& config, StopRequested asked_to_stop)
    : state_(std::make_unique<State>(config, std::move(asked_to_stop))) {}
Session::~Session() = default;

const text::Tokenizer* Session::tokenizer() const { return state_->tokenizer ? &*state_->tokenizer : nullptr; }
int64_t Session::context_tokens() const { return state_->model.max_positions; }
int64_t Session::num_steps() const { return state_->num_steps; }

std::vector<int32_t> Session::encoded(const std::string& text) const { return state_->text_of().encode(text); }

std::vector<int32_t> Session::encoded(const text::Conversation& messages) const {
  if (!state_->chat) throw UserError(state_->config.model.path, "has no chat template", "texts instead of messages");
  return text::encode_conversation(state_->text_of(), *state_->chat, messages, "the messages").ids;
}

std::vector<data::Group> Session::sample(std::vector<data::Prompt> prompts, const serve::GenerateOptions& how) {
  State& s = *state_;
  const Busy busy = s.begin();
  if (how.n < 1) throw UserError("n", join_text("is ", how.n), "at least 1");
  int64_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = join_text("prompt ", i);
    prompts[i].row = static_cast<int64_t>(i);
    if (prompts[i].ids.empty()) throw UserError(where, "has no token", "at least one");
    s.check_ids(prompts[i].ids, where);
    longest = std::max<int64_t>(longest, std::ssize(prompts[i].ids));
  }
  const int64_t context = longest + how.sampling.max_new_tokens;
  if (context > s.model.max_positions)
    throw UserError("max_new_tokens", join_text("is ", how.sampling.max_new_tokens, ", and the longest prompt has ", longest),
                    join_text("together at most ", s.model.max_positions));
  // Numbers of samples, and so their random streams, are used once, whatever n is.
  const int64_t first_group = (s.num_samples + how.n - 1) / how.n;
  std::vector<data::Group> all(prompts.size());
  const bool drops_engines = s.engines_are_left;
  s.engines_are_left = true;
  s.crew->do_all([&](OnRank& me) {
    const policy::Ranks& ranks = me.rank.ranks;
    if (drops_engines) me.drop_engine();
    rollout::Engine* engine = me.engine_for(context, s.num_tokens(), data::PolicyVersion{s.num_steps});
    const int dp = ranks.rollout_layout.dp, mine = ranks.rollout_layout.dp_rank(ranks.rollout_rank());
    std::vector<data::Prompt> my_prompts;
    for (size_t i = static_cast<size_t>(mine); i < prompts.size(); i += static_cast<size_t>(dp)) my_prompts.push_back(prompts[i]);
    const serve::AnswerRequest request{me.actor.rollout_decoder(), me.actor.rollout_parameters(), me.rank.memory.device,
                                       tokenizer(), s.config.rollout.engine,
                                       {.sampling = how.sampling,
                                        .group_size = how.n,
                                        .seed = static_cast<uint64_t>(s.config.run.seed),
                                        .ends = {how.stop, how.sampling, me.actor.rollout_decoder().config(), tokenizer()}},
                                       first_group + mine, dp,
                                       ranks.stop_between_tokens([&] { return s.crew->stop_requested(); }), engine};
    serve::answer_prompts(request, std::move(my_prompts), [&](data::Group&& group) {
      const auto at = static_cast<size_t>(group.prompt.row);
      if (ranks.speaks_for_rollout()) all[at] = std::move(group);
    });
    me.forget_numbers();
  });
  s.engines_are_left = false;
  s.num_samples = (first_group + std::ssize(prompts)) * how.n;
  return all;
}

std::vector<std::vector<float>> Session::logprobs(std::span<const Row> rows, double temperature) {
  State& s = *state_;
  const Busy busy = s.begin();
  s.check(rows);
  std::vector<std::vector<float>> all(rows.size());
  s.crew->do_all([&](OnRank& me) {
    const policy::Ranks& ranks = me.rank.ranks;
    const std::vector<size_t> mine = dealt(rows, s.model, ranks);
    std::vector<train::Row> views;
    for (size_t i : mine) views.push_back(view(rows[i]));
    const policy::TrainedRole& role = me.actor.trained();
    auto scored = train::score(role.model().decoder(), role.trainer().parameters(), views, temperature,
                               s.config.train.logprob_micro_batch_tokens);
    if (!ranks.speaks_for_train()) return;
    for (size_t i = 0; i < mine.size(); ++i) all[mine[i]] = std::move(scored[i]);
  });
  return all;
}

train::StepReport Session::forward_backward(std::span<const Row> rows, double temperature, const Loss& loss) {
  State& s = *state_;
  const Busy busy = s.begin();
  s.check(rows);
  s.check_columns(rows, !loss);
  train::StepReport report;
  s.crew->do_all([&](OnRank& me) {
    const policy::Ranks& ranks = me.rank.ranks;
    std::vector<train::Row> mine;
    for (size_t i : dealt(rows, s.model, ranks)) mine.push_back(view_after(s.num_steps, rows[i]));
    train::UserLoss asked;
    if (loss) asked = train::failing_alike(ranks.world, loss);
    train::StepReport made = me.actor.trained().trainer().accumulate(mine, s.algorithm, temperature, asked);
    if (ranks.is_first()) report = std::move(made);
    me.forget_numbers();
  });
  s.has_gradient = true;
  return report;
}

train::StepReport Session::step(std::optional<double> lr) {
  State& s = *state_;
  const Busy busy = s.begin();
  if (!s.has_gradient) throw UserError("step", "there is no gradient", "forward_backward before it");
  if (lr && !(*lr >= 0 && std::isfinite(*lr))) throw UserError("lr", join_text("is ", *lr), "a number of at least 0");
  const train::Options& o = s.config.train;
  if (!lr && o.lr_schedule != "constant" && o.lr_steps == 0)
    throw UserError("train.lr_schedule", "is " + o.lr_schedule + ", and a loop of your own has no last step", "train.lr_steps, or lr");
  const int64_t number = s.num_steps + 1;
  const double rate = lr ? *lr : train::learning_rate(o, number, o.lr_steps);
  train::StepReport report;
  s.has_gradient = false;
  s.crew->do_all([&](OnRank& me) {
    train::StepReport made = me.actor.trained().trainer().update(rate);
    if (me.rank.ranks.is_first()) report = std::move(made);
    me.forget_numbers();
  });
  if (!report.skipped) s.num_steps = number;
  return report;
}

void Session::save() {
  State& s = *state_;
  const Busy busy = s.begin();
  s.hold_folder(false);
  runtime::RunState state;
  state.step = state.version = s.num_steps;
  state.next_group = s.num_samples;
  s.crew->do_all([&](OnRank& me) {
    policy::TrainedRole* roles[] = {&me.actor.trained()};
    try {
      me.files.save(state, roles);
    } catch (const PeerError& e) {  // a file, on all ranks alike; or a rank is gone, and so is the barrier
      me.rank.ranks.world.barrier();
      throw UserError("save", e.what(), "room on the disk, and another save(): the policy is as it was");
    }
  });
}

int64_t Session::load() {
  State& s = *state_;
  const Busy busy = s.begin();
  s.hold_folder(true);
  std::optional<runtime::RunState> found;
  s.crew->do_all_or_end([&](OnRank& me) {
    policy::TrainedRole* roles[] = {&me.actor.trained()};
    std::optional<runtime::RunState> state = me.files.load(roles, {.needs_start = me.actor.trained().lora() != nullptr, .bring = {}});
    me.version.reset();
    if (me.rank.ranks.is_first()) found = std::move(state);
  });
  if (!found) return 0;
  s.has_gradient = false;
  s.num_steps = found->step, s.num_samples = found->next_group;
  return s.num_steps;
}

}  // namespace tandem::session
