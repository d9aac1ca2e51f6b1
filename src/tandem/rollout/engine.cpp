// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/engine.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/rollout/sampler.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kWholeTokens = 16;  // a shorter prompt attends row by row just as fast

CacheShape cache_shape(const Options& options, const model::Decoder& decoder, int64_t num_layers) {
  const auto& shape = decoder.attention_shape();
  return {num_layers, shape.num_kv_heads, shape.head_dim, shape.group(), options.kv_block_tokens, decoder.gemm().dtype()};
}

// The same for all pipeline stages: those of the first, which has the most layers.
int64_t common_blocks(const Options& options, const model::Decoder& decoder, int64_t max_context_tokens) {
  const int64_t most = model::num_layers_of(decoder.place().layout, decoder.config().num_layers, 0);
  return num_kv_blocks(options, cache_shape(options, decoder, most), max_context_tokens);
}

// Each token sees what its sequence has in the cache; a prompt that runs as a whole sees itself.
class PagedContext final : public model::AttentionContext {
 public:
  PagedContext(const BlockPool& pool, const model::Decoder& decoder, const model::kernel::PagedTokens& tokens)
      : pool_(pool), decoder_(decoder), tokens_(tokens) {}
  bool keeps_keys() const override { return true; }
  at::Tensor attend(int64_t layer, const at::Tensor& qkv, const model::kernel::AttentionShape& shape) override {
    return model::kernel::paged_attention(qkv, tokens_, shape, pool_.layer(decoder_.place_of_layer(layer)));
  }

 private:
  const BlockPool& pool_;
  const model::Decoder& decoder_;
  const model::kernel::PagedTokens& tokens_;
};

}  // namespace

// The tokens of one step, laid end to end, and the rows whose logits are needed.
struct Engine::Plan {
  std::vector<int64_t> ids;
  model::kernel::PagedTokens tokens;
  std::vector<int64_t> rows;           // into ids
  std::vector<Sequence*> sequences;    // one per row
  std::vector<Sequence*> owners;       // one per token
};

int64_t num_kv_blocks(const Options& options, const CacheShape& shape, int64_t max_context_tokens) {
  const int64_t per_sequence = (max_context_tokens + shape.block_tokens - 1) / shape.block_tokens + 1;
  const int64_t affordable = (options.kv_cache_mib << 20) / shape.bytes_per_block();
  return std::max<int64_t>(1, std::min(affordable, per_sequence * (options.max_running + 1)));
}

Engine::Engine(const Options& options, const EngineSetup& setup) : options_(options), setup_(setup) {
  if (options.kv_block_tokens < 16)
    throw UserError("rollout", "kv_block_tokens is " + std::to_string(options.kv_block_tokens), "at least 16");
}

Engine::~Engine() { count_packed(0); }

void Engine::count_packed(int64_t bytes) {
  setup_.arena.count("packed", bytes - packed_bytes_);
  packed_bytes_ = bytes;
}

// As many blocks as are wanted, or as there is room for; as many on all TP and PP peers, which plan the same steps.
void Engine::make_cache() {
  const model::Decoder& decoder = setup_.decoder;
  const CacheShape shape = cache_shape(options_, decoder, decoder.num_layers());
  int64_t blocks = common_blocks(options_, decoder, setup_.max_context_tokens);
  if (const auto left = setup_.arena.left_bytes()) {
    const int64_t wanted = blocks;
    blocks = std::min(blocks, *left / shape.bytes_per_block());
    for (comm::Group* peers : {decoder.place().tp, decoder.place().pp}) {
      if (!peers || peers->size() == 1) continue;
      at::Tensor fewest = at::full({1}, -blocks, at::kLong);
      peers->all_reduce(fewest, comm::ReduceOp::kMax);
      blocks = -fewest.item<int64_t>();
    }
    const int64_t one = std::min(wanted, (setup_.max_context_tokens + shape.block_tokens - 1) / shape.block_tokens);
    if (blocks < one)
      throw UserError("memory." + setup_.arena.name() + "_mib",
                      join_text("leaves ", *left, " bytes for the KV cache, and a sequence of ", setup_.max_context_tokens,
                                " tokens takes ",
                                one * shape.bytes_per_block()),
                      "a larger budget, memory.offload_train_optimizer and its like, or a shorter context");
  }
  pool_.emplace(shape, blocks, setup_.arena);
}

