// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/launch.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/base/options.h"
#include "tandem/base/file/checksum.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/device/device.h"
#include "tandem/device/fault.h"
#include "tandem/device/process.h"
#include "tandem/policy/compute.h"

namespace tandem::runtime {
namespace {

namespace fs = std::filesystem;

// Ranks that may run on the same cores share them: those of --ranks, and processes that no launcher bound to cores of their own. Of a
// launcher's ranks each has the number asked for, those of --ranks have it together. Collective.
int64_t threads_of_rank(int64_t asked, bool launched, comm::Group& world) {
  if (!launched) return std::max<int64_t>(1, (asked > 0 ? asked : device::num_cores()) / world.size());
  if (asked > 0) return asked;
  const std::string mine = device::cores_name();
  return std::max<int64_t>(1, device::num_cores() / std::ranges::count(comm::texts_of_all(world, mine), mine));
}

// "path = value" of each option.
std::vector<std::string> options_of(const config::RunConfig& config) {
  config::RunConfig copy = config;
  OptionList list;
  describe(list, copy);
  std::vector<std::string> lines;
  for (const OptionEntry& entry : list.entries) lines.push_back(entry.path + " " + option_text(entry.ref.value));
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::string digest_of(const std::vector<std::string>& files) {
  std::string digest;
  for (const std::string& file : files) digest += file_digest(file) + '\n';
  return digest;
}

// None for "", as a run without such a model has.
std::vector<std::string> model_files(const std::string& dir) {
  std::error_code absent;
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, absent))
    if (entry.is_regular_file(absent)) files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

// How the options of a rank differ from those of rank 0: the first few.
std::string differences(const std::string& first, const std::string& other) {
  std::istringstream left(first), right(other);
  std::string text;
  int64_t count = 0;
  for (std::string a, b; std::getline(left, a) && std::getline(right, b);)
    if (a != b && ++count <= 3) text += join_text(count > 1 ? ", " : "", b, " and not ", a.substr(std::min(a.size(), a.find(' ') + 1)));
  return count > 3 ? text + ", ..." : text;
}

// Libtorch and NCCL serve one rank a process. Without a launcher.
bool need_processes(const config::RunConfig& config, Host host) {
  if (comm::is_started_rank()) return true;
  const auto ranks = static_cast<int>(config.parallel.ranks);
  if (ranks == 1) return false;
  const at::Device device = device::device_named(config.run.device, "run.device", 0, ranks);
  if (device.is_cpu() || host == Host::kProgram) return !device.is_cpu();
  const device::Backend& backend = device::backend_of(device);
  if (backend.has_host_memory) return false;
  throw UserError("parallel.ranks",
                  join_text("is ", ranks, ": on ", backend.name, " each rank needs a process, and this one cannot start itself again"),
                  join_text("`tandem run RECIPE --ranks ", ranks, "`, or 1"));
}

}  // namespace

void check_same_start(const config::RunConfig& config, const HowStarted& how, comm::Group& world) {
  if (!comm::are_processes(world)) return;
  const char* begins = how.resume ? "--resume" : how.overwrite ? "--overwrite" : "";
  const std::string recipe = joined(options_of(config)) + begins + '\n' + how.replay + '\n' + how.replay_decisions + '\n';
  std::vector<std::string> data = config::data_files(config);
  if (!how.replay.empty()) data.push_back(how.replay + "/samples.sqlite");
  if (!how.replay_decisions.empty()) data.push_back(how.replay_decisions + "/decisions.jsonl");
  const std::pair<const char*, std::string> digests[] = {
      {"recipe", recipe},
      {"data", digest_of(data)},
      {"start weights", digest_of(model_files(config.model.path))},
      {"critic", digest_of(model_files(config.critic.path))},
      {"reference", digest_of(model_files(config.model.ref_model_load_path))},
      {"reward model", digest_of(model_files(config.reward.model))},
  };
  std::string what;
  for (const auto& [name, digest] : digests) {
    const std::vector<std::string> all = comm::texts_of_all(world, digest);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      what += join_text(what.empty() ? "" : "; ", "rank ", rank, " has another ", name, " than rank 0");
      const bool is_recipe = &digest == &digests[0].second;
      if (const std::string found = is_recipe ? differences(all[0], all[rank]) : ""; !found.empty()) what += ": " + found;
    }
  }
  if (!what.empty()) throw UserError("ranks", what, "one recipe, the same data and the same models on every rank");
}

void launch_ranks(const config::RunConfig& config, Host host, const std::function<void(comm::Group&)>& body) {
  const bool launched = comm::mpi_launched();
  const int64_t ranks = config.parallel.ranks;
  if (launched && ranks > 1)
    throw UserError("--ranks", join_text(ranks, " ranks inside each rank that a launcher started"), "either --ranks or mpirun/srun");
  const auto run = [&](comm::Group& world) {
    device::set_compute_threads(static_cast<int>(threads_of_rank(config.parallel.threads, launched, world)));
    if (comm::are_processes(world) && world.rank() != 0) log::quiet(true), log::show_live(false);
    const std::string who = world.size() > 1 ? join_text("rank ", world.rank()) : "";
    device::with_faults_named(who, [&] {
      const at::Device device = policy::device_of(config, world);
      policy::trust_device(config, device, world);
      comm::with_device_groups(world, {device, device::host_synchronizer(device)}, config.parallel.deadline_s,
                               [&] { device::with_faults_named(who, [&] { body(world); }); });
    });
  };
  comm::prepare_device_groups(config.parallel.deadline_s);
  if (launched) comm::run_mpi(config.parallel.deadline_s, run);
  else if (need_processes(config, host)) comm::run_processes(static_cast<int>(ranks), config.parallel.deadline_s, run);
  else comm::run_local(static_cast<int>(ranks), config.parallel.deadline_s, run);
}

}  // namespace tandem::runtime
