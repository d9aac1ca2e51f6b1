// SPDX-License-Identifier: Apache-2.0
#include "queue/queue_load.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "report.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/launch.h"
#include "tandem/data/columns.h"
#include "tandem/model/layout.h"
#include "tandem/queue/backend/wire/store_server.h"
#include "tandem/queue/body/store.h"
#include "tandem/worker/body_reader.h"

namespace tandem::bench {
namespace {

using data::SampleId;

constexpr double kDeadlineS = 300;
constexpr int64_t kSamplesOfGroup = 8, kPromptTokens = 64, kVocab = 1 << 16;  // samples of a group

int64_t bytes_of(const queue::wire::StoreServer& server) { return server.bytes_sent() + server.bytes_lent(); }

int32_t token(SampleId sample, int64_t at) { return static_cast<int32_t>((value(sample) * 7919 + at) % kVocab); }

/// Finished groups, as a worker has them.
std::vector<data::Group> groups_with(const std::vector<int64_t>& lengths) {
  std::vector<data::Group> groups;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const data::GroupId id{static_cast<int64_t>(i) / kSamplesOfGroup};
    if (static_cast<int64_t>(i) % kSamplesOfGroup == 0) {
      groups.push_back({id, {}, {}, {}});
      groups.back().prompt.ids.assign(kPromptTokens, 1);
    }
    data::Sample& sample = groups.back().samples.emplace_back();
    sample.id = data::sample_id(id, kSamplesOfGroup, static_cast<int64_t>(i) % kSamplesOfGroup);
    for (int64_t t = 0; t < lengths[i]; ++t) sample.ids.push_back(token(sample.id, t));
    sample.logprobs.assign(sample.ids.size(), -1);
    sample.versions.assign(sample.ids.size(), 0);
  }
  return groups;
}

void check(const queue::TensorCache& cache, const std::vector<data::Group>& groups) {
  for (const data::Group& group : groups)
    for (const data::Sample& sample : group.samples) {
      TANDEM_CHECK(std::ranges::equal(cache.read<int32_t>(sample.id, queue::kResponse), sample.ids), "tokens of sample ", value(sample.id));
      TANDEM_CHECK(std::ranges::equal(cache.read<float>(sample.id, queue::kLogprobs), sample.logprobs), "of sample ", value(sample.id));
    }
}

/// This rank fetches all.
void fetch(const std::vector<worker::Wanted>& wanted, queue::TensorCache& cache) {
  worker::BodyReader reader({kSamplesOfGroup, kVocab, 0}, kDeadlineS);
  TANDEM_CHECK(reader.fetch_now(wanted).empty(), "the store does not answer");
  (void)reader.take(cache);
}

/// The first rank fetches, and hands on to the others, which know the lengths.
void fetch_and_hand_on(comm::Group& replica, const std::vector<worker::Wanted>& wanted, const std::vector<SampleId>& ids,
                       queue::TensorCache& cache) {
  size_t row = 0;
  if (replica.rank() == 0) fetch(wanted, cache);
  else
    for (const worker::Wanted& group : wanted)
      for (int64_t i = 0; i < kSamplesOfGroup; ++i)
        cache.announce(ids[row++], std::span(group.measures).subspan(static_cast<size_t>(i * queue::num_measures()), cache.num_fields()));
  std::vector<int> first{0}, all(static_cast<size_t>(replica.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<data::RowPlace> places;
  for (const SampleId id : ids)
    for (int32_t part = 0; part < cache.num_parts(); ++part) places.push_back({{id, part}, cache.num_bytes({id, part}), first, all});
  (void)cache.move(replica, data::plan_rows(places));
}

}  // namespace

void describe(OptionVisitor& field, QueueLoadOptions& o) {
  field("layout", o.layout, "Layout of the replica that wants the batch");
  field("samples", o.samples, "Samples of the batch", at_least(8));
  field("seq", o.seq, "Tokens of a sample, unless --lengths has them", at_least(8));
  describe(field, static_cast<Common&>(o));
}

nlohmann::json queue_load(const QueueLoadOptions& o) {
  const model::Layout layout = model::parse_layout(o.layout, "--layout");
  std::vector<int64_t> lengths = o.lengths;
  if (lengths.empty()) lengths.assign(static_cast<size_t>(o.samples), o.seq);
  lengths.resize(lengths.size() / kSamplesOfGroup * kSamplesOfGroup);
  if (lengths.empty())
    throw UserError("--samples, --lengths", "are fewer samples than a group has", join_text(kSamplesOfGroup, " or more"));
  const std::vector<data::Group> groups = groups_with(lengths);
  queue::Store store(queue::body_fields());
  queue::wire::StoreServer server(store, "tcp://127.0.0.1:0");
  std::vector<SampleId> ids;
  std::vector<worker::Wanted> wanted;
  std::vector<std::vector<int64_t>> measures;
  int64_t row_bytes = 0;
  for (const data::Group& group : groups) {
    const std::span<const data::Group> one(&group, 1);
    data::Fields columns = data::fields_of(one);
    measures.push_back(queue::measures_of(one, columns));
    wanted.push_back({group.id, server.place(), measures.back()});
    for (const SampleId id : data::ids_of(one)) ids.push_back(id);
    store.put(data::ids_of(one), std::move(columns));
  }
  {
    queue::TensorCache rows(queue::body_fields());
    TANDEM_CHECK(store.copy(ids, rows), "rows that were put are not there");
    row_bytes = rows.packed_bytes(ids);
  }
  Figures figures;
  for (int64_t i = 0; i <= o.repeats; ++i) {
    const int64_t before = bytes_of(server);
    comm::run_local(layout.world(), kDeadlineS, [&](comm::Group&) {
      queue::TensorCache cache(queue::body_fields());
      fetch(wanted, cache);
      check(cache, groups);
    });
    const int64_t flat = bytes_of(server) - before;
    comm::run_local(layout.world(), kDeadlineS, [&](comm::Group& replica) {
      queue::TensorCache cache(queue::body_fields());
      cache.share_memory(replica);
      fetch_and_hand_on(replica, wanted, ids, cache);
      check(cache, groups);
    });
    const int64_t handed_on = bytes_of(server) - before - flat;
    TANDEM_CHECK(handed_on >= row_bytes && handed_on < row_bytes + row_bytes / 4, handed_on, " bytes for rows of ", row_bytes);
    if (i == 0) continue;
    figures["flat_bytes"].push_back(static_cast<double>(flat));
    figures["hierarchical_bytes"].push_back(static_cast<double>(handed_on));
    figures["load_ratio"].push_back(static_cast<double>(flat) / static_cast<double>(handed_on));
  }
  // The response columns of the measures: an id and a log-probability a token. row_padding_saved is of all columns.
  const auto samples = std::ssize(lengths), longest = *std::ranges::max_element(lengths);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  constexpr int64_t kTokenBytes = sizeof(int32_t) + sizeof(float);
  figures["padded_bytes"].push_back(static_cast<double>(samples * longest * kTokenBytes));
  figures["unpadded_bytes"].push_back(static_cast<double>(tokens * kTokenBytes));
  figures["padding_saved"].push_back(1 - static_cast<double>(tokens) / static_cast<double>(samples * longest));
  const double padded = static_cast<double>(row_bytes + queue::padding_bytes(measures));
  figures["row_padding_saved"].push_back(1 - static_cast<double>(row_bytes) / padded);
  const nlohmann::json conditions{{"layout", o.layout},   {"ranks", layout.world()}, {"samples", samples},
                                  {"longest", longest}, {"repeats", o.repeats}};
  return report("queue_load", conditions, figures);
}

}  // namespace tandem::bench
