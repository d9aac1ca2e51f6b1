// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every option of a run, composed from the modules' own structs; immutable once validated and written beside each run.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/algo/options.h"
#include "tandem/base/asset.h"
#include "tandem/base/options.h"
#include "tandem/data/options.h"
#include "tandem/model/options.h"
#include "tandem/queue/options.h"
#include "tandem/reward/options.h"
#include "tandem/rollout/options.h"
#include "tandem/sink/options.h"
#include "tandem/train/options.h"

namespace tandem::config {

struct RunOptions {
  std::string dir;
  int64_t steps = 100;
  int64_t seed = 0;
  std::string device = "auto";
  std::string kernels = "auto";
  std::string proof = "auto";
  bool parity = false;
  int64_t samples_steps = 50;
  int64_t samples_every = 10;
  double samples_wait_s = 300;
  double fetch_timeout_s = 3600;
};
void describe(OptionVisitor& field, RunOptions& o);

struct ModelOptions {
  std::string path;
  std::string ref_model_load_path;
  std::string dtype = "float32";
  std::string products;
  int64_t init_hidden = 128;
  int64_t init_layers = 4;
  int64_t init_heads = 4;
  int64_t init_kv_heads = 2;
  int64_t init_intermediate = 352;
  int64_t init_max_positions = 256;
  double init_deviation = 0.02;
  model::LoraOptions lora;
};
void describe(OptionVisitor& field, ModelOptions& o);

/// The critic of PPO: what trains it. Its layout, dtype and number of updates are the actor's.
struct CriticOptions {
  std::string path;
  double value_clip = 0.5;
  int64_t value_micro_batch_tokens = 16384;
  bool offload = false;
  bool bootstrap_truncated = false;
  train::Options train;  ///< lr: load_config gives it train.lr where the recipe names none
};
void describe(OptionVisitor& field, CriticOptions& o);

struct ScheduleOptions {
  std::string kind = "sync";
  std::string mode;  ///< "": RunConfig::is_free chooses
  queue::Options queue;
  std::string old_logprobs = "auto";
  bool routing_replay = false;
};
void describe(OptionVisitor& field, ScheduleOptions& o);

struct EvalOptions {
  int64_t every_steps = 0;
  bool before = true;
  bool after = true;
  int64_t n = 1;
  double right_at = 0.5;
  rollout::Sampling sampling{.temperature = 0.0};
};
void describe(OptionVisitor& field, EvalOptions& o);

struct CheckpointOptions {
  int64_t every_steps = 20;
  int64_t keep_last = 2;
  std::string max_shard_size = "5GB";
};
void describe(OptionVisitor& field, CheckpointOptions& o);

struct ParallelOptions {
  int64_t ranks = 1;
  int64_t threads = 0;
  std::string placement = "colocated";
  std::string train_layout;
  std::string rollout_layout;
  double deadline_s = 600;
  int64_t exchange_steps = 8;
  int64_t reshard_bucket_mib = 64;
  bool reshard_checksum = false;

  /// Whether some ranks generate and never train.
  bool has_sides() const;
};
void describe(OptionVisitor& field, ParallelOptions& o);

/// Processes that generate for a run and are no ranks of it.
struct WorkerOptions {
  int64_t local = 0;
  std::string listen;
  double lease_s = 30;
  double wait_s = 600;
};
void describe(OptionVisitor& field, WorkerOptions& o);

struct MemoryOptions {
  int64_t device_mib = 0;
  int64_t host_mib = 0;
  bool offload_train_param = false;
  bool offload_train_grad = false;
  bool offload_train_optimizer = false;
  bool offload_reference = false;
};
void describe(OptionVisitor& field, MemoryOptions& o);

/// Supervised steps: a stage of its own (`tandem sft`) or the warm start before RL.
struct SupervisedOptions {
  int64_t steps = 0;
  int64_t batch_size = 256;
  double stop_at_accuracy = 0.0;
  int64_t accuracy_every_steps = 10;
  int64_t accuracy_problems = 200;
  train::Options train{.lr = 1e-5};  ///< for a pretrained model: TRL's SFTConfig has 2e-5, verl's sft_trainer 1e-5
};
void describe(OptionVisitor& field, SupervisedOptions& o);

struct RolloutOptions {
  rollout::Options engine;
  rollout::Sampling sampling;
  std::vector<std::string> stop;
  std::string dtype;  ///< "": that of the model
  std::string products;
};
void describe(OptionVisitor& field, RolloutOptions& o);

struct RunConfig {
  RunOptions run;
  ModelOptions model;
  data::Options data;
  reward::Options reward;
  RolloutOptions rollout;
  rollout::EpisodeOptions episode;
  algo::Options algo;
  train::Options train;
  CriticOptions critic;
  ScheduleOptions schedule;
  SupervisedOptions supervised;
  EvalOptions eval;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  WorkerOptions workers;
  MemoryOptions memory;
  sink::Options monitor;

