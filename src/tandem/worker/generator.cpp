// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/generator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/scalar.h"
#include "tandem/config/layouts.h"
#include "tandem/device/device.h"
#include "tandem/device/process.h"
#include "tandem/policy/compute.h"

namespace tandem::worker {
namespace {

constexpr double kMomentS = 0.01;
constexpr int64_t kManyOvertaken = 4;  // fetches

// The recipe as ranks that only generate have it. Collective.
config::RunConfig recipe_of(const Welcome& welcome, const GeneratorOptions& options, const std::string& dir, comm::Group& world) {
  if (world.rank() == 0) {
    write_files(welcome.files, dir);
    write_files({{"config.yaml", welcome.recipe}}, dir);
  }
  world.barrier();
  std::vector<config::Setting> own;
  if (!options.dtype.empty()) own.push_back({"rollout.dtype", options.dtype, "--dtype"});
  config::RunConfig config = config::load_config(dir + "/config.yaml", own);
  config.model.path = dir;
  config.parallel = {.train_layout = options.layout, .rollout_layout = options.layout};
  config.memory = {};
  config.schedule.kind = "sync";
  config.schedule.queue.staleness = 0;
  config.reward.notices = std::make_shared<monitor::Notices>();
  return config;
}

// Of groups that run there may be as many again that wait: so a round trip to the queue is beside generation. Without staleness the batch
// waits for the last of them, and another worker may have nothing to do: then one waits.
int64_t most_groups(const std::string& dir) {
  const config::RunConfig run = config::load_config(dir + "/config.yaml", {});
  const int64_t running = std::max<int64_t>(1, run.rollout.engine.max_running / run.schedule.queue.group_size);
  return running + (run.staleness() > 0 ? running : 1);
}

int compute_threads(const GeneratorOptions& options, const comm::Group& world) {
  const int64_t all = options.threads > 0 ? options.threads : device::num_cores();
  return static_cast<int>(std::max<int64_t>(1, all / world.size()));
}

// The groups that carry tensors of this rank's device, which has proved itself. Collective.
std::unique_ptr<comm::DeviceGroups> carriers_for(const config::RunConfig& config, double deadline_s, comm::Group& world) {
  const at::Device device = policy::device_of(config, world);
  policy::trust_device(config, device, world);
  return comm::carry_devices(world, {device, device::host_synchronizer(device)}, deadline_s);
}

// Errors: UserError for a file that is not that of the run.
void check_functions(const Welcome& welcome, const config::RunConfig& config) {
  const std::map<std::string, std::string> files = reward_files(config.reward, config.episode.environment);
  for (const auto& [file, digest] : welcome.reward_files)
    if (const auto here = files.find(file); here == files.end() || here->second != digest)
      throw UserError("reward.python or episode.environment",
                      join_text(file, " of this worker is not that of the run: ", here == files.end() ? "none" : here->second,
                                ", and there ", digest),
                      "the run's file at the same path, seen from where the worker is started");
}

}  // namespace

Generator::Generator(const Welcome& welcome, const GeneratorOptions& options, const std::string& dir, comm::Group& world)
    : config_(recipe_of(welcome, options, dir, world)),
      options_(options),
      most_groups_(most_groups(dir)),
      tokenizer_(text::Tokenizer::load(dir)),
      model_config_(model::read_config(dir)),
      world_(world),
      carriers_(carriers_for((device::set_compute_threads(compute_threads(options, world)), config_), options.deadline_s, world)),
      rank_(config_, config::layouts_of(config_, world.size()), world),
      reward_models_(serve::kBesideGeneration) {
  draws_as_run_ = options.dtype.empty() || options.dtype == welcome.drawing.dtype;
  model::check_layout(rank_.ranks.rollout_layout, model_config_, model::Use::kRollout, "--layout");
  weights_.emplace(model_config_, config_.model.lora, welcome, rank_,
                   pull::PassingOptions{options.deadline_s, options.host});
  const int64_t ids = std::min(tokenizer_.vocab_size(), model_config_.vocab_size);
  engine_.emplace(config_.rollout.engine,
                  rollout::EngineSetup{weights_->decoder(), rank_.memory.device, ids, welcome.max_context_tokens,
                                       [this](int64_t tokens, double) { keep_pace(tokens); }, /*logs_graphs=*/true});
  const bool is_first = world.rank() == 0;
  if (is_first) check_functions(welcome, config_);
  auto environment = is_first ? policy::environment_of(config_) : nullptr;
  generator_.emplace(policy::generate_setup(config_, model_config_, tokenizer_, std::move(environment)), *engine_,
                     rollout::StreamPeers(), generate::OwnThread{generate::peers_of(rank_.ranks.rollout_place(), options.deadline_s)});
  stream_ = generator_->stream();
  if (!is_first) return;
  const reward::Options reward = reward::for_responses_of(config_.rollout.sampling.max_new_tokens, config_.reward);
  rule_ = reward::make_reward(reward, reward_models_.maker());
  grades_.emplace(*rule_, reward::grading_of(config_.reward), std::numeric_limits<double>::infinity());
}

// A fetch that goes on would hold up its end.
Generator::~Generator() {
  if (weights_) weights_->stop();
}

// On the thread of the stream.
void Generator::keep_pace(int64_t tokens) {
  if (options_.tokens_per_s <= 0) return;
  const double now = now_s(), allowed = static_cast<double>(paced_tokens_) / options_.tokens_per_s;
  if (now > pace_begin_s_ + allowed + 1) pace_begin_s_ = now, paced_tokens_ = 0;  // it rested: that earns nothing
  paced_tokens_ += tokens;
  const double due = pace_begin_s_ + static_cast<double>(paced_tokens_) / options_.tokens_per_s;
  if (due > now) std::this_thread::sleep_for(std::chrono::duration<double>(due - now));
}

GeneratorState Generator::state() const {
  const rollout::StreamState state = stream_->state();
  return {state.version.value_or(data::PolicyVersion{-1}), {state.without_token.begin(), state.without_token.end()}};
}

void Generator::give_to_stream() {
  weights_->swap();
  const uint64_t sum = model::sum_of_all(world_, weights_->sums(), join_text("the weights of policy version ", value(fetching_)));
  if (draws_as_run_) weights_checksum_ = static_cast<int64_t>(sum);
  stream_->switch_weights(weights_->in_use(), fetching_);
  told_version_ = fetching_;
  ++num_versions_;
}

// Takes what the fetch came to. Those who have weights go with the run, and the run may be started again: then it says who has them.
bool Generator::is_fetched() {
  try {
    const bool is_whole = fetch_.get().is_whole;
    failing_since_s_ = 0;
    return is_whole;
  } catch (const PeerError& e) {
    if (failing_since_s_ == 0) {
      failing_since_s_ = now_s();
      log::warning(e.what(), "; they are asked for again");
    }
    if (now_s() - failing_since_s_ > options_.deadline_s) throw;
    return false;
  }
}

// What a fetch fills must not be in use: the stream has taken the version before.
void Generator::take_weights(data::PolicyVersion newest) {
  if (fetch_.valid()) {
    const bool is_ready = fetch_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (comm::any_of(world_, !is_ready)) return;
    const bool is_whole = !comm::any_of(world_, !is_fetched());
    if (is_whole) give_to_stream();
    num_overtaken_ = is_whole || failing_since_s_ > 0 ? 0 : num_overtaken_ + 1;
    if (num_overtaken_ == kManyOvertaken)
      log::warning("weights take longer to come than the run takes for a step: ", kManyOvertaken, " versions in turn were gone before ",
                   "they were here; until one comes this worker goes on with the weights that it has");
    return;
  }
  if (told_version_ && (newest <= *told_version_ || comm::any_of(world_, state().version != *told_version_))) return;
  fetching_ = newest;
  fetch_ = std::async(std::launch::async, [this, newest] { return weights_->fetch(newest); });
}

int64_t Generator::room() const {
  return most_groups_ - std::ssize(groups_) + (grades_ ? grades_->num_pending() : 0);
}

void Generator::admit(queue::Task task) {
  groups_.insert(task.lease.group);
  generator_->admit(task.lease.group, std::move(task.prompt), std::move(task.begun));
}

void Generator::cancel(const std::vector<data::GroupId>& groups) {
  for (const data::GroupId id : groups)
    if (groups_.erase(id) > 0) generator_->cancel(id);
}

std::vector<data::Group> Generator::so_far(const std::vector<data::GroupId>& groups) {
  stream_->pause();
  std::vector<data::Group> copies = stream_->take_out(groups, true);
  stream_->resume();
  for (data::Group& copy : copies) copy.prompt = {};
  return copies;
}

// A group that was cancelled while it was graded is nobody's.
std::vector<data::Group> Generator::finished() {
  const Deadline moment = Deadline::after_s(kMomentS);
  if (!stream_->wait_finished(moment) && !(grades_ && grades_->pending())) std::this_thread::sleep_until(moment.time());
  const int64_t ended_on_all = comm::min_over(world_, stream_->state().num_ended);
  for (data::Group& group : generator_->take_ended(ended_on_all, &world_)) {
    if (!groups_.contains(group.id)) continue;
    if (grades_) grades_->submit(std::move(group));
    else groups_.erase(group.id);
  }
  std::vector<data::Group> scored;
  if (!grades_) return scored;
  for (data::Group& group : grades_->collect(/*generating=*/true, /*waits=*/false))
    if (groups_.erase(group.id) > 0) scored.push_back(std::move(group));
  const std::exception_ptr fault = generator_->fault() ? generator_->fault() : grades_->fault();
  has_reward_failed_ = fault != nullptr;
  if (fault) std::rethrow_exception(fault);
  return scored;
}

}  // namespace tandem::worker
