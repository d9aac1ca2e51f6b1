// SPDX-License-Identifier: Apache-2.0
// What each benchmark is called, and its help.
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "benchmarks.h"
#include "queue/queue.h"
#include "queue/queue_load.h"
#include "queue/tensor_cache.h"
#include "queue/weights_pull.h"
#include "stages/generate.h"
#include "stages/grpo_step.h"
#include "stages/scheduler.h"
#include "stages/stale.h"
#include "stages/switch.h"
#include "stages/train_step.h"
#include "tandem/base/error.h"
#include "tandem/cli/arguments.h"

namespace tandem::cli {

using nlohmann::json;

namespace {

std::vector<int64_t> read_lengths(const std::string& path) {
  InputFile file(path);
  const json list = json::parse(file.stream(), nullptr, false);
  const std::string remedy = "expected an array of positive integers, such as [64, 17, 128]";
  if (!list.is_array() || list.empty()) throw UserError(path, "holds no lengths", remedy);
  std::vector<int64_t> lengths;
  for (const json& item : list) {
    if (!item.is_number_integer() || item.get<int64_t>() < 1) throw UserError(path, item.dump() + " is no length", remedy);
    lengths.push_back(item.get<int64_t>());
  }
  return lengths;
}

class Bench final : public Benchmarks {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    declare_stages(app);
    declare_host(app);
    declare_moves(app);
    declare_queue(app);
    app.footer(
        "The first repeat is a warm-up; each benchmark checks its answer before it reports.\n"
        "Example:\n  tandem bench grpo_step --help");
  }

  bool is_for_every_rank() const override { return switch_->count() > 0 || cache_->count() > 0; }

 private:
  // What one rank does, or ranks inside the benchmark.
  void declare_stages(CLI::App& app) {
    add(app, "grpo_step", "One GRPO step: generate, score, train", grpo_step_, bench::grpo_step)
        ->footer("Example:\n  tandem bench grpo_step --model DIR --prompts 16 --gens 8 --prompt-len 32 --new 64");

    CLI::App* stale = add(app, "stale", "Steps with rollout ahead of training, and without", stale_, bench::stale);
    add_lengths(*stale, stale_.lengths, "Response lengths, one sample after the other: a JSON array");
    stale->footer(
        "ratio: a step without staleness over one with it, by the mean; allowed_ratio: over what the rank that waits least works in one;\n"
        "predicted_step_s: the step under a virtual clock, from the times of its stages.\n"
        "The longest response must fit the model's context.\n"
        "Example:\n  tandem bench stale --model DIR --placement split --staleness 1 --lengths bench/lengths/stale-32x512.json --threads 2");

    CLI::App* generate = add(app, "generate", "Generation alone", generate_, bench::generate);
    add_lengths(*generate, generate_.lengths, "Response lengths of ragged mode: a JSON array");
    generate->footer("Example:\n  tandem bench generate --model DIR --mode fixed --batch 32 --prompts 32 --prompt-len 128 --new 128");

    CLI::App* train = add(app, "train_step", "One training step on packed sequences", train_step_, bench::train_step);
    add_lengths(*train, train_step_.lengths, "Response lengths: a JSON array");
    train->footer("Example:\n  tandem bench train_step --model DIR --prompt-len 128 --lengths lengths.json --train-layout dp2");
  }

  // What needs no model.
  void declare_host(CLI::App& app) {
    add(app, "scheduler", "What scheduling a step of generation costs the host", scheduler_, bench::scheduler)
        ->footer("us_per_step: planning and completing a step, over all steps; decode_us_per_step: over those of one token a sequence.\n"
                 "Example:\n  tandem bench scheduler --sequences 128 --gens 8 --prompt-len 128 --new 256");

  }