void Engine::switch_weights(const model::ModelParameters& parameters, data::PolicyVersion version) {
  drop_weights();
  parameters_ = parameters;
  version_ = version;
  if (options_.packed_weights && !setup_.decoder.gemm().parity()) count_packed(model::pack_parameters(*parameters_));
  if (!pool_) make_cache();
  // A prompt's logits belong to the version that computed them: samples that have not forked run the prompt again.
  while (reclaim_prompt()) {}
  // So do the keys and values of a prompt that has drawn nothing yet.
  for (const SequencePtr& s : running_)
    if (s->sample().ids.empty()) {
      release(*s);
      s->routes.clear();
    }
}

void Engine::drop_weights() {
  parameters_.reset();
  count_packed(0);
}

void Engine::release_memory() {
  drop_weights();
  while (reclaim_prompt()) {}
  std::ranges::stable_sort(running_, {}, [](const SequencePtr& s) { return s->order; });
  for (; !running_.empty(); running_.pop_back()) {  // the youngest goes first, and is the last to come back
    Sequence& s = *running_.back();
    release(s);
    if (s.sample().ids.empty()) s.routes.clear();
    preempted_.push_front(std::move(running_.back()));
  }
  pool_.reset();
}

void Engine::admit(Request request) {
  const auto prompt = static_cast<int64_t>(request.group.prompt.ids.size());
  const std::string where = join_text("prompt of row ", request.group.prompt.row);
  const std::vector<int64_t>& each = request.max_new_tokens;
  TANDEM_CHECK(pool_, "the engine has no KV cache before its first weights");
  TANDEM_CHECK(each.empty() || std::ssize(each) == request.num_samples, each.size(), " lengths for ", request.num_samples, " samples");
  const int64_t longest = each.empty() ? request.sampling.max_new_tokens : *std::max_element(each.begin(), each.end());
  const int64_t total = prompt + longest, most = setup_.decoder.config().max_positions;
  if (prompt == 0) throw UserError(where, "is empty", "at least one token");
  if (total > most)
    throw UserError(where, join_text(prompt, " tokens and ", longest, " new ones"), join_text("at most the model's context of ", most));
  if ((total + pool_->block_tokens() - 1) / pool_->block_tokens() > pool_->num_blocks())
    throw UserError(where, join_text(total, " tokens do not fit into a KV cache of ", pool_->num_blocks() * pool_->block_tokens()),
                    "a larger rollout.kv_cache_mib");
  for (int32_t id : request.group.prompt.ids)
    if (id < 0 || id >= setup_.decoder.config().vocab_size)
      throw UserError(where, join_text("token id ", id), join_text("0 to ", setup_.decoder.config().vocab_size - 1));
  auto job = std::make_shared<Job>();
  job->num_unstarted = job->num_unfinished = request.num_samples;
  request.group.samples.resize(static_cast<size_t>(request.num_samples));
  int64_t id = request.first_sample;
  for (data::Sample& sample : request.group.samples) sample.id = data::SampleId{id++};
  job->request = std::move(request);
  waiting_.push_back(std::move(job));
}

Engine::SequencePtr Engine::make_sequence(const std::shared_ptr<Job>& job) {
  auto sequence = std::make_unique<Sequence>();
  sequence->job = job;
  sequence->index = job->request.num_samples - job->num_unstarted--;
  sequence->tokens = job->request.group.prompt.ids;
  sequence->num_prompt = sequence->length();
  sequence->order = next_order_++;
  if (job->request.make_stop_matcher) sequence->stop = job->request.make_stop_matcher();
  return sequence;
}

