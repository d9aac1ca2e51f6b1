// SPDX-License-Identifier: Apache-2.0
// `tandem bench NAME`: the options of each benchmark, its object to standard output and to --out.
#include <CLI/App.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/runtime/bench/bench.h"

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

class Bench : public Command {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    CLI::App* step = add(app, "grpo_step", "One GRPO step: generate, score, train", runtime::bench_grpo_step);
    add_count(*step, "--prompts", options_.prompts, "Prompts per step");
    add_count(*step, "--gens", options_.gens, "Responses per prompt");
    add_count(*step, "--prompt-len", options_.prompt_len, "Tokens of a prompt");
    add_count(*step, "--new", options_.new_tokens, "Tokens of a response");
    add_checked(*step, "--beta", &options_.beta, "Weight of the KL term", at_least(0));
    step->footer("Example:\n  tandem bench grpo_step --model DIR --prompts 16 --gens 8 --prompt-len 32 --new 64");

    CLI::App* generate = add(app, "generate", "Generation alone", runtime::bench_generate);
    add_checked(*generate, "--mode", &options_.mode, "All responses of one length, or each its own", one_of({"fixed", "ragged"}));
    add_count(*generate, "--batch", options_.batch, "Sequences that run at a time");
    add_checked(*generate, "--prompts", &options_.sequences, "Prompts; 0 is one batch in fixed mode, one for each length in ragged mode",
                at_least(0));
    add_count(*generate, "--prompt-len", options_.prompt_len, "Tokens of a prompt");
    add_checked(*generate, "--new", &options_.response_tokens,
                "Tokens of a response in fixed mode, where 0 is 64; the most of one in ragged mode, where 0 is no bound", at_least(0));
    add_lengths(*generate, "Response lengths of ragged mode: a JSON array");
    generate->footer("Example:\n  tandem bench generate --model DIR --mode fixed --batch 32 --prompts 32 --prompt-len 128 --new 128");

    CLI::App* train = add(app, "train_step", "One training step on packed sequences", runtime::bench_train_step);
    add_count(*train, "--prompt-len", options_.prompt_len, "Tokens of a prompt");
    add_lengths(*train, "Response lengths: a JSON array");
    add_checked(*train, "--micro-batch-tokens", &options_.micro_batch_tokens, "Packed tokens of one pass; 0 takes the default of training",
                at_least(0));
    train->add_option("--train-layout", options_.train_layout,
                      "Layout such as dp2 or tp2,pp2, of ranks that share the threads")->type_name("L");
    add_checked(*train, "--recompute", &options_.recompute, "What the backward pass computes again", one_of({"none", "selective", "full"}));
    train->add_flag("--swap-optimizer", options_.swap_optimizer, "Keep the optimizer's state in host memory");
    train->footer("Example:\n  tandem bench train_step --model DIR --prompt-len 128 --lengths lengths.json --train-layout dp2");

    CLI::App* scheduler = add_modelless(app, "scheduler", "What scheduling a step of generation costs the host", runtime::bench_scheduler);
    add_checked(*scheduler, "--sequences", &options_.sequences, "Sequences that run at a time; 0 is 128", at_least(0));
    add_count(*scheduler, "--gens", options_.gens, "Responses per prompt");
    add_count(*scheduler, "--prompt-len", options_.prompt_len, "Tokens of a prompt");
    add_checked(*scheduler, "--new", &options_.response_tokens, "Tokens of a response: this or down to half of it; 0 is 64", at_least(0));
    add_seed(*scheduler);
    scheduler->footer(
        "us_per_step: planning and completing a step, over all steps; decode_us_per_step: over those of one token for each sequence.\n"
        "Example:\n  tandem bench scheduler --sequences 128 --gens 8 --prompt-len 128 --new 256");

    cache_ = add_modelless(app, "tensor_cache", "A batch from one stage to the next, among ranks", runtime::bench_tensor_cache);
    add_count(*cache_, "--samples", options_.samples, "Samples of the batch, over all ranks");
    add_checked(*cache_, "--seq", &options_.seq, "Tokens of a sample; ragged ones have an eighth of it or more", at_least(8));
    add_checked(*cache_, "--ranks", &options_.ranks, "Ranks as threads, 0 is two; mpirun gives them itself", at_least(0));
    add_seed(*cache_);
    cache_->footer(
        "equal_s and unequal_s: from columns in memory to rows that the next stage can read, where it wants them on the rank that made\n"
        "them, and where it wants half of them on another; ragged_*: rows of an eighth of --seq to all of it. start_skew_s: how far apart\n"
        "the ranks can start that stage. docs/design/tensor_cache.md compares them with others.\n"
        "Example:\n  scripts/mpi -n 2 build/release/tandem bench tensor_cache --samples 1024 --seq 2048");

