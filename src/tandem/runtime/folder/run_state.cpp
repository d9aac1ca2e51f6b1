// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_state.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/checkpoint/durable_file.h"
#include "tandem/checkpoint/safetensors.h"

namespace tandem::runtime {
namespace {

using nlohmann::json;

std::string rank_file(const std::string& dir, int rank) { return join_text(dir, "/optimizer_rank", rank, ".safetensors"); }

json to_json(const RunState& s, const RankContext& context) {
  json out = {{"step", s.step}, {"version", s.version}, {"next_group", s.next_group}, {"tokens", s.tokens}, {"seconds", s.seconds},
              {"sink_bytes", s.sink_bytes}, {"train_layout", model::to_string(context.train_layout)}};
  if (!s.unconcluded.empty()) out["unconcluded"] = s.unconcluded;
  if (s.before) out["eval_before"] = {{"accuracy", s.before->accuracy}, {"pass_at_k", s.before->pass_at_k}, {"num_problems", s.before->num_problems}};
  return out;
}

RunState from_json(const json& j) {
  RunState s;
  s.step = j.at("step");
  s.version = j.at("version");
  s.next_group = j.at("next_group");
  s.tokens = j.at("tokens");
  s.seconds = j.at("seconds");
  s.sink_bytes = j.at("sink_bytes").get<std::map<std::string, int64_t>>();
  if (j.contains("unconcluded")) s.unconcluded = j["unconcluded"].get<std::map<std::string, double>>();
  if (j.contains("eval_before")) {
    const json& b = j["eval_before"];
    s.before = EvalSummary{b.at("accuracy"), b.at("pass_at_k"), b.at("num_problems"), 0};
  }
  return s;
}

std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes;
  for (char c; in.get(c);) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

// The fault of the first rank that has one, named on every rank; "" if none has. Collective.
std::string first_fault(comm::Group& world, const std::string& mine) {
  if (world.size() == 1) return mine;
  const auto faults = comm::all_gather_bytes(world, std::as_bytes(std::span(mine)));
  for (size_t rank = 0; rank < faults.size(); ++rank)
    if (!faults[rank].empty())
      return join_text("rank ", rank, ": ", std::string(reinterpret_cast<const char*>(faults[rank].data()), faults[rank].size()));
  return "";
}

}  // namespace

StateFiles::StateFiles(RankContext& context, const std::string& run_dir, std::string model_dir)
    : context_(context),
      root_(run_dir + "/checkpoint"),
      exporter_(context, std::move(model_dir)),
      writer_(root_, context.config.checkpoint.keep_last) {}

void StateFiles::write_rank_files(const std::string& dir, const RunState& state, Actor& actor) {
  // TP and DP ranks hold different slices, so every rank writes its own.
  std::map<std::string, at::Tensor> slice = actor.trainer().state();
  for (auto& [name, tensor] : slice) tensor = tensor.contiguous();
  checkpoint::write_safetensors(rank_file(dir, context_.world.rank()), slice);
  if (!context_.is_first()) return;
  checkpoint::write_durable(dir + "/state.json", to_json(state, context_).dump(1));
  checkpoint::write_durable(dir + "/queue.bin", std::string(reinterpret_cast<const char*>(state.queue.data()), state.queue.size()));
}

void StateFiles::save(const RunState& state, Actor& actor) {
  const auto attempt = [&](const auto& action) {
    // A rank that cannot write must not leave the others waiting: all agree on the outcome of each part.
    std::string fault;
    try {
      action();
    } catch (const std::exception& e) {
      fault = e.what();
    }
    fault = first_fault(context_.world, fault);
    if (fault.empty()) return;
    if (context_.is_first()) writer_.abandon(state.step);
    throw PeerError(join_text("checkpoint of step ", state.step, ": ", fault));
  };
  attempt([&] {
    if (context_.is_first()) writer_.begin(state.step);
  });
  attempt([&] { write_rank_files(writer_.tmp_path(state.step), state, actor); });
  attempt([&] { exporter_.write(writer_.tmp_path(state.step), actor); });
  attempt([&] {
    if (context_.is_first()) writer_.commit(state.step);
  });
  last_saved_step_ = state.step;
}

std::optional<RunState> StateFiles::load(Actor& actor) {
  const auto found = checkpoint::find_latest(root_);
  if (!found) return std::nullopt;
  const json j = json::parse(std::ifstream(found->path + "/state.json"));
  const std::string layout = model::to_string(context_.train_layout);
  if (j.at("train_layout") != layout)
    throw UserError(found->path, "was saved under " + j.at("train_layout").get<std::string>(), "resume with that train layout, not " + layout);
  RunState state = from_json(j);
  state.queue = read_bytes(found->path + "/queue.bin");
  actor.load(actor.lora() ? exporter_.model_dir() : found->path + "/hf");  // adapters go on the weights of the start
  const checkpoint::SafetensorsFile slice(rank_file(found->path, context_.world.rank()));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : slice.tensors()) tensors[name] = slice.view(name);
  actor.trainer().restore(tensors, slice.path());
  last_saved_step_ = state.step;
  return state;
}

}  // namespace tandem::runtime
