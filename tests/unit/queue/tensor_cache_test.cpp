// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/body/tensor_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "../../counting_group.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/comm/launch.h"

namespace tandem::queue {
namespace {

constexpr double kDeadlineS = 60;

// Fields of five types in three parts, in an order that is not that of their widths.
std::vector<CacheField> fields() {
  return {{"text", std::vector<char>(), 2},      {"routes", std::vector<int16_t>(), 1}, {"ids", std::vector<int32_t>(), 0},
          {"logprobs", std::vector<float>(), 0}, {"versions", std::vector<int64_t>(), 1}, {"score", std::vector<double>(), 0}};
}

// What a sample holds, whoever asks: ragged, and empty now and then.
template <class T>
std::vector<T> content(SampleId id, size_t field) {
  RandomStream random(static_cast<uint64_t>(value(id)), field);
  const int64_t n = random.below(4) == 0 ? 0 : random.below(30);
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(random.below(100)));
  return values;
}

template <class Do>
void each_field(Do what) {
  const std::vector<CacheField> all = fields();
  for (size_t f = 0; f < all.size(); ++f)
    std::visit([&]<class T>(const std::vector<T>&) { what(f, all[f], T{}); }, all[f].type);
}

data::Fields columns(std::span<const SampleId> ids) {
  data::Fields made;
  each_field([&]<class T>(size_t f, const CacheField& field, T) {
    std::vector<T> values;
    data::Column& column = made[field.name];
    for (SampleId id : ids) {
      const std::vector<T> row = content<T>(id, f);
      values.insert(values.end(), row.begin(), row.end());
      column.lengths.push_back(std::ssize(row));
    }
    column.values = std::move(values);
  });
  return made;
}

std::vector<int64_t> lengths(SampleId id) {
  std::vector<int64_t> all;
  each_field([&]<class T>(size_t f, const CacheField&, T) { all.push_back(std::ssize(content<T>(id, f))); });
  return all;
}

// The part is here, aligned, and says what it said where it was born.
void expect_row(const TensorCache& cache, data::RowPart row) {
  ASSERT_TRUE(cache.holds(row));
  each_field([&]<class T>(size_t f, const CacheField& field, T) {
    if (field.part != row.part) return;
    const std::span<const T> read = cache.read<T>(row.sample, f);
    EXPECT_TRUE(std::ranges::equal(read, content<T>(row.sample, f))) << field.name << " of sample " << value(row.sample);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data()) % sizeof(T), 0u) << field.name;
  });
}

TEST(TensorCache, ReadsInPlaceWhatWasMovedIn) {
  TensorCache cache(fields());
  const std::vector<SampleId> ids = {SampleId{4}, SampleId{9}, SampleId{2}};
  data::Fields made = columns(ids);
  made["ids"] = {std::vector<int32_t>{5, 6, 7}, {2, 0, 1}};
  made["of nobody"] = made["ids"];
  const int32_t* const memory = std::get<std::vector<int32_t>>(made["ids"].values).data();
  cache.put(ids, std::move(made));
  EXPECT_EQ(cache.read<int32_t>(SampleId{4}, 2).data(), memory);
  EXPECT_EQ(cache.read<int32_t>(SampleId{2}, 2).data(), memory + 2);
  EXPECT_EQ(cache.read<int32_t>(SampleId{2}, 2)[0], 7);
  EXPECT_TRUE(cache.read<int32_t>(SampleId{9}, 2).empty());
  EXPECT_EQ(cache.field("ids"), 2u);
  EXPECT_EQ(cache.num_held(), 3);
  for (SampleId id : ids)
    for (int32_t part : {1, 2}) expect_row(cache, {id, part});
}

TEST(TensorCache, RefusesWhatIsNotHereOrHereTwice) {
  TensorCache cache(fields());
  const std::vector<SampleId> ids = {SampleId{1}};
  cache.announce(SampleId{2}, lengths(SampleId{2}));
  EXPECT_FALSE(cache.holds({SampleId{2}, 0}));
  EXPECT_THROW(cache.read<int32_t>(SampleId{2}, 2), InternalError);
  EXPECT_THROW(cache.read<int32_t>(SampleId{3}, 2), InternalError);
  EXPECT_THROW(cache.announce(SampleId{2}, std::vector<int64_t>(6, 99)), InternalError);
  EXPECT_THROW(cache.announce(SampleId{5}, std::vector<int64_t>(5, 1)), InternalError);
  EXPECT_THROW(cache.field("nothing"), InternalError);
  cache.put(ids, columns(ids));
  EXPECT_THROW((cache.read<int64_t>(SampleId{1}, 2)), InternalError);
  EXPECT_THROW(cache.put(ids, columns(ids)), InternalError);
  data::Fields less = columns(ids);
  less.erase("ids");
  TensorCache other(fields());
  EXPECT_THROW(other.put(ids, less), InternalError);
}

