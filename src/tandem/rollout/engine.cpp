// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/engine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::rollout {
namespace {

Options with_block_tokens(Options options, const model::kernel::Kernels& kernels) {
  options.kv_block_tokens = block_tokens_of(options, kernels.attention(), kernels.device().type());
  return options;
}

}  // namespace

Engine::Engine(const Options& options, const EngineSetup& setup)
    : setup_(setup),
      scheduler_(with_block_tokens(options, setup.decoder.kernels()), options.graphs && DecodeGraphs::serves(setup.decoder)),
      runner_(with_block_tokens(options, setup.decoder.kernels()), setup.decoder, setup.arena, setup.logs_graphs),
      sampler_(setup.decoder, setup.num_tokens) {}

void Engine::switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version) {
  drop_weights();
  runner_.take_weights(parameters);
  version_ = version;
  if (runner_.num_blocks() == 0) {
    runner_.open_cache(setup_.max_context_tokens);
    scheduler_.open(runner_.num_blocks());
    num_blocks_ = runner_.num_blocks();
  }
  restart(scheduler_.switch_version(version));
}

void Engine::release_memory() {
  drop_weights();
  restart(scheduler_.release_all());
  runner_.close_cache();
}

void Engine::check(const Request& request) const {
  const model::ModelConfig& config = setup_.decoder.config();
  const int64_t block_tokens = scheduler_.blocks().block_tokens(), prompt = std::ssize(request.prompt);
  const int64_t total = prompt + request.sampling.max_new_tokens;
  const std::string where = join_text("prompt of row ", request.row);
  TANDEM_CHECK(num_blocks_ > 0, "the engine has no KV cache before its first weights");
  if (prompt == 0) throw UserError(where, "is empty", "at least one token");
  if (total > config.max_positions)
    throw UserError(where, join_text(prompt, " tokens and ", request.sampling.max_new_tokens, " new ones"),
                    join_text("at most the model's context of ", config.max_positions));
  if ((total + block_tokens - 1) / block_tokens > num_blocks_)
    throw UserError(where, join_text(total, " tokens do not fit into a KV cache of ", num_blocks_ * block_tokens),
                    "a larger rollout.kv_cache_mib");
  for (int32_t id : request.prompt)
    if (id < 0 || id >= config.vocab_size) throw UserError(where, join_text("token id ", id), join_text("0 to ", config.vocab_size - 1));
}

SequenceId Engine::submit(Request request) {
  check(request);
  const SequenceId id{next_id_++};
  Active& active = active_[id];
  if (request.begun && !request.begun->ids.empty()) active.sample = std::move(*request.begun);
  request.begun.reset();
  active.sample.id = request.sample;
  if (request.make_listener) active.listener = request.make_listener();
  const std::vector<int32_t>& response = active.sample.ids;
  for (size_t t = data::last_turn_begin(active.sample); t < response.size(); ++t)
    if (active.listener) (void)active.listener(response[t]);
  std::vector<int32_t> prompt = std::exchange(request.prompt, {});
  scheduler_.submit(id, std::move(prompt), request.record_routes, response);
  active.request = std::move(request);
  return id;
}

void Engine::cancel(SequenceId sequence) {
  if (active_.erase(sequence) > 0) scheduler_.cancel(sequence);
  else std::erase_if(completed_, [&](const Completion& c) { return c.sequence == sequence; });
}

// They run their prompt again, and draw their first token again.
void Engine::restart(const std::vector<SequenceId>& sequences) {
  for (SequenceId id : sequences) {
    Active& active = active_.at(id);
    num_drawn_ -= std::ssize(active.sample.ids);
    active.sample = {};
    active.sample.id = active.request.sample;
    if (active.request.make_listener) active.listener = active.request.make_listener();
  }
}

EngineCounts Engine::counts() const {
  const Scheduler::Counts scheduled = scheduler_.counts();
  const SequenceBlocks& blocks = scheduler_.blocks();
  return {num_drawn_ - scheduled.ready, scheduled.preemptions, runner_.num_ran_ahead(),
          blocks.num_found_tokens(),    blocks.num_free(),     runner_.num_blocks(),
          blocks.block_tokens()};
}

bool Engine::must_step() const {
  comm::Group* peers = setup_.decoder.ep();
  if (!peers) return running();
  at::Tensor any = at::full({1}, running() ? 1 : 0, at::kLong);
  peers->all_reduce(any, comm::ReduceOp::kMax);
  return any.item<int64_t>() != 0;
}

void Engine::step() {
  TANDEM_CHECK(runner_.has_weights(), "the engine has no weights");
  const double begin = now_s();
  const Plan plan = scheduler_.plan();
  restart(plan.restarted);
  const StepOutput out = runner_.run(plan, records_routes(plan));
  if (out.routes_TX.defined()) keep_routes(plan, out.routes_TX);
  const std::vector<Outcome> drawn = draw(plan, out.logits_SRV);
  scheduler_.complete(plan, drawn);
  if (setup_.stepped) setup_.stepped(std::ssize(drawn), now_s() - begin);
}

