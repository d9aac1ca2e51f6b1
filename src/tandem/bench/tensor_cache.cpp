// SPDX-License-Identifier: Apache-2.0
// A batch goes from one stage to the next. Samples have tokens, log-probabilities and three numbers; each rank makes as many of them,
// rising by id. With equal layouts the next stage wants a sample where it was made, with unequal ones on rank id mod ranks: with two
// ranks, half of what each has moves. Measured is all of it, from columns in memory to rows that the next stage can read.
#include "tandem/bench/tensor_cache.h"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/base/strings.h"
#include "tandem/bench/report.h"
#include "tandem/comm/launch.h"
#include "tandem/queue/tensor_cache.h"
#include "tandem/runtime/launch.h"

namespace tandem::bench {
namespace {

using data::SampleId;

enum Field : size_t { kTokens, kLogprobs, kReward, kLength, kGroup, kNumFields };

std::vector<queue::CacheField> fields() {
  const std::vector<int64_t> whole;
  const std::vector<float> real;
  return {{"tokens", whole}, {"logprobs", real}, {"reward", real}, {"length", whole}, {"group", whole}};
}

/// The batch as every rank can compute it: what stands where, so that what arrives can be checked.
struct Workload {
  int64_t samples, seq;
  bool ragged;
  uint64_t seed;

  int64_t length(int64_t id) const {
    return ragged ? RandomStream(seed, static_cast<uint64_t>(id)).below(seq - seq / 8 + 1) + seq / 8 : seq;
  }
  // Cheap, and different for every token of the batch.
  int64_t token(int64_t id, int64_t t) const { return static_cast<int64_t>(seed) + id * seq + t; }
  float logprob(int64_t id, int64_t t) const { return -static_cast<float>(token(id, t) % 65521) / 4096; }
  float reward(int64_t id) const { return static_cast<float>(id % 97); }
};

/// The samples that rank `rank` makes.
std::vector<SampleId> born_on(const Workload& w, int rank, int ranks) {
  std::vector<SampleId> ids;
  for (int64_t id = w.samples * rank / ranks; id < w.samples * (rank + 1) / ranks; ++id) ids.push_back(SampleId{id});
  return ids;
}

data::Fields columns_of(const Workload& w, std::span<const SampleId> ids) {
  std::vector<int64_t> tokens, lengths, groups;
  std::vector<float> logprobs, rewards;
  for (SampleId sample : ids) {
    const int64_t id = value(sample), n = w.length(id);
    lengths.push_back(n), groups.push_back(id / 8), rewards.push_back(w.reward(id));
    for (int64_t t = 0; t < n; ++t) tokens.push_back(w.token(id, t)), logprobs.push_back(w.logprob(id, t));
  }
  const std::vector<int64_t> each(ids.size(), 1);
  data::Fields made;
  made["group"] = {std::move(groups), each};
  made["tokens"] = {std::move(tokens), lengths};
  made["logprobs"] = {std::move(logprobs), lengths};
  made["length"] = {std::move(lengths), each};
  made["reward"] = {std::move(rewards), each};
  return made;
}

/// What a stage reads of a sample.
struct Row {
  SampleId id;
  std::span<const int64_t> tokens;
  std::span<const float> logprobs;
  float reward;
  int64_t length, group;
};

void check(const Workload& w, const std::vector<Row>& rows, const std::vector<SampleId>& wanted) {
  TANDEM_CHECK(rows.size() == wanted.size(), rows.size(), " rows of ", wanted.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const int64_t id = value(wanted[i]), n = w.length(id);
    TANDEM_CHECK(row.id == wanted[i] && row.length == n && row.group == id / 8 && row.reward == w.reward(id), "sample ", id);
    TANDEM_CHECK(std::ssize(row.tokens) == n && std::ssize(row.logprobs) == n, "lengths of sample ", id);
    for (int64_t t = 0; t < n; ++t)
      TANDEM_CHECK(row.tokens[static_cast<size_t>(t)] == w.token(id, t) && row.logprobs[static_cast<size_t>(t)] == w.logprob(id, t),
                   "token ", t, " of sample ", id);
  }
}

/// Ids and lengths of all ranks' rows: what travels besides the rows.
void announce_all(comm::Group& world, queue::TensorCache& cache, std::span<const SampleId> born) {
  std::vector<int64_t> mine;
  mine.reserve(born.size() * (kNumFields + 1));
  for (SampleId id : born) {
    mine.push_back(value(id));
    const auto lengths = cache.lengths(id);
    mine.insert(mine.end(), lengths.begin(), lengths.end());
  }
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, std::as_bytes(std::span(mine)))) {
    std::vector<int64_t> heads(part.size() / sizeof(int64_t));
    std::memcpy(heads.data(), part.data(), part.size());
    for (size_t i = 0; i < heads.size(); i += kNumFields + 1)
      cache.announce(SampleId{heads[i]}, std::span(heads).subspan(i + 1, kNumFields));
  }
}

struct Handover {
  double begin_s, ready_s;  ///< of this rank
  double bytes;             ///< that it sent
};

class StageBench {
 public:
  StageBench(const TensorCacheOptions& options, comm::Group& world, bool ragged)
      : world_(world), workload_{options.samples, options.seq, ragged, static_cast<uint64_t>(options.seed)} {
    for (int r = 0; r < world.size(); ++r) ranks_.push_back(r);
    cache_.share_memory(world);
  }