// Several batches one after the other, any holders, any wanters: every row arrives once, with what it held, and the bytes sent are
// those of the rows that moved.
TEST(TensorCache, MovesRandomPlansOfSeveralBatches) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int ranks = 1 + static_cast<int>(seed % 4);
    const bool shares = seed >= 12;
    std::mutex mutex;
    comm::run_local(ranks, kDeadlineS, [&](comm::Group& all_ranks) {
      test::CountingGroup world(all_ranks);
      TensorCache cache(fields());
      if (shares) cache.share_memory(world, 1);
      for (int64_t batch = 0; batch < 5; ++batch) {
        RandomStream random(seed, static_cast<uint64_t>(batch));  // the same on every rank
        std::vector<SampleId> all, born;
        std::vector<std::vector<int>> holders, wanters;
        for (int64_t i = 0; i < 30; ++i) {
          all.push_back(SampleId{1000 * batch + i});
          holders.push_back({static_cast<int>(random.below(ranks))});
          const int second = static_cast<int>(random.below(ranks));
          if (second != holders.back()[0] && random.below(3) == 0) holders.back().push_back(second);
          if (std::ranges::count(holders.back(), world.rank()) > 0) born.push_back(all.back());
          for (int part = 0; part < 3; ++part) {
            wanters.emplace_back();
            for (int r = 0; r < ranks; ++r)
              if (random.below(2) == 0) wanters.back().push_back(r);
          }
        }
        cache.put(born, columns(born));
        std::vector<data::RowPlace> places;
        for (size_t i = 0; i < all.size(); ++i) {
          cache.announce(all[i], lengths(all[i]));
          for (int32_t part = 0; part < 3; ++part)
            places.push_back({{all[i], part}, cache.num_bytes({all[i], part}), holders[i], wanters[3 * i + static_cast<size_t>(part)]});
        }
        const std::vector<data::RowMove> plan = data::plan_rows(places);
        int64_t sent = 0, received = 0;
        for (const data::RowMove& m : plan) {
          sent += m.from == world.rank() ? cache.num_bytes(m.row) : 0;
          received += m.to == world.rank() ? cache.num_bytes(m.row) : 0;
        }
        world.reset();
        const RowsMoved moved = cache.move(world, plan);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(moved.sent_bytes, sent);
        EXPECT_EQ(moved.received_bytes, received);
        const test::Traffic::Count& exchange = world.traffic().of(comm::Operation::kAllToAllV);
        EXPECT_EQ(exchange.calls, plan.empty() ? 0 : 1);
        constexpr int64_t kNotice_bytes = 40;  // where to read, in place of the rows
        EXPECT_LE(exchange.bytes, shares ? kNotice_bytes * (ranks - 1) : sent + 7 * (ranks - 1));
        for (size_t i = 0; i < all.size(); ++i)
          for (int32_t part = 0; part < 3; ++part) {
            const auto& want = wanters[3 * i + static_cast<size_t>(part)];
            if (std::ranges::count(want, world.rank()) > 0) expect_row(cache, {all[i], part});
            else EXPECT_EQ(cache.holds({all[i], part}), std::ranges::count(holders[i], world.rank()) > 0);
          }
        if (batch > 0) cache.drop(all);  // the first stays beside the others
      }
      for (int64_t i = 0; i < 30; ++i)
        for (int32_t part = 0; part < 3; ++part)
          if (cache.holds({SampleId{i}, part})) expect_row(cache, {SampleId{i}, part});
    });
  }
}

// The borrower gives small lanes back in the very moment in which the lender looks for one that is large enough.
TEST(TensorCache, LendsNoLaneThatIsTooSmall) {
  constexpr int64_t kRounds = 2000, kSmall_batches = 8, kRows_of_large = 20;
  comm::run_local(2, kDeadlineS, [](comm::Group& world) {
    const bool is_lender = world.rank() == 0;
    std::vector<SampleId> ids;
    for (int64_t i = 0; i < kSmall_batches + kRows_of_large; ++i) ids.push_back(SampleId{i});
    const std::span<const SampleId> all(ids), small = all.first(kSmall_batches), large = all.subspan(kSmall_batches);
    RandomStream random(7, 0);
    for (int64_t round = 0; round < kRounds; ++round) {
      TensorCache cache(fields());
      cache.share_memory(world, 1);
      for (SampleId id : all) cache.announce(id, lengths(id));
      if (is_lender) cache.put(all, columns(all));
      std::vector<data::RowMove> plan;
      for (SampleId id : large)
        for (int32_t part = 0; part < 3; ++part) plan.push_back({{id, part}, 0, 1});
      for (SampleId id : small) cache.move(world, std::vector<data::RowMove>{{{id, 0}, 0, 1}});
      const int64_t spins = random.below(400);
      world.barrier();
      if (!is_lender) {
        for (std::atomic<int64_t> spin = 0; spin < spins;) ++spin;
        cache.drop(small);
      }
      cache.move(world, plan);
      if (!is_lender)
        for (SampleId id : large)
          for (int32_t part = 0; part < 3; ++part) expect_row(cache, {id, part});
    }
  });
}

TEST(TensorCache, MovesNothingUnderEqualLayoutsAndKeepsItsBuffer) {
  comm::run_local(2, kDeadlineS, [](comm::Group& all_ranks) {
    test::CountingGroup world(all_ranks);
    TensorCache cache(fields());
    const int me = world.rank();
    EXPECT_EQ(cache.move(world, {}).sent_bytes, 0);
    EXPECT_EQ(world.traffic().of(comm::Operation::kAllToAllV).calls, 0);
    const double* before = nullptr;
    for (int64_t step = 0; step < 3; ++step) {
      const SampleId mine{me}, other{1 - me};
      cache.put(std::span(&mine, 1), columns(std::span(&mine, 1)));
      cache.announce(other, lengths(other));
      const std::vector<data::RowMove> plan = {{{SampleId{0}, 0}, 0, 1}, {{SampleId{1}, 0}, 1, 0}};
      cache.move(world, plan);
      expect_row(cache, {other, 0});
      const double* const at = cache.read<double>(other, 5).data();
      EXPECT_TRUE(before == nullptr || at == before);
      before = at;
      const std::vector<SampleId> both = {mine, other, SampleId{77}};
      cache.drop(both);
      EXPECT_EQ(cache.num_held(), 0);
      EXPECT_FALSE(cache.knows(other));
    }
  });
}

}  // namespace
}  // namespace tandem::queue
