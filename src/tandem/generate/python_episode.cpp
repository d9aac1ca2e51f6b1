// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/python_episode.h"

#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/reward/backend/python_workers.h"
#include "tandem/reward/backend/scripts.h"

namespace tandem::generate {
namespace {

using nlohmann::json;

// A class of ours may write to the channel of its process: a reply may hold anything.
Turn turn_of(const json& reply, const std::string& name) {
  try {
    Turn turn{.text = reply.at("text"), .is_done = reply.at("done")};
    for (const int64_t id : reply.at("ids").get<std::vector<int64_t>>()) {
      if (id < 0 || id > INT32_MAX) throw UserError(name, join_text("`step` gave token id ", id), "an id of the tokenizer");
      turn.ids.push_back(static_cast<int32_t>(id));
    }
    if (!reply.at("reward").is_null()) turn.reward = reply.at("reward").get<double>();
    return turn;
  } catch (const json::exception&) {
    const std::string said = reply.dump(-1, ' ', false, json::error_handler_t::replace);
    throw UserError(name, "answered " + said.substr(0, 80), "a turn as `step` gives it");
  }
}

/// One for each lane.
class Processes {
 public:
  Processes(reward::PythonFunction environment, reward::WorkerOptions options)
      : over_(static_cast<size_t>(options.num_workers)), workers_(std::move(environment), std::move(options)) {}

  ~Processes() {
    const Deadline deadline = Deadline::after_s(kGoodbyeS);
    for (size_t lane = 0; lane < over_.size() && !deadline.passed(); ++lane)
      if (!over_[lane].empty() && workers_.is_running(static_cast<int64_t>(lane))) say_over(static_cast<int64_t>(lane), deadline.left_s());
  }

  int64_t begin() { return next_++; }
  /// Errors: as reward::PythonWorkers::tell; EpisodeGone.
  json tell(int64_t lane, int64_t episode, json message, Budget& budget) {
    std::vector<int64_t> over;
    {
      std::lock_guard lock(mutex_);
      over = std::exchange(over_[static_cast<size_t>(lane)], {});
    }
    message["episode"] = episode, message["over"] = over;
    json reply = workers_.tell(lane, message.dump(-1, ' ', false, json::error_handler_t::replace), budget.left_s, budget.excused_s);
    if (reply.contains("unknown")) throw EpisodeGone("the process that had it ended");
    return reply;
  }
  void abandon() { workers_.abandon(); }
  /// It hears so with what it is told next.
  void end(int64_t lane, int64_t episode) {
    std::lock_guard lock(mutex_);
    over_[static_cast<size_t>(lane)].push_back(episode);
  }

 private:
  // At the end: nobody waits for it for long.
  void say_over(int64_t lane, double most_s) {
    try {
      Budget budget{most_s};
      (void)tell(lane, -1, json::object(), budget);
    } catch (const std::exception&) {  // it ends anyway
    }
  }

  static constexpr double kGoodbyeS = 2;  // to all
  std::atomic<int64_t> next_ = 0;
  std::mutex mutex_;
  std::vector<std::vector<int64_t>> over_;  // by lane, guarded
  reward::PythonWorkers workers_;
};

class PythonEpisode final : public Episode {
 public:
  PythonEpisode(std::shared_ptr<Processes> processes, std::string name, const EpisodeStart& start, Budget& budget)
      : processes_(std::move(processes)), name_(std::move(name)), lane_(start.lane), number_(processes_->begin()) {
    const data::Prompt& prompt = start.prompt;
    json columns = parse_or_discard<json>(prompt.columns.empty() ? "{}" : prompt.columns);
    json given = {{"prompt", prompt.text}, {"answer", prompt.answer}, {"data_source", prompt.data_source}, {"seed", start.seed}};
    (void)tell({{"reset", std::move(given)}, {"columns", columns.is_object() ? std::move(columns) : json::object()}}, budget);
  }
  ~PythonEpisode() override { processes_->end(lane_, number_); }

  Turn next(const Spoken& spoken, Budget& budget) override {
    const std::vector<int32_t> ids(spoken.ids.begin(), spoken.ids.end());
    json said = {{"response", spoken.text}, {"ids", ids}, {"turn", spoken.turn}, {"truncated", spoken.is_cut}};
    return turn_of(tell({{"step", std::move(said)}}, budget), name_);
  }

 private:
  json tell(json message, Budget& budget) { return processes_->tell(lane_, number_, std::move(message), budget); }

  const std::shared_ptr<Processes> processes_;
  const std::string name_;
  const int64_t lane_, number_;
};

}  // namespace

std::shared_ptr<const Environment> python_environment(const rollout::EpisodeOptions& o, const reward::Options& reward) {
  const size_t colon = o.environment.rfind(':');
  reward::PythonFunction environment{"episode.environment " + o.environment, o.environment.substr(0, colon), "",
                                     o.environment.substr(colon + 1), /*is_environment=*/true};
  if (!std::filesystem::is_regular_file(environment.file))
    throw UserError("episode.environment", "there is no file " + environment.file, "FILE.py:CLASS, from the present folder");
  reward::WorkerOptions options;
  options.executable = reward::python_for(reward.python_executable);
  options.num_workers = o.workers;
  options.memory_bytes = reward.python_memory_mib << 20;
  options.notices = reward.notices;
  const std::string name = environment.name;
  auto processes = std::make_shared<Processes>(std::move(environment), std::move(options));
  const MakeEpisode make = [processes, name](const EpisodeStart& start, Budget& budget) -> std::unique_ptr<Episode> {
    return std::make_unique<PythonEpisode>(processes, name, start, budget);
  };
  return std::make_shared<Environment>(Environment{make, o, reward.notices, [processes] { processes->abandon(); }});
}

}  // namespace tandem::generate