    switch_ = add_modelless(app, "switch", "Weights from one layout to another, among ranks", runtime::bench_switch);
    switch_->add_option("--model", options_.model, "Hugging Face directory of the model")->required()->type_name("DIR");
    switch_->add_option("--from", options_.from_layout, "Layout of training, such as dp2,pp2")->required()->type_name("LAYOUT");
    switch_->add_option("--to", options_.to_layout, "Layout of generation, on as many ranks")->required()->type_name("LAYOUT");
    add_checked(*switch_, "--ranks", &options_.ranks, "Ranks as threads, 0 is two; mpirun gives them itself", at_least(0));
    add_checked(*switch_, "--bucket-mib", &options_.bucket_mib, "Most staging memory of a rank", at_least(1));
    add_compute(*switch_, device_, options_.dtype, options_.threads);
    switch_->footer(
        "Each repeat checks that every rank ends with the checkpoint as loaded in its new layout.\n"
        "Example:\n  tandem bench switch --model DIR --from tp2,pp2 --to dp4 --ranks 4\n"
        "  scripts/mpi -n 2 build/release/tandem bench switch --model DIR --from pp2 --to tp2");
    app.footer(
        "The first repeat is a warm-up; each benchmark checks its answer before it reports.\n"
        "Example:\n  tandem bench grpo_step --help");
  }

  bool is_for_every_rank() const override { return cache_->count() + switch_->count() > 0; }

  void run() override {
    if (device_ != "cpu") throw UserError("--device", "is " + device_ + ", and this build has no CUDA backend", "expected cpu");
    if (!lengths_path_.empty()) options_.lengths = read_lengths(lengths_path_);
    for (const auto& [app, bench] : benches_) {
      if (app->count() == 0) continue;
      const json object = bench(options_);
      if (object.is_null()) return;  // another rank reports
      const std::string text = object.dump(2) + "\n";
      std::cout << text << std::flush;
      write_out(text);
    }
  }

 private:
  using Function = json (*)(const runtime::BenchOptions&);

  CLI::App* add(CLI::App& app, const char* name, const char* summary, Function bench) {
    CLI::App* sub = add_modelless(app, name, summary, bench);
    sub->add_option("--model", options_.model, "Hugging Face directory of the model")->required()->type_name("DIR");
    add_seed(*sub);
    add_compute(*sub, device_, options_.dtype, options_.threads);
    sub->add_flag("--parity", options_.parity, "In parity mode")->group("Computing");
    return sub;
  }

  CLI::App* add_modelless(CLI::App& app, const char* name, const char* summary, Function bench) {
    CLI::App* sub = app.add_subcommand(name, summary);
    add_count(*sub, "--repeats", options_.repeats, "Measured repeats");
    sub->add_option("--out", out_, "File for the JSON object as well")->type_name("FILE");
    benches_.emplace_back(sub, bench);
    return sub;
  }

  void add_seed(CLI::App& app) { add_checked(app, "--seed", &options_.seed, "Seed of the workload", at_least(0)); }

  static void add_count(CLI::App& app, const char* name, int64_t& value, const char* help) {
    add_checked(app, name, &value, help, at_least(1));
  }
  void add_lengths(CLI::App& app, const char* help) { app.add_option("--lengths", lengths_path_, help)->type_name("FILE"); }

  void write_out(const std::string& text) const {
    if (out_.empty()) return;
    std::ofstream file(out_);
    file << text << std::flush;
    if (!file) throw UserError(out_, "cannot be written", "expected a file in a folder that exists");
  }

  runtime::BenchOptions options_;
  CLI::App *cache_ = nullptr, *switch_ = nullptr;  // those among ranks
  std::string device_ = "cpu";
  std::string out_, lengths_path_;
  std::vector<std::pair<CLI::App*, Function>> benches_;
};

}  // namespace

std::unique_ptr<Command> bench_command() { return std::make_unique<Bench>(); }

}  // namespace tandem::cli
