// SPDX-License-Identifier: Apache-2.0
// `tandem plan reshard`: what a change of layouts would move, without weights or ranks.
#include <CLI/App.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tandem/base/clock.h"
#include "tandem/base/json_file.h"
#include "tandem/cli/arguments.h"
#include "tandem/cli/command/command.h"
#include "tandem/planner/reshard_cost.h"

namespace tandem::cli {

using nlohmann::json;

namespace {

json object_of(const planner::ReshardCost& c) {
  return {{"ranks", c.ranks},
          {"alias", c.alias},
          {"mode", c.mode},
          {"bytes_total", c.bytes_total},
          {"lower_bound_bytes", c.lower_bound_bytes},
          {"bytes_sent_max", c.bytes_sent_max},
          {"bytes_sent_mean", c.bytes_sent_mean},
          {"bytes_received_max", c.bytes_received_max},
          {"bytes_across_nodes", c.bytes_across_nodes},
          {"lower_bound_across_nodes_bytes", c.lower_bound_across_nodes_bytes},
          {"staging_peak_bytes", c.staging_peak_bytes},
          {"extra_memory_peak_bytes", c.staging_peak_bytes},
          {"calls", c.calls},
          {"modelled_s", c.modelled_s},
          {"plan_s_max", c.plan_s_max}};
}

json object_of(const planner::GatherCost& c) {
  return {{"bytes_total", c.first_step_bytes + c.second_step_bytes},
          {"first_step_bytes", c.first_step_bytes},
          {"second_step_bytes", c.second_step_bytes},
          {"extra_memory_peak_bytes", c.extra_memory_peak_bytes},
          {"calls", c.calls}};
}

class Plan : public Command {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    CLI::App* reshard = app.add_subcommand("reshard", "What a change of layouts moves, and its cost");
    reshard->add_option("--model", model_, "config.json of a Hugging Face model, or its directory")->required()->type_name("CONFIG_JSON");
    reshard->add_option("--from", from_, "Layout that the weights have")->required()->type_name("LAYOUT");
    reshard->add_option("--to", to_, "Layout that they get, on as many ranks")->required()->type_name("LAYOUT");
    add_checked(*reshard, "--ranks-per-node", &ranks_per_node_, "Ranks that share a node", at_least(1));
    add_checked(*reshard, "--bucket-mib", &bucket_mib_, "Most staging memory of a rank", at_least(1));
    add_checked(*reshard, "--dtype", &dtype_, "Dtype of the weights", one_of({"float32", "bfloat16"}));
    reshard->footer(
        "Prints one JSON object; bytes are sums over ranks where no rank is named. `lower_bound_bytes` is what ranks lack, each element\n"
        "once. `mode` is the plan's: direct (each from a holder), multicast (a share to each rank of a node, which pass it on),\n"
        "gather_first (a holder's node first, which then serves the others); the one whose busiest rank is done first, at 200 GB/s in\n"
        "a node and 25 GB/s to others. `modelled_s` adds what buckets cost, and 30 us a call. `all_gather`, `broadcast_gather` and the\n"
        "object `gather_first` are what gathering would cost.\n"
        "Example:\n"
        "  tandem plan reshard --model config.json --from tp4,pp8,dp8,ep32 --to '2x(dp64,tp2,ep128)' --bucket-mib 56");
    app.footer("Example:\n  tandem plan reshard --help");
  }

  void run() override {
    if (std::filesystem::is_directory(model_)) model_ += "/config.json";
    const json parsed = read_json_object(model_);
    planner::ReshardQuestion question = planner::reshard_question(parsed, model_, from_, to_);
    question.options.element_bytes = dtype_ == "float32" ? 4 : 2;
    question.options.bucket_bytes = bucket_mib_ << 20;
    question.options.ranks_per_node = static_cast<int>(ranks_per_node_);
    const planner::ReshardReport report = planner::reshard_report(question, now_s);
    json out = object_of(report.all);
    if (report.experts.ranks > 0) out["experts"] = object_of(report.experts);
    out["dense"] = object_of(report.dense);
    out["all_gather"] = object_of(report.all_gather);
    out["broadcast_gather"] = object_of(report.broadcast_gather);
    out["gather_first"] = object_of(report.gather_first);
    std::cout << out.dump(2) << std::endl;
  }

 private:
  std::string model_, from_, to_, dtype_ = "bfloat16";
  int64_t ranks_per_node_ = 8, bucket_mib_ = 64;
};

}  // namespace

std::unique_ptr<Command> plan_command() { return std::make_unique<Plan>(); }

}  // namespace tandem::cli