void Engine::release(Sequence& sequence) {
  for (int32_t block : sequence.blocks) pool_->release(block);
  sequence.blocks.clear();
  sequence.num_cached = 0;
}

void Engine::release_prompt(Job& job) {
  for (int32_t block : job.prompt_blocks) pool_->release(block);
  job.prompt_blocks.clear();
  job.prompt_logits.clear();
  job.prompt_routes.clear();
}

// Makes room for `tokens` tokens in all; false if the pool is empty.
bool Engine::grow(Sequence& sequence, int64_t tokens) {
  while (static_cast<int64_t>(sequence.blocks.size()) * pool_->block_tokens() < tokens) {
    const int32_t block = pool_->try_allocate();
    if (block < 0) return false;
    sequence.blocks.push_back(block);
  }
  return true;
}

// Samples of the youngest group that still fork from their prompt will run it again; false if there is none.
bool Engine::reclaim_prompt() {
  if (forking_.empty()) return false;
  release_prompt(*forking_.back());
  waiting_.push_front(std::move(forking_.back()));
  forking_.pop_back();
  return true;
}

// Samples of a group take over the prompt's full blocks and copy the one that is partly filled.
void Engine::fork_samples(const std::shared_ptr<Job>& job, std::vector<Row>& rows) {
  while (job->num_unstarted > 0 && num_running() < options_.max_running) {
    const auto prompt = static_cast<int64_t>(job->request.group.prompt.ids.size());
    const bool partial = prompt % pool_->block_tokens() != 0;
    const int32_t copy = partial ? pool_->try_allocate() : 0;
    if (copy < 0) return;
    SequencePtr sequence = make_sequence(job);
    sequence->blocks = job->prompt_blocks;
    if (partial) {
      pool_->copy(sequence->blocks.back(), copy);
      sequence->blocks.back() = copy;
    }
    for (size_t i = 0; i + (partial ? 1 : 0) < sequence->blocks.size(); ++i) pool_->share(sequence->blocks[i]);
    sequence->num_cached = prompt;
    sequence->routes = job->prompt_routes;
    const int64_t shard = std::ssize(job->prompt_logits) / setup_.decoder.tp_size();
    rows.push_back({sequence.get(), job->prompt_logits.data(), shard, shard});
    running_.push_back(std::move(sequence));
  }
}

void Engine::start_waiting() {
  std::vector<Row> forked;
  for (const auto& job : forking_) fork_samples(job, forked);
  draw_rows(forked);
  std::erase_if(forking_, [&](const auto& job) {
    if (job->num_unstarted == 0) release_prompt(*job);
    return job->num_unstarted == 0;
  });
  retire_finished();
  while (num_running() < options_.max_running && !(preempted_.empty() && waiting_.empty())) {
    const bool again = !preempted_.empty();
    const int64_t tokens = 1 + (again ? preempted_.front()->length() : std::ssize(waiting_.front()->request.group.prompt.ids));
    // One free block per running sequence stays in reserve, so that admission does not cause a preemption at once.
    const int64_t needed = (tokens + pool_->block_tokens() - 1) / pool_->block_tokens() + (running_.empty() ? 0 : num_running());
    if (needed > pool_->num_free() && !running_.empty()) return;
    if (again) {
      running_.push_back(std::move(preempted_.front()));
      preempted_.pop_front();
    } else {
      if (!forking_.empty()) return;  // its samples come first
      const std::shared_ptr<Job> job = waiting_.front();
      waiting_.pop_front();
      running_.push_back(make_sequence(job));
    }
  }
}

