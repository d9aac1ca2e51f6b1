// SPDX-License-Identifier: Apache-2.0
#include "tandem/config/config.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <variant>

#include "tandem/base/check.h"
#include "tandem/base/strings.h"
#include "tandem/data/source.h"
#include "tandem/device/process.h"
#include "tandem/reward/rule.h"

namespace tandem::config {
namespace {

/// The options of a struct but those that mean nothing where it is used.
template <class Options>
void describe_without(std::initializer_list<std::string_view> names, OptionVisitor& field, Options& options) {
  OptionList all;
  describe(all, options);
  for (const auto& [path, o] : all.entries)
    if (std::ranges::find(names, o.name) == names.end())
      std::visit([&](auto* value) { field(o.name, *value, o.help, o.check); }, o.value);
}

OptionCheck number_of_bytes() {
  return [](const OptionValue& v) {
    return parse_bytes(**std::get_if<std::string*>(&v)) ? "" : "bytes, at least 1, such as 5GB, 500MB, 1.5GiB or 2000000";
  };
}

}  // namespace

void describe(OptionVisitor& field, RunOptions& o) {
  field("dir", o.dir, "Folder for everything the run writes (--run-dir). Empty: runs/NAME_OF_THE_RECIPE.");
  field("steps", o.steps, "Number of optimizer updates.", at_least(1));
  field("seed", o.seed, "Seed of sampling and of random weights. data.seed orders the prompts.", at_least(0));
  field("device", o.device,
        "Where to compute. auto: on CUDA or Ascend (npu) devices if there is one for each rank, else on the CPU.",
        one_of(device::device_names()));
  field("kernels", o.kernels,
        "Which kernels compute. cpu, cuda, npu: those of the device. aten: only libtorch's operators, on any device. auto: those of the "
        "device where it has any. npu has none yet and takes libtorch's operators.",
        one_of({"auto", "cpu", "cuda", "npu", "aten"}));
  field("proof", o.proof,
        "Whether a run first checks the device's kernels against the CPU, as `tandem doctor --device` does at length. auto: once for each "
        "kind of device and each build of the program; ~/.cache/tandem/proof keeps the result. always: before each run, also where "
        "the device is the CPU. Only one device of a machine is checked.",
        one_of({"auto", "always", "never"}));
  field("parity", o.parity, "Rollout and training compute the same bits of log-probability. Slower.");
  field("samples_steps", o.samples_steps,
        "For how many of the last steps samples.sqlite in the run folder keeps tokens, texts and log-probabilities. 0: for all steps, "
        "so that `tandem run --replay` can train on them again. Scores, lengths and policy versions stay for every step.",
        at_least(0));
  field("samples_every", o.samples_every,
        "samples.sqlite also keeps the tokens, texts and log-probabilities of every Nth step.", at_least(1));
  field("samples_wait_s", o.samples_wait_s,
        "Seconds to wait where samples.sqlite cannot be written, because another program holds it or the disk is full. Meanwhile the run "
        "goes on and keeps samples in memory. After that time it saves a checkpoint and ends.",
        at_least(0));
  field("fetch_timeout_s", o.fetch_timeout_s, "Most seconds for a download from a hub.", above(0));
}

void describe(OptionVisitor& field, ModelOptions& o) {
  field("path", o.path,
        "Model to start from: a Hugging Face directory, or OWNER/NAME[@REVISION] to download from Hugging Face "
        "(modelscope:OWNER/NAME: from ModelScope). A download happens once; config.yaml in the run folder names the commit. Empty: a small "
        "random model with a tokenizer for digits and arithmetic signs.");
  field("ref_model_load_path", o.ref_model_load_path,
        "Hugging Face directory of the reference model, for KL terms. Empty: the model that the run starts from.");
  field("dtype", o.dtype, "Number format of the computation. bfloat16 keeps float32 master weights.", one_of({"float32", "bfloat16"}));
  field("products", o.products,
        "Which libraries compute matrix products. Empty: each start measures which are fastest and writes their names to log.txt. To "
        "repeat a run bit for bit, copy the value from there, such as \"onednn onednn blas float\", and use the same ranks, threads and "
        "processor type. Names 1 to 3 are for the forward pass, the input gradient and the weight gradient: blas, onednn or brgemm "
        "(libtorch's kernels for small blocks). Name 4 is for a bfloat16 model's logits: float (multiplied in float32), half (by blas, "
        "in bfloat16) or brgemm.");
  field("init_hidden", o.init_hidden, "Random model: hidden size.", at_least(1));
  field("init_layers", o.init_layers, "Random model: layers.", at_least(1));
  field("init_heads", o.init_heads, "Random model: attention heads.", at_least(1));
  field("init_kv_heads", o.init_kv_heads, "Random model: key and value heads.", at_least(1));
  field("init_intermediate", o.init_intermediate, "Random model: width of the MLP.", at_least(1));
  field("init_max_positions", o.init_max_positions, "Random model: longest context.", at_least(8));
  field("init_deviation", o.init_deviation, "Random model: standard deviation of the matrices.", above(0));
  describe(field, o.lora);
}

void describe(OptionVisitor& field, CriticOptions& o) {
  field("path", o.path,
        "Hugging Face directory that the critic starts from, such as the reward model; a language model gets a score head of zeros. Empty: "
        "where the actor starts.");
  field("value_clip", o.value_clip, "A value counts at most this far from what it was before the updates.", above(0));
  field("value_micro_batch_tokens", o.value_micro_batch_tokens, "Packed tokens of one pass of the stage `values`.", at_least(1));
  field("offload", o.offload,
        "The critic is on the device for its stages alone, as placement fully_colocated always has it; the KV cache then leaves, too.");
  field("bootstrap_truncated", o.bootstrap_truncated,
        "A response cut at the length limit goes on, for GAE, with the critic's value of the whole text behind its last token; off, it has "
        "ended there, as in verl.");
  field("lr", o.train.lr, "Learning rate at its highest; that of train.lr where a recipe does not set it.", at_least(0.0));
  // One course of the learning rate for both.
  describe_without({"lr", "logprob_micro_batch_tokens", "reference_micro_batch_tokens", "lr_steps"}, field, o.train);
}

void describe(OptionVisitor& field, ScheduleOptions& o) {
  field("kind", o.kind, "sync trains on samples of the current weights; stale lets rollout run ahead.", one_of({"sync", "stale"}));
  field("mode", o.mode,
        "Where some ranks generate while others train: free lets them never stop, so that which groups a batch has depends on who is "
        "quicker; deterministic lets no clock decide. Left empty: free under kind stale with placement split or mixed, but not under "
        "run.parity.",
        one_of({"", "deterministic", "free"}));
  describe(field, o.queue);
  field("old_logprobs", o.old_logprobs,
        "The policy a ratio is taken against. auto: the one before the update, which costs one more pass where a batch has several "
        "updates or tokens are rewarded by log-probabilities; with algo.correction none the rollout's values for samples of older "
        "weights. recompute: one more pass. "
        "rollout: always the rollout's values. loglinear: no extra pass; between the rollout's values and the current ones, as far as a "
        "policy one version before these would be.",
        one_of({"auto", "recompute", "rollout", "loglinear"}));
  field("routing_replay", o.routing_replay,
        "Mixture of experts: train each token through the experts that the rollout chose for it. Samples keep their routes.");
}

bool ParallelOptions::has_sides() const { return placement == "split" || placement == "mixed"; }

bool RunConfig::is_free() const {
  const bool can_be = staleness() > 0 && parallel.has_sides();
  return schedule.mode == "free" || (schedule.mode.empty() && can_be && !run.parity);
}

void describe(OptionVisitor& field, EvalOptions& o) {
  field("every_steps", o.every_steps, "Evaluate every so many steps; 0 only before and after.", at_least(0));
  field("before", o.before, "Evaluate before the first step.");
  field("after", o.after, "Evaluate after the last step.");
  field("n", o.n, "Answers per problem; accuracy is their mean, pass@k takes the best.", at_least(1));
  field("right_at", o.right_at, "Score from which an answer counts as right.");
  describe(field, o.sampling);
}

void describe(OptionVisitor& field, CheckpointOptions& o) {
  field("every_steps", o.every_steps, "Save every so many steps, and always after the last; 0 saves only then.", at_least(0));
  field("keep_last", o.keep_last, "Checkpoints to keep; 0 keeps all.", at_least(0));
  field("max_shard_size", o.max_shard_size,
        "Weights go to several files and an index where they are larger: bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB.",
        number_of_bytes());
}

void describe(OptionVisitor& field, ParallelOptions& o) {
  field("ranks", o.ranks,
        "Ranks on this machine: threads of this process on the CPU, on devices a process each, which this one starts. Under mpirun or srun "
        "the launcher decides.",
        between(1, 4096));
  field("threads", o.threads, "Compute threads of this process, shared by its ranks; 0 takes every core it may use.",
        between(0, 1024));
  field("placement", o.placement,
        "colocated: all ranks train and generate in turns. fully_colocated: so, and the reference and the reward model are on the device "
        "during their own stages alone, in the layout of training. split: the first ranks train, the others generate. mixed: "
        "the first ranks train and generate in turns, the others always generate.",
        one_of({"colocated", "fully_colocated", "split", "mixed"}));
  field("train_layout", o.train_layout,
        "Layout of training, such as dp2,tp2; empty is data-parallel over all ranks (split, mixed: over half of them, or those that "
        "rollout leaves).");
  field("rollout_layout", o.rollout_layout,
        "Layout of rollout; empty is that of training, with cp as dp and without vpp (split: as for training; mixed: "
        "data-parallel over all ranks).");
  field("deadline_s", o.deadline_s,
        "Seconds after which a silent peer is an error; with a split or mixed placement longer than the longest stage of the other side.",
        above(0));
  field("exchange_steps", o.exchange_steps,
        "Token steps between two exchanges of finished groups among ranks, when staleness > 0; a free run has none.", at_least(1));
  field("reshard_bucket_mib", o.reshard_bucket_mib, "Most staging memory of a switch between layouts.", at_least(1));
  field("reshard_checksum", o.reshard_checksum, "Each message of a switch carries a checksum; a wrong one ends the run with an error.");
}

void describe(OptionVisitor& field, WorkerOptions& o) {
  field("local", o.local, "Workers that this run starts on its machine, to generate in place of its ranks; --rollout-workers sets it.",
        between(0, 1024));
  field("listen", o.listen,
        "Address at which workers join (`tandem rollout --join`), such as 127.0.0.1:7070; with port 0 the system chooses one. They need "
        "the token that the run writes into its folder. Empty: 127.0.0.1:0 where workers.local is above 0, else there are no workers.");
  field("lease_s", o.lease_s, "Seconds without a sign of life after which the groups of a worker go to another.", above(0));
  field("wait_s", o.wait_s, "Seconds without any worker, or without a token from those that are there, after which the run ends, saved.",
        above(0));
}

void describe(OptionVisitor& field, MemoryOptions& o) {
  field("device_mib", o.device_mib, "Budget of the device arena per rank; 0 is no bound.", at_least(0));
  field("host_mib", o.host_mib, "Budget of the host arena per rank; 0 is no bound.", at_least(0));
  field("offload_train_param", o.offload_train_param,
        "During rollout the weights of training are in host memory, where rollout has weights of its own (another layout or dtype).");
  field("offload_train_grad", o.offload_train_grad, "During rollout gradients take no memory.");
  field("offload_train_optimizer", o.offload_train_optimizer,
        "During rollout moments and master weights are in host memory. Where anything leaves, the KV cache takes no memory outside "
        "rollout, and what was left is its own; unfinished sequences are then computed again after a switch.");
  field("offload_reference", o.offload_reference,
        "The weights of the reference model are on the device for their stage alone, as placement fully_colocated always has it. The KV "
        "cache then leaves, too, as with any offloading. Under adapters without model.ref_model_load_path there are no such weights.");
}

void describe(OptionVisitor& field, SupervisedOptions& o) {
  field("steps", o.steps,
        "Supervised steps on the training problems and their answers before RL, from model.path or the random model; 0 is none. A model "
        "that these steps made, the `hf` of a run folder with the same section `supervised`, begins RL at once.",
        at_least(0));
  field("batch_size", o.batch_size, "Problems per supervised step.", at_least(1));
  field("stop_at_accuracy", o.stop_at_accuracy,
        "End early once answers, drawn as eval draws them, reach this accuracy; a given model may begin with it. 0 runs all steps.",
        between(0.0, 1.0));
  field("accuracy_every_steps", o.accuracy_every_steps, "Steps between two such checks.", at_least(1));
  field("accuracy_problems", o.accuracy_problems, "Training problems, not seen yet, that a check answers.", at_least(1));
  describe_without({"logprob_micro_batch_tokens", "reference_micro_batch_tokens"}, field, o.train);
}

void describe(OptionVisitor& field, RolloutOptions& o) {
  describe(field, o.engine);
  describe(field, o.sampling);
  field("stop", o.stop, "Texts that end a response; they are cut off.");
  field("dtype", o.dtype, "Compute dtype of generation; empty is model.dtype. If it is another, each switch converts the weights.",
        one_of({"", "float32", "bfloat16"}));
  field("products", o.products, "The same as model.products, of generation; where rollout.dtype is another than model.dtype.");
}

void describe(OptionVisitor& field, RunConfig& o) {
  field.section("run", o.run, "The whole run.");
  field.section("model", o.model, "The model that is trained.");
  field.section("data", o.data, "Where prompts come from.");
  field.section("reward", o.reward, "How answers are scored.");
  field.section("rollout", o.rollout, "How answers are generated.");
  field.section("episode", o.episode, "Conversations with an environment: a response of several turns.");
  field.section("algo", o.algo, "Advantages and the loss.");
  field.section("train", o.train, "The optimizer's update.");
  field.section("critic", o.critic, "The critic of PPO (algo.advantage: gae).");
  field.section("schedule", o.schedule, "Which stage runs when, and how far generation may run ahead.");
  field.section("supervised", o.supervised, "Supervised training: `tandem sft`, or a warm start before reinforcement learning.");
  field.section("eval", o.eval, "Evaluation on held-out problems.");
  field.section("checkpoint", o.checkpoint, "What is saved.");
  field.section("parallel", o.parallel, "Ranks and layouts.");
  field.section("workers", o.workers, "Processes that generate for the run. They can join and leave.");
  field.section("memory", o.memory, "Memory limits, and what leaves a device while it is not needed.");
  field.section("monitor", o.monitor, "Experiment trackers that also get the run's metrics.");
}

bool scores_in_stage(const RunConfig& config) {
  const reward::Options& o = config.reward;
  return config.parallel.placement == "fully_colocated" && o.by_source.empty() && o.rules.empty() && reward::rule_of(o) == "model";
}

std::vector<std::string> data_files(const RunConfig& config) {
  std::vector<std::string> files;
  for (const std::string& each : config.data.mix) files.push_back(each.substr(0, each.rfind('=')));
  for (const data::EvalSet& set : data::eval_sets(config.data)) files.push_back(set.path);
  for (const std::string& path : {config.data.train, config.data.chat_template})
    if (!path.empty()) files.push_back(path);
  for (const std::string& file : reward::python_files(config.reward)) files.push_back(file);
  if (const size_t colon = config.episode.environment.rfind(':'); colon != std::string::npos)
    files.push_back(config.episode.environment.substr(0, colon));
  for (const std::string& function : {config.algo.loss, config.algo.advantage})
    if (algo::names_function(function)) files.push_back(function.substr(0, function.rfind(':')));
  return files;
}

bool start_is_reference(const RunConfig& config) { return config.model.lora.rank > 0 && config.model.ref_model_load_path.empty(); }

}  // namespace tandem::config