  // What goes between ranks.
  void declare_moves(CLI::App& app) {
    switch_ = add(app, "switch", "Weights from one layout to another, among ranks", switch_weights_, bench::switch_weights);
    for (const char* layout : {"--from", "--to"}) switch_->get_option(layout)->required()->type_name("LAYOUT");
    switch_->footer(
        "Each repeat checks that every rank ends with the checkpoint as loaded in its new layout.\n"
        "Example:\n  tandem bench switch --model DIR --from tp2,pp2 --to dp4 --ranks 4\n"
        "  scripts/mpi -n 2 build/release/tandem bench switch --model DIR --from pp2 --to tp2");
  }

  // Samples on their way, and weights.
  void declare_queue(CLI::App& app) {
    CLI::App* queue = add(app, "queue", "Samples from process to process, by way of a controller", queue_, bench::queue);
    add_lengths(*queue, queue_.lengths, "Lengths of the ragged samples, one after the other: a JSON array");
    queue->footer(
        "put_mb_s: from columns in a worker's memory to samples that others can read; get_mb_s: from the call for a batch to rows that a\n"
        "trainer reads, and the end of its step; chunked_*: in batches of --chunk; ragged_*: of unequal lengths. metadata_us: leasing a\n"
        "group, with --clients connected of which one calls; metadata_calls_per_s: all do.\n"
        "Example:\n  tandem bench queue --samples 1024 --seq 2048");

    CLI::App* load = add(app, "queue_load", "Bytes that a batch costs the store that has it", queue_load_, bench::queue_load);
    add_lengths(*load, queue_load_.lengths, "Lengths of the samples, one after the other: a JSON array");
    load->footer(
        "flat_bytes: each rank of the replica fetches the batch; hierarchical_bytes: one does, and hands on; load_ratio: their ratio.\n"
        "padded_bytes: the response columns, each sample as long as the longest; unpadded_bytes: end to end, as they travel here.\n"
        "Example:\n  tandem bench queue_load --layout tp8,pp16 --lengths bench/lengths/ragged-128x256.json");

    cache_ = add(app, "tensor_cache", "A batch from one stage to the next, among ranks", tensor_cache_, bench::tensor_cache);
    cache_->footer(
        "equal_s and unequal_s: from columns in memory to rows that the next stage can read, where it wants them on the rank that made\n"
        "them, and where it wants half of them on another; ragged_*: rows of an eighth of --seq to all of it. start_skew_s: how far apart\n"
        "the ranks can start that stage. docs/design/tensor_cache.md compares them with others.\n"
        "Example:\n  scripts/mpi -n 2 build/release/tandem bench tensor_cache --samples 1024 --seq 2048");

    add(app, "weights_pull", "A version of the weights, from a run to its workers", weights_pull_, bench::weights_pull)
        ->footer(
            "mapped_1, mapped_all: one worker of this machine, and all at once; sockets_*: by sockets, from the run or from each other.\n"
            "*_mb_s: of a version, until the last has it; *_copies_made, *_copies_sent: what a version costs the run.\n"
            "Example:\n  tandem bench weights_pull --model DIR --workers 8");
  }

  bench::GrpoStepOptions grpo_step_;
  bench::StaleOptions stale_;
  bench::GenerateOptions generate_;
  bench::TrainStepOptions train_step_;
  bench::SchedulerOptions scheduler_;
  bench::SwitchOptions switch_weights_;
  bench::QueueOptions queue_;
  bench::QueueLoadOptions queue_load_;
  bench::TensorCacheOptions tensor_cache_;
  bench::WeightsPullOptions weights_pull_;
  CLI::App *switch_ = nullptr, *cache_ = nullptr;
};

}  // namespace

void Benchmarks::add_lengths(CLI::App& app, std::vector<int64_t>& lengths, const char* help) {
  const auto read = [&lengths](const std::string& path) { lengths = read_lengths(path); };
  app.add_option_function<std::string>("--lengths", read, help)->type_name("FILE")->group("Workload");
}

std::unique_ptr<Command> benchmarks() { return std::make_unique<Bench>(); }

}  // namespace tandem::cli