Engine::Plan Engine::plan_step() {
  Plan plan;
  int64_t budget = options_.prefill_tokens;
  // Oldest first; when the pool runs dry the youngest gives its blocks back and is computed again later.
  std::stable_sort(running_.begin(), running_.end(), [](const SequencePtr& a, const SequencePtr& b) { return a->order < b->order; });
  std::vector<int64_t> counts(running_.size());
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    int64_t n = s.num_pending();
    if (n > 1) budget -= (n = std::min(n, budget));
    while (n > 0 && !grow(s, s.num_cached + n)) {
      if (reclaim_prompt()) continue;  // a prompt that only waits for slots goes before a sequence that runs
      TANDEM_CHECK(running_.size() > 1, "one sequence does not fit into the KV cache");
      release(*running_.back());
      preempted_.push_front(std::move(running_.back()));
      running_.pop_back();
      ++num_preemptions_;
      if (i >= running_.size()) n = 0;
    }
    if (i >= running_.size()) break;
    counts[i] = n;
    if (s.num_cached == 0 && n >= kWholeTokens && !setup_.decoder.gemm().parity())
      plan.tokens.whole.push_back({static_cast<int64_t>(plan.ids.size()), n, {}});
    for (int64_t t = s.num_cached; t < s.num_cached + n; ++t) {
      plan.ids.push_back(s.tokens[static_cast<size_t>(t)]);
      plan.tokens.positions.push_back(t);
      plan.owners.push_back(&s);
    }
    if (n > 0 && n == s.num_pending()) {
      plan.rows.push_back(static_cast<int64_t>(plan.ids.size()) - 1);
      plan.sequences.push_back(&s);
    }
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    plan.tokens.block_tables.insert(plan.tokens.block_tables.end(), static_cast<size_t>(counts[i]), running_[i]->blocks.data());
    running_[i]->num_cached += counts[i];
  }
  return plan;
}

bool Engine::must_step() const {
  comm::Group* peers = setup_.decoder.ep();
  if (!peers) return running();
  at::Tensor any = at::full({1}, running() ? 1 : 0, at::kLong);
  peers->all_reduce(any, comm::ReduceOp::kMax);
  return any.item<int64_t>() != 0;
}

void Engine::step() {
  TANDEM_CHECK(parameters_, "the engine has no weights");
  at::NoGradGuard no_grad;
  start_waiting();
  const Plan plan = plan_step();
  if (plan.ids.empty()) {
    if (setup_.decoder.ep()) setup_.decoder.serve_experts(*parameters_);
    return;
  }
  const auto T = static_cast<int64_t>(plan.ids.size());
  at::Tensor ids = at::empty({T}, at::kLong), positions = at::empty({T}, at::kLong), rows = at::empty({std::ssize(plan.rows)}, at::kLong);
  std::copy(plan.ids.begin(), plan.ids.end(), ids.data_ptr<int64_t>());
  std::copy(plan.tokens.positions.begin(), plan.tokens.positions.end(), positions.data_ptr<int64_t>());
  std::copy(plan.rows.begin(), plan.rows.end(), rows.data_ptr<int64_t>());
  PagedContext context(*pool_, setup_.decoder, plan.tokens);
  model::TokenBatch batch{ids, positions, rows, {}, {}};
  if (std::ranges::any_of(plan.owners, [](const Sequence* s) { return s->job->request.record_routes; }))
    batch.recorded_routes_TX = at::full({T, setup_.decoder.route_width()}, -1, at::kShort);
  const at::Tensor hidden = setup_.decoder.forward_stages(*parameters_, batch, context);
  if (batch.recorded_routes_TX.defined()) {
    setup_.decoder.merge_routes(batch.recorded_routes_TX);
    keep_routes(plan, batch.recorded_routes_TX);
  }
  if (!plan.rows.empty()) sample_rows(plan, hidden);
  retire_finished();
}

