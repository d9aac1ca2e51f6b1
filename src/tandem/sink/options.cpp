// SPDX-License-Identifier: Apache-2.0
#include "tandem/sink/options.h"

namespace tandem::sink {
namespace {

/// one_of for each item of a list.
OptionCheck each_one_of(std::vector<std::string> names) {
  return [is_one = one_of(std::move(names))](const OptionValue& v) -> std::string {
    for (std::string& item : **std::get_if<std::vector<std::string>*>(&v))
      if (std::string wanted = is_one(&item); !wanted.empty()) return wanted;
    return "";
  };
}

}  // namespace

void describe(OptionVisitor& field, Options& o) {
  field("sinks", o.sinks,
        "Experiment trackers that get each step's numbers, from a process apart that costs no step time (docs/design/sinks.md). Their "
        "packages have to be there: `scripts/setup wandb 'swanlab[dashboard]' mlflow-skinny`.",
        each_one_of({"wandb", "swanlab", "mlflow"}));
  field("project", o.project,
        "Project at each sink, which MLflow calls experiment. Empty: WANDB_PROJECT, SWANLAB_PROJ_NAME, MLFLOW_EXPERIMENT_NAME, else "
        "tandem.");
  field("run_name", o.run_name, "Name of the run at each sink; empty: that of the run folder.");
  field("group", o.group, "Runs of one group stand together at W&B and SwanLab; for MLflow it is the tag `group`. Empty: none.");
  field("mlflow_tracking_uri", o.mlflow_tracking_uri,
        "Server or folder of MLflow's records. Empty: MLFLOW_TRACKING_URI, else the folder mlruns in the run folder.");
  field("python_executable", o.python_executable,
        "Python that has the packages of the sinks. Empty: the one scripts/setup made, else python3 on PATH.");
  field("end_wait_s", o.end_wait_s,
        "Seconds that the end of a run waits for its sinks at most; a stopped or failed run waits 5 at most. What they have not taken by "
        "then, --resume sends.",
        between(0, 86400));
}

}  // namespace tandem::sink