bool Engine::records_routes(const Plan& plan) const {
  return std::ranges::any_of(plan.runs, [&](const Plan::Run& run) { return active_.at(run.sequence).request.record_routes; });
}

// The first route of a token stays: what led to the token that was drawn after it. A sequence that was preempted runs again.
void Engine::keep_routes(const Plan& plan, const at::Tensor& recorded_TX) {
  const auto width = static_cast<size_t>(recorded_TX.size(1));
  const int16_t* all = recorded_TX.data_ptr<int16_t>();
  for (const Plan::Run& run : plan.runs) {
    Active& active = active_.at(run.sequence);
    if (!active.request.record_routes) continue;
    std::vector<int16_t>& routes = active.sample.routes;
    const int16_t* from = all + static_cast<size_t>(run.begin) * width;
    const size_t begin = static_cast<size_t>(run.position) * width, end = begin + static_cast<size_t>(run.count) * width;
    if (routes.size() < end) routes.resize(end, -1);
    for (size_t i = begin; i < end; ++i, ++from)
      if (routes[i] < 0) routes[i] = *from;
  }
  // Those that draw from another's row take over what led to it.
  for (size_t d = 1; d < plan.draws.size(); ++d)
    if (plan.draws[d].row == plan.draws[d - 1].row)
      active_.at(plan.draws[d].sequence).sample.routes = active_.at(plan.draws[d - 1].sequence).sample.routes;
}

// A token for each draw of the plan, from logits where this is the last pipeline stage and from there elsewhere.
std::vector<Outcome> Engine::draw(const Plan& plan, const at::Tensor& logits_SRV) {
  std::vector<Active*> actives;
  std::vector<RowDraw> rows;
  std::vector<int64_t> going_on;  // draws whose sequences may run ahead: the first of a row ran it, and its length is not reached
  for (const Plan::Draw& each : plan.draws) {
    const Active& active = *actives.emplace_back(&active_.at(each.sequence));
    const bool ran = rows.empty() || rows.back().row != each.row;
    rows.push_back({each.row, &active.request, std::ssize(active.sample.ids)});
    if (ran && rows.back().num_drawn + 1 < active.request.sampling.max_new_tokens) going_on.push_back(std::ssize(rows) - 1);
  }
  sampler_.begin(logits_SRV, rows);
  if (runner_.runs_ahead())
    if (const at::Tensor tokens_D = sampler_.tokens_D(); tokens_D.defined()) runner_.run_ahead(plan, tokens_D, going_on);
  const std::vector<Drawn> drawn = sampler_.finish();
  std::vector<std::optional<data::FinishReason>> ends(drawn.size());
  at::parallel_for(0, std::ssize(drawn), 1, [&](int64_t begin, int64_t end) {
    for (auto d = static_cast<size_t>(begin); d < static_cast<size_t>(end); ++d) ends[d] = append(*actives[d], drawn[d]);
  });
  num_drawn_ += std::ssize(drawn);
  std::vector<Outcome> outcomes;
  for (size_t d = 0; d < drawn.size(); ++d) {
    const SequenceId id = plan.draws[d].sequence;
    outcomes.push_back({id, drawn[d].token, ends[d].has_value()});
    if (!ends[d]) continue;
    actives[d]->sample.finish = *ends[d];
    completed_.push_back({id, std::move(actives[d]->sample)});
    active_.erase(id);
  }
  return outcomes;
}

// Why the sequence ends with this token; none if it goes on.
std::optional<data::FinishReason> Engine::append(Active& active, const Drawn& drawn) const {
  const Request& request = active.request;
  data::Sample& sample = active.sample;
  sample.ids.push_back(drawn.token);
  sample.logprobs.push_back(drawn.logprob);
  // A beginning that was kept by an older Tandem has none.
  if (sample.doubt.size() + 1 == sample.ids.size()) sample.doubt.push_back(0 - std::expm1(drawn.logprob));
  if (request.sampling.filters()) sample.kept_mass.push_back(drawn.kept_mass);
  sample.versions.push_back(value(version_));
  if (!sample.trainable.empty()) sample.trainable.push_back(1);
  const bool listed = std::ranges::find(request.stop_ids, drawn.token) != request.stop_ids.end();
  const bool is_ended = active.listener && !active.listener(drawn.token);
  if (is_ended || (listed && !request.sampling.ignore_eos)) return data::FinishReason::kStop;
  if (std::ssize(sample.ids) >= request.sampling.max_new_tokens) return data::FinishReason::kLength;
  return std::nullopt;
}

void switch_weights(Engine* engine, comm::Group& world, const SendWeights& send, data::PolicyVersion version) {
  if (engine) engine->drop_weights();
  const model::ModelParameters* parameters = send();
  world.barrier();  // every rank has all of its bytes
  if (engine) engine->switch_weights(*parameters, version);
}

}  // namespace tandem::rollout