// The first route of a token stays: what led to the token that was drawn after it. A sequence that was preempted runs again.
void Engine::keep_routes(const Plan& plan, const at::Tensor& recorded) {
  const auto width = static_cast<size_t>(recorded.size(1));
  const int16_t* from = recorded.data_ptr<int16_t>();
  for (size_t t = 0; t < plan.owners.size(); ++t, from += width) {
    Sequence& s = *plan.owners[t];
    if (!s.job->request.record_routes) continue;
    const size_t begin = static_cast<size_t>(plan.tokens.positions[t]) * width;
    if (s.routes.size() < begin + width) s.routes.resize(begin + width, -1);
    for (size_t i = 0; i < width; ++i)
      if (s.routes[begin + i] < 0) s.routes[begin + i] = from[i];
  }
}

// One token for each row, from logits where this is the last pipeline stage and from there elsewhere.
void Engine::draw_rows(const std::vector<Row>& rows) {
  if (rows.empty()) return;
  const int64_t shards = setup_.decoder.tp_size();
  std::vector<Drawn> drawn(rows.size());
  const auto draw_some = [&](int64_t begin, int64_t end) {
    std::vector<const float*> parts(static_cast<size_t>(shards));
    for (int64_t r = begin; r < end; ++r) {
      const Row& row = rows[static_cast<size_t>(r)];
      for (int64_t s = 0; s < shards; ++s) parts[static_cast<size_t>(s)] = row.logits + s * row.shard_stride;
      const Request& request = row.sequence->job->request;
      const data::Sample& sample = row.sequence->sample();
      RandomStream random(request.seed, static_cast<uint64_t>(value(sample.id)), static_cast<uint64_t>(sample.ids.size()));
      drawn[static_cast<size_t>(r)] = draw(parts, row.shard_size, setup_.num_tokens, request.sampling, random.uniform());
    }
  };
  if (setup_.decoder.has_head()) at::parallel_for(0, std::ssize(rows), 1, draw_some);
  if (comm::Group* stages = setup_.decoder.place().pp) {
    at::Tensor bytes = at::from_blob(drawn.data(), {std::ssize(drawn) * static_cast<int64_t>(sizeof(Drawn))}, at::kByte);
    stages->broadcast(bytes, stages->size() - 1);
  }
  at::parallel_for(0, std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) append(*rows[static_cast<size_t>(r)].sequence, drawn[static_cast<size_t>(r)]);
  });
  num_drawn_ += std::ssize(rows);
}

void Engine::sample_rows(const Plan& plan, const at::Tensor& hidden) {
  const auto R = static_cast<int64_t>(plan.rows.size());
  const int64_t tp = setup_.decoder.tp_size(), shard = setup_.decoder.config().vocab_size / tp;
  at::Tensor all;
  if (hidden.defined()) {
    const at::Tensor local = setup_.decoder.local_logits(*parameters_, hidden);
    all = local.unsqueeze(0);
    if (tp > 1) {
      all = at::empty({tp, R, shard}, local.options());
      setup_.decoder.tp()->all_gather(all, local);
    }
  }
  const float* base = all.defined() ? all.data_ptr<float>() : nullptr;
  std::vector<Row> rows;
  for (int64_t r = 0; r < R; ++r)
    rows.push_back({plan.sequences[static_cast<size_t>(r)], base ? base + r * shard : nullptr, shard, R * shard});
  draw_rows(rows);
  // A prompt that has just run: its other samples fork from these logits.
  for (int64_t r = 0; r < R; ++r) {
    const Sequence& s = *plan.sequences[static_cast<size_t>(r)];
    if (s.length() != s.num_prompt + 1 || s.job->num_unstarted == 0 || !s.job->prompt_blocks.empty()) continue;
    Job& job = *s.job;
    const int64_t blocks = (s.num_prompt + pool_->block_tokens() - 1) / pool_->block_tokens();
    job.prompt_blocks.assign(s.blocks.begin(), s.blocks.begin() + blocks);
    if (s.num_prompt % pool_->block_tokens() != 0) {
      const int32_t copy = pool_->try_allocate();  // the leader goes on writing into its own last block
      if (copy < 0) {
        job.prompt_blocks.clear();
        waiting_.push_front(s.job);
        continue;
      }
      pool_->copy(job.prompt_blocks.back(), copy);
      job.prompt_blocks.back() = copy;
      for (int64_t b = 0; b + 1 < blocks; ++b) pool_->share(job.prompt_blocks[static_cast<size_t>(b)]);
    } else {
      for (int32_t block : job.prompt_blocks) pool_->share(block);
    }
    job.prompt_routes = s.routes;
    for (int64_t part = 0; part < tp && base; ++part)
      job.prompt_logits.insert(job.prompt_logits.end(), base + (part * R + r) * shard, base + (part * R + r + 1) * shard);
    forking_.push_back(s.job);
  }
}