  /// One batch; `equal`: the next stage wants it where it was made.
  Handover pass(bool equal) {
    ++workload_.seed;  // other values, so that nothing left over from the batch before could pass for this one
    const std::vector<SampleId> born = born_on(workload_, world_.rank(), world_.size());
    data::Fields made = columns_of(workload_, born);
    std::vector<SampleId> wanted;
    std::vector<Row> rows;
    rows.reserve(static_cast<size_t>(workload_.samples));
    world_.barrier();
    Handover out{now_s(), 0, 0};
    cache_.put(born, std::move(made));
    announce_all(world_, cache_, born);
    out.bytes = static_cast<double>(cache_.move(world_, plan(equal, wanted)).sent_bytes);
    for (SampleId id : wanted)
      rows.push_back({id, cache_.read<int64_t>(id, kTokens), cache_.read<float>(id, kLogprobs), cache_.read<float>(id, kReward)[0],
                      cache_.read<int64_t>(id, kLength)[0], cache_.read<int64_t>(id, kGroup)[0]});
    out.ready_s = now_s();
    check(workload_, rows, wanted);
    for (int64_t id = 0; id < workload_.samples; ++id) cache_.drop(std::vector{SampleId{id}});
    return out;
  }

 private:
  std::vector<data::RowMove> plan(bool equal, std::vector<SampleId>& wanted) {
    std::vector<data::RowPlace> places;
    places.reserve(static_cast<size_t>(workload_.samples));
    for (int holder = 0; holder < world_.size(); ++holder)
      for (SampleId id : born_on(workload_, holder, world_.size())) {
        const int wanter = equal ? holder : static_cast<int>(value(id) % world_.size());
        places.push_back({{id, 0}, cache_.num_bytes({id, 0}), rank(holder), rank(wanter)});
        if (wanter == world_.rank()) wanted.push_back(id);
      }
    return data::plan_rows(places);
  }
  std::span<const int> rank(int r) const { return std::span(ranks_).subspan(static_cast<size_t>(r), 1); }

  comm::Group& world_;
  Workload workload_;
  std::vector<int> ranks_;
  queue::TensorCache cache_{fields()};
};

/// Adds what all ranks saw of one handover. Ranks are processes or threads of one machine, which has one clock.
void record(comm::Group& world, const Handover& mine, const std::string& prefix, bool equal, Figures& figures) {
  at::Tensor one = at::empty({3}, at::kDouble), all = at::empty({3 * world.size()}, at::kDouble);
  std::memcpy(one.data_ptr(), &mine, sizeof mine);
  world.all_gather(all, one);
  double first_begin = mine.begin_s, first_ready = mine.ready_s, last_ready = mine.ready_s, bytes = 0;
  for (int r = 0; r < world.size(); ++r) {
    const double* const each = all.const_data_ptr<double>() + 3 * r;
    first_begin = std::min(first_begin, each[0]);
    first_ready = std::min(first_ready, each[1]), last_ready = std::max(last_ready, each[1]);
    bytes += each[2];
  }
  figures[prefix + (equal ? "equal_s" : "unequal_s")].push_back(last_ready - first_begin);
  figures[prefix + "start_skew_s"].push_back(last_ready - first_ready);
  figures[prefix + (equal ? "equal_bytes" : "bytes")].push_back(bytes);
}

}  // namespace

void describe(OptionVisitor& field, TensorCacheOptions& o) {
  field("samples", o.samples, "Samples of the batch, over all ranks", at_least(1));
  field("seq", o.seq, "Tokens of a sample; ragged ones have an eighth of it or more", at_least(8));
  field("ranks", o.ranks, "Ranks as threads, 0 is two; mpirun gives them itself", at_least(0));
  field("seed", o.seed, "Seed of the workload", at_least(0));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json tensor_cache(const TensorCacheOptions& o) {
  if (o.ranks == 1 && !comm::mpi_launched()) throw UserError("--ranks", "1 rank has nobody to send to", "2 or more");
  const double batch_bytes = static_cast<double>(o.samples) * static_cast<double>(o.seq) * (sizeof(int64_t) + sizeof(float));
  const double memory_bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (4 * batch_bytes > memory_bytes)  // it is there as columns, as rows of two stages, and on its way
    throw UserError("--samples, --seq",
                    join_text("a batch has ", batch_bytes / 1e9, " GB, this machine ", memory_bytes / 1e9),
                    "a batch of at most a quarter of it");
  config::RunConfig config;
  config.parallel.ranks = local_ranks(o.ranks);
  Figures figures;
  int ranks = 0;
  runtime::launch_ranks(config, [&](comm::Group& world) {
    Figures mine;
    for (const bool ragged : {false, true}) {
      StageBench bench(o, world, ragged);
      for (int64_t i = 0; i <= o.repeats; ++i)
        for (const bool equal : {true, false}) {
          const Handover handover = bench.pass(equal);
          if (i > 0) record(world, handover, ragged ? "ragged_" : "", equal, mine);
        }
    }
    if (world.rank() == 0) figures = std::move(mine), ranks = world.size();
  });
  if (ranks == 0) return {};
  const char* const are = comm::mpi_launched() ? "processes" : "threads";
  return report("tensor_cache", {{"samples", o.samples}, {"seq", o.seq}, {"ranks", ranks}, {"ranks_are", are}, {"seed", o.seed},
                                       {"repeats", o.repeats}}, figures);
}

}  // namespace tandem::bench