  /// Steps that a lag policy may let pass; 0 under sync.
  int64_t staleness() const { return schedule.kind == "stale" ? schedule.queue.staleness : 0; }
  /// Token steps between two exchanges of heads, outside a free run. Without staleness a batch needs every group, so ranks meet less often.
  int64_t round_steps() const { return parallel.exchange_steps * (staleness() == 0 ? 8 : 1); }
  /// Whether some ranks generate without an end while others train: schedule.mode.
  bool is_free() const;
  /// Whether a response is a conversation with an environment.
  bool has_episodes() const { return !episode.environment.empty(); }
  /// Whether workers generate, and ranks do so for evaluations alone.
  bool has_workers() const { return workers.local > 0 || !workers.listen.empty(); }
};
void describe(OptionVisitor& field, RunConfig& o);

/// One setting from the command line, such as {"train.lr", "1e-5"}.
struct Setting {
  std::string name;
  std::string value;
  std::string where = "--set";  ///< as errors name it: --set or a short form such as --steps
};

/// Whether the reward of a run is a stage of its own: a reward model and nothing else, fully colocated.
bool scores_in_stage(const RunConfig& config);
/// Whether the reference is the start of the run under its adapters, so that it needs no weights of its own.
bool start_is_reference(const RunConfig& config);

/// Defaults, then the file (unless ""), then the settings; validated. Errors: UserError naming file, option and what would be
/// right; an unknown option with the nearest name.
RunConfig load_config(const std::string& path, const std::vector<Setting>& settings);
/// The options that the file (unless "") or the settings name, whatever value they give them. Errors: as load_config.
std::vector<std::string> given_options(const std::string& path, const std::vector<Setting>& settings);
/// The files that a run reads besides models: data sets, the chat template, functions in Python.
std::vector<std::string> data_files(const RunConfig& config);
/// Checks that concern several options. Errors: UserError.
void validate(const RunConfig& config, const std::string& where);
/// The whole configuration as YAML that load_config reads back to the same value. Behind an option that is not the default, which is that
/// of its algorithm in the section algo, a comment says the default; the page of a run marks those (board/static/recipe.js).
std::string to_yaml(const RunConfig& config);
/// Whether two configurations have the same values in a section.
bool equal_section(const RunConfig& a, const RunConfig& b, const std::string& section);
/// Names of a section's options, such as critic.lr, that differ from their defaults, in the section algo from those of its algorithm.
std::vector<std::string> changed_options(const RunConfig& config, const std::string& section);
/// The recipes of configs/, compiled in by cmake/embed.cmake: a program from a wheel has no such folder.
std::span<const Asset> assets();
/// Every option with default, help and allowed words, as Markdown; this is docs/config.md.
std::string option_reference();
/// The words that an option, or each item of a list, may be, as its check says them; none where other values are right, too.
std::vector<std::string> allowed_words(const OptionRef& option);
/// Full names of a recipe's options whose last part is that: of lr, train.lr and others.
std::vector<std::string> options_ending_in(const std::string& part);
/// The words of an option of a recipe, as help shows them: sync|stale. Errors: InternalError for a name that is no such option.
std::string words_text(const std::string& name);

}  // namespace tandem::config