void Engine::append(Sequence& s, const Drawn& drawn) {
  const Request& request = s.job->request;
  data::Sample& sample = s.sample();
  s.tokens.push_back(drawn.token);
  sample.ids.push_back(drawn.token);
  sample.logprobs.push_back(drawn.logprob);
  sample.kept_mass.push_back(drawn.kept_mass);
  sample.versions.push_back(value(version_));
  const bool listed = std::find(request.stop_ids.begin(), request.stop_ids.end(), drawn.token) != request.stop_ids.end();
  const bool stop = listed && !request.sampling.ignore_eos;
  const bool stop_text = s.stop && s.stop->stops_after(drawn.token);
  if (stop || stop_text) sample.finish = data::FinishReason::kStop;
  else sample.finish = std::ssize(sample.ids) >= s.max_new_tokens() ? data::FinishReason::kLength : data::FinishReason::kAborted;
}

void Engine::retire_finished() {
  for (SequencePtr& s : running_) {
    const data::Sample& sample = s->sample();
    if (sample.ids.empty() || sample.finish == data::FinishReason::kAborted) continue;
    release(*s);
    s->sample().routes = std::move(s->routes);
    Job& job = *s->job;
    if (--job.num_unfinished == 0) {
      int64_t first = value(version_);
      for (const data::Sample& each : job.request.group.samples) first = std::min(first, each.versions.front());
      job.request.group.version = data::PolicyVersion{first};
      finished_.push_back(std::move(job.request.group));
    }
    s.reset();
  }
  std::erase(running_, nullptr);
}

std::vector<data::Group> Engine::finished() { return std::exchange(finished_, {}); }

void Engine::cancel(data::GroupId group) {
  const auto belongs = [&](const std::shared_ptr<Job>& job) { return job->request.group.id == group; };
  for (SequencePtr& s : running_)
    if (belongs(s->job)) {
      release(*s);
      s.reset();
    }
  std::erase(running_, nullptr);
  std::erase_if(preempted_, [&](const SequencePtr& s) { return belongs(s->job); });
  for (const auto& job : forking_)
    if (belongs(job)) release_prompt(*job);
  std::erase_if(forking_, belongs);
  std::erase_if(waiting_, belongs);
}

std::vector<data::GroupId> Engine::ids_of_jobs(const std::function<bool(const Job&)>& wanted) const {
  std::vector<data::GroupId> ids;
  const auto add = [&](const std::shared_ptr<Job>& job) {
    if (wanted(*job)) ids.push_back(job->request.group.id);
  };
  for (const auto& s : running_) add(s->job);
  for (const auto& s : preempted_) add(s->job);
  for (const auto& job : forking_) add(job);
  for (const auto& job : waiting_) add(job);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<data::GroupId> Engine::unfinished() const {
  return ids_of_jobs([](const Job&) { return true; });
}

std::vector<data::GroupId> Engine::without_token() const {
  return ids_of_jobs([](const Job& job) {
    return std::ranges::all_of(job.request.group.samples, [](const data::Sample& s) { return s.ids.empty(); });
  });
}

}  // namespace tandem::rollout
