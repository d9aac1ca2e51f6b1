// SPDX-License-Identifier: Apache-2.0
// A batch goes from one stage to the next. Samples have tokens, log-probabilities and three numbers; each rank makes as many of them,
// rising by id. With equal layouts the next stage wants a sample where it was made, with unequal ones on rank id mod ranks: with two
// ranks, half of what each has moves. Measured is all of it, from columns in memory to rows that the next stage can read.
#include "queue/tensor_cache.h"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "queue/sample_rows.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "report.h"
#include "tandem/comm/launch.h"
#include "tandem/queue/body/tensor_cache.h"
#include "tandem/runtime/launch.h"

namespace tandem::bench {
namespace {

using data::SampleId;

/// The samples that rank `rank` makes.
std::vector<SampleId> born_on(int64_t samples, int rank, int ranks) {
  std::vector<SampleId> ids;
  for (int64_t id = samples * rank / ranks; id < samples * (rank + 1) / ranks; ++id) ids.push_back(SampleId{id});
  return ids;
}

/// Ids and lengths of all ranks' rows: what travels besides the rows.
void announce_all(comm::Group& world, queue::TensorCache& cache, std::span<const SampleId> born) {
  std::vector<int64_t> mine;
  mine.reserve(born.size() * (cache.num_fields() + 1));
  for (SampleId id : born) {
    mine.push_back(value(id));
    const auto lengths = cache.lengths(id);
    mine.insert(mine.end(), lengths.begin(), lengths.end());
  }
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, std::as_bytes(std::span(mine)))) {
    std::vector<int64_t> heads(part.size() / sizeof(int64_t));
    std::memcpy(heads.data(), part.data(), part.size());
    for (size_t i = 0; i < heads.size(); i += cache.num_fields() + 1)
      cache.announce(SampleId{heads[i]}, std::span(heads).subspan(i + 1, cache.num_fields()));
  }
}

struct Handover {
  double begin_s, ready_s;  ///< of this rank
  double bytes;             ///< that it sent
};

class StageBench {
 public:
  StageBench(const TensorCacheOptions& options, comm::Group& world, bool ragged)
      : world_(world),
        workload_{.seq = options.seq, .ragged = ragged, .seed = static_cast<uint64_t>(options.seed)},
        samples_(options.samples) {
    for (int r = 0; r < world.size(); ++r) ranks_.push_back(r);
    cache_.share_memory(world);
  }

  /// One batch; `equal`: the next stage wants it where it was made.
  Handover pass(bool equal) {
    ++workload_.seed;  // other values, so that nothing left over from the batch before could pass for this one
    const std::vector<SampleId> born = born_on(samples_, world_.rank(), world_.size());
    data::Fields made = workload_.columns_of(born);
    std::vector<SampleId> wanted;
    std::vector<Row> rows;
    rows.reserve(static_cast<size_t>(samples_));
    world_.barrier();
    Handover out{now_s(), 0, 0};
    cache_.put(born, std::move(made));
    announce_all(world_, cache_, born);
    out.bytes = static_cast<double>(cache_.move(world_, plan(equal, wanted)).sent_bytes);
    for (SampleId id : wanted) rows.push_back(row_of(cache_, id));
    out.ready_s = now_s();
    for (const Row& row : rows) workload_.check(row);
    for (int64_t id = 0; id < samples_; ++id) cache_.drop(std::vector{SampleId{id}});
    return out;
  }

 private:
  std::vector<data::RowMove> plan(bool equal, std::vector<SampleId>& wanted) {
    std::vector<data::RowPlace> places;
    places.reserve(static_cast<size_t>(samples_));
    for (int holder = 0; holder < world_.size(); ++holder)
      for (SampleId id : born_on(samples_, holder, world_.size())) {
        const int wanter = equal ? holder : static_cast<int>(value(id) % world_.size());
        places.push_back({{id, 0}, cache_.num_bytes({id, 0}), rank(holder), rank(wanter)});
        if (wanter == world_.rank()) wanted.push_back(id);
      }
    return data::plan_rows(places);
  }
  std::span<const int> rank(int r) const { return std::span(ranks_).subspan(static_cast<size_t>(r), 1); }

  comm::Group& world_;
  SampleRows workload_;
  int64_t samples_;
  std::vector<int> ranks_;
  queue::TensorCache cache_{SampleRows::fields()};
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
  config.run.device = "cpu";  // where its tensors are
  Figures figures;
  int ranks = 0;
  runtime::launch_ranks(config, runtime::Host::kProgram, [&](comm::Group& world) {
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
