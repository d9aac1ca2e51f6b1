// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/run_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/checkpoint/durable_file.h"
#include "tandem/monitor/jsonl_sink.h"
#include "tandem/monitor/tensorboard_sink.h"
#include "tandem/monitor/trace_sink.h"

namespace tandem::runtime {
namespace fs = std::filesystem;

void claim_folder(const std::string& dir, bool resume) {
  std::error_code fault;
  const bool exists = fs::exists(dir, fault) && !(fs::is_directory(dir, fault) && fs::is_empty(dir, fault));
  if (exists && !resume) throw UserError(dir, "the run folder exists", "--resume to continue it, or another --run-dir");
  fs::create_directories(dir, fault);
  if (fault) throw UserError(dir, "the run folder cannot be made: " + fault.message(), "a writable --run-dir");
  try {
    checkpoint::write_durable(dir + "/.writable", "");
    fs::remove(dir + "/.writable", fault);
  } catch (const PeerError& e) {
    throw UserError(dir, std::string("the run folder cannot be written: ") + e.what(), "a writable --run-dir");
  }
}

RunFolder::RunFolder(const std::string& dir, const RunConfig& config, bool resume) : dir_(dir) {
  claim_folder(dir, resume);
  checkpoint::write_durable(path("config.yaml"), to_yaml(config));
  log::also_to_file(path("log.txt"));
}

void RunFolder::open_sinks(monitor::Recorder& recorder, const std::map<std::string, int64_t>& sink_bytes, int64_t step) {
  // Without a checkpoint the run starts over, and so do its files.
  const auto at = [&](const char* name) -> monitor::ResumeAt {
    const auto it = sink_bytes.find(name);
    return it == sink_bytes.end() ? monitor::ResumeAt() : monitor::ResumeAt(it->second);
  };
  if (sink_bytes.empty()) {
    std::error_code ignored;
    fs::remove(path("metrics.jsonl"), ignored);
    fs::remove(path("trace.json"), ignored);
    fs::remove_all(path("tensorboard"), ignored);
    for (const char* name : {"samples.sqlite", "samples.sqlite-wal", "samples.sqlite-shm"}) fs::remove(path(name), ignored);
  }
  recorder.add_sink(std::make_unique<monitor::JsonlSink>(path("metrics.jsonl"), at("metrics")));
  recorder.add_sink(std::make_unique<monitor::TensorBoardSink>(path("tensorboard"), at("tensorboard")));
  recorder.add_sink(std::make_unique<monitor::TraceSink>(path("trace.json"), at("trace")));
  samples_ = std::make_unique<data::SampleStore>(path("samples.sqlite"));
  samples_->truncate_after(data::StepId{step});
}

void RunFolder::write_summary(const RunSummary& s) {
  const auto eval = [](const std::optional<EvalSummary>& e) {
    return e ? nlohmann::json{{"accuracy", e->accuracy}, {"pass_at_k", e->pass_at_k}, {"num_problems", e->num_problems}} : nlohmann::json();
  };
  const nlohmann::json out = {{"eval_before", eval(s.before)}, {"eval_after", eval(s.after)}, {"steps", s.steps}, {"seconds", s.seconds}, {"tokens", s.tokens}};
  checkpoint::write_durable(path("summary.json"), out.dump(1) + "\n");
}

}  // namespace tandem::runtime
