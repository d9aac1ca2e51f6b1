// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/queue/queue_load.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/bench/report.h"
#include "tandem/bench/queue/sample_rows.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/model/layout.h"
#include "tandem/queue/backend/wire/store_server.h"

namespace tandem::bench {
namespace {

using data::SampleId;

constexpr double kDeadlineS = 300;

int64_t bytes_of(const queue::wire::StoreServer& server) { return server.bytes_sent() + server.bytes_lent(); }

/// The first rank fetches, and hands on to the others.
int64_t fetch_and_hand_on(comm::Group& replica, const std::string& place, std::span<const SampleId> ids, queue::TensorCache& cache) {
  std::vector<int64_t> lengths;
  if (replica.rank() == 0) {
    queue::wire::StoreReader reader(kDeadlineS);
    TANDEM_CHECK(reader.read(place, ids, cache), "the store does not answer");
    for (const SampleId id : ids) lengths.insert(lengths.end(), cache.lengths(id).begin(), cache.lengths(id).end());
  }
  lengths = comm::values_of_all(replica, lengths);
  std::vector<int> first{0}, all(static_cast<size_t>(replica.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<data::RowPlace> places;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (replica.rank() > 0) cache.announce(ids[i], std::span(lengths).subspan(i * cache.num_fields(), cache.num_fields()));
    for (int32_t part = 0; part < cache.num_parts(); ++part)
      places.push_back({{ids[i], part}, cache.num_bytes({ids[i], part}), first, all});
  }
  return cache.move(replica, data::plan_rows(places)).received_bytes;
}

}  // namespace

void describe(OptionVisitor& field, QueueLoadOptions& o) {
  field("layout", o.layout, "Layout of the replica that wants the batch");
  field("samples", o.samples, "Samples of the batch", at_least(8));
  field("seq", o.seq, "Tokens of a sample, unless --lengths has them", at_least(8));
  field("seed", o.seed, "Seed of the workload", at_least(0));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json queue_load(const QueueLoadOptions& o) {
  const model::Layout layout = model::parse_layout(o.layout, "--layout");
  const int64_t samples = o.lengths.empty() ? o.samples : std::ssize(o.lengths);
  const SampleRows rows{.seq = o.seq, .lengths = o.lengths, .seed = static_cast<uint64_t>(o.seed)};
  std::vector<SampleId> ids;
  for (int64_t id = 0; id < samples; ++id) ids.push_back(SampleId{id});
  queue::Store store(SampleRows::fields());
  store.put(ids, rows.columns_of(ids));
  queue::wire::StoreServer server(store, "tcp://127.0.0.1:0");
  Figures figures;
  for (int64_t i = 0; i <= o.repeats; ++i) {
    const int64_t before = bytes_of(server);
    comm::run_local(layout.world(), kDeadlineS, [&](comm::Group& replica) {
      queue::TensorCache cache(SampleRows::fields());
      queue::wire::StoreReader reader(kDeadlineS);
      TANDEM_CHECK(reader.read(server.place(), ids, cache), "the store does not answer rank ", replica.rank());
      for (const SampleId id : ids) rows.check(row_of(cache, id));
    });
    const int64_t flat = bytes_of(server) - before;
    comm::run_local(layout.world(), kDeadlineS, [&](comm::Group& replica) {
      queue::TensorCache cache(SampleRows::fields());
      cache.share_memory(replica);
      (void)fetch_and_hand_on(replica, server.place(), ids, cache);
      for (const SampleId id : ids) rows.check(row_of(cache, id));
    });
    const int64_t handed_on = bytes_of(server) - before - flat;
    if (i == 0) continue;
    figures["flat_bytes"].push_back(static_cast<double>(flat));
    figures["hierarchical_bytes"].push_back(static_cast<double>(handed_on));
    figures["load_ratio"].push_back(static_cast<double>(flat) / static_cast<double>(handed_on));
  }
  int64_t longest = 0, tokens = 0;
  for (int64_t id = 0; id < samples; ++id) longest = std::max(longest, rows.length(id)), tokens += rows.length(id);
  constexpr int64_t kTokenBytes = sizeof(int64_t) + sizeof(float);  // the response columns: an id and a log-probability
  figures["padded_bytes"].push_back(static_cast<double>(samples * longest * kTokenBytes));
  figures["unpadded_bytes"].push_back(static_cast<double>(tokens * kTokenBytes));
  figures["padding_saved"].push_back(1 - static_cast<double>(tokens) / static_cast<double>(samples * longest));
  const nlohmann::json conditions{{"layout", o.layout},   {"ranks", layout.world()}, {"samples", samples},
                                  {"longest", longest}, {"seed", o.seed},          {"repeats", o.repeats}};
  return report("queue_load", conditions, figures);
}

}  // namespace tandem::bench
