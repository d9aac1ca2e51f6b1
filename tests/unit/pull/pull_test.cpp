// SPDX-License-Identifier: Apache-2.0
// Weights by pull: what a reader fetches under its layout and dtype are the values that ranks of another layout published.
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/model/lora.h"
#include "tandem/model/parameters.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/pull/boxes.h"
#include "tandem/pull/passing_source.h"
#include "tandem/pull/weight_server.h"
#include "tandem/pull/weight_source.h"
#include "../../tiny_model.h"

namespace tandem::pull {
namespace {

using V = PolicyVersion;

// Every rank of a layout, with values that depend on the version alone.
struct Holders {
  Holders(const model::ModelConfig& config, const std::string& layout_text, at::ScalarType dtype)
      : config(config), layout(model::parse_layout(layout_text, "test")), dtype(dtype) {
    for (int rank = 0; rank < layout.world(); ++rank) {
      tables.push_back(model::parameter_table(config, layout, rank));
      servers.push_back(std::make_unique<WeightServer>(tables.back(), dtype, "tcp://127.0.0.1:0"));
    }
  }
  void publish(V version) {
    for (size_t rank = 0; rank < tables.size(); ++rank) servers[rank]->publish(values(tables[rank], version), version);
  }
  at::Tensor values(const model::ParameterTable& table, V version) const {
    at::Tensor all = at::zeros({table.num_elements}, dtype);
    model::initialize_parameters(table, all, static_cast<uint64_t>(value(version)) + 1, 0.5);
    return all;
  }
  std::vector<WeightHolder> places() const {
    std::vector<WeightHolder> all;
    for (size_t rank = 0; rank < servers.size(); ++rank) all.push_back({servers[rank]->place(), layout, static_cast<int>(rank), dtype});
    return all;
  }

  model::ModelConfig config;
  model::Layout layout;
  at::ScalarType dtype;
  std::vector<model::ParameterTable> tables;
  std::vector<std::unique_ptr<WeightServer>> servers;
};

// Who wants them.
struct Reader {
  Reader(const model::ModelConfig& config, const std::string& layout, int rank, at::ScalarType dtype)
      : table(model::parameter_table(config, model::parse_layout(layout, "test"), rank)), values(at::zeros({table.num_elements}, dtype)) {}
  Fetched fetch(WeightSource& source, V version, at::ScalarType on_the_way) {
    return source.fetch(version, reshard::held_weights(table, values, on_the_way), on_the_way);
  }
  // What the rank would have been given as its start.
  at::Tensor expected(V version, at::ScalarType published) const {
    at::Tensor all = at::zeros({table.num_elements}, published);
    model::initialize_parameters(table, all, static_cast<uint64_t>(value(version)) + 1, 0.5);
    return all;
  }
  model::ParameterTable table;
  at::Tensor values;
};

constexpr double kDeadlineS = 20;

// The same places, by another name of this machine, which does not say that memory can be shared.
std::vector<WeightHolder> far(std::vector<WeightHolder> places) {
  for (WeightHolder& each : places) each.place.replace(0, std::string("tcp://127.0.0.1").size(), "tcp://0x7f000001");
  return places;
}

TEST(WeightsByPull, ComeUnderAnotherLayout) {
  const model::ModelConfig config = test::tiny_config();
  for (const char* from : {"dp1", "tp2", "pp2"})
    for (const char* to : {"dp1", "tp2"}) {
      Holders holders(config, from, at::kFloat);
      holders.publish(V{0});
      WeightSource source(config, model::family::parameters(config), holders.places(), kDeadlineS);
      for (int rank = 0; rank < model::parse_layout(to, "test").world(); ++rank) {
        Reader reader(config, to, rank, at::kFloat);
        EXPECT_TRUE(reader.fetch(source, V{0}, at::kFloat).is_whole);
        EXPECT_TRUE(at::equal(reader.values, reader.expected(V{0}, at::kFloat))) << from << " to " << to << " rank " << rank;
      }
      EXPECT_GT(holders.servers[0]->counts().mapped, 0) << "on one machine they are read in place";
    }
}

TEST(WeightsByPull, ComeInMessagesWhereMemoryIsNotShared) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "tp2", at::kFloat);
  holders.publish(V{3});
  WeightSource source(config, model::family::parameters(config), far(holders.places()), kDeadlineS);
  Reader reader(config, "dp1", 0, at::kFloat);
  EXPECT_TRUE(reader.fetch(source, V{3}, at::kFloat).is_whole);
  EXPECT_TRUE(at::equal(reader.values, reader.expected(V{3}, at::kFloat)));
  EXPECT_GT(source.bytes_received(), reader.values.nbytes());
  EXPECT_EQ(holders.servers[0]->counts().mapped, 0);
}

TEST(WeightsByPull, AreRoundedAsASwitchRoundsThem) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  holders.publish(V{0});
  WeightSource source(config, model::family::parameters(config), holders.places(), kDeadlineS);
  Reader reader(config, "dp1", 0, at::kBFloat16);
  EXPECT_TRUE(reader.fetch(source, V{0}, at::kBFloat16).is_whole);
  EXPECT_TRUE(at::equal(reader.values, reader.expected(V{0}, at::kFloat).to(at::kBFloat16)));
}

TEST(WeightsByPull, AnOlderVersionIsGone) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  WeightSource source(config, model::family::parameters(config), holders.places(), kDeadlineS);
  Reader reader(config, "dp1", 0, at::kFloat);
  Fetched none = reader.fetch(source, V{0}, at::kFloat);
  EXPECT_FALSE(none.is_whole);
  EXPECT_EQ(none.newest, V{-1});
  holders.publish(V{0});
  holders.publish(V{1});
  none = reader.fetch(source, V{0}, at::kFloat);
  EXPECT_FALSE(none.is_whole);
  EXPECT_EQ(none.newest, V{1});
  EXPECT_TRUE(reader.fetch(source, V{1}, at::kFloat).is_whole);
}

// Readers at work while one version after the other is published: what is whole is of one version.
TEST(WeightsByPull, AreNeverAMixture) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  holders.publish(V{0});
  std::atomic<int64_t> published = 0;
  std::vector<std::thread> readers;
  std::atomic<int64_t> whole = 0, wrong = 0;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      WeightSource source(config, model::family::parameters(config), holders.places(), kDeadlineS);
      Reader reader(config, "dp1", 0, at::kFloat);
      while (published < 60) {
        const V version{published.load()};
        if (!reader.fetch(source, version, at::kFloat).is_whole) continue;
        ++whole;
        wrong += !at::equal(reader.values, reader.expected(version, at::kFloat));
      }
    });
  for (int64_t version = 1; version <= 60; ++version) {
    holders.publish(V{version});
    published = version;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& each : readers) each.join();
  EXPECT_GT(whole, 0);
  EXPECT_EQ(wrong, 0);
}

TEST(WeightsByPull, OneCopyServesAllReadersOfAMachine) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  std::vector<std::unique_ptr<WeightSource>> sources;
  const auto all = model::family::parameters(config);
  for (int i = 0; i < 8; ++i) sources.push_back(std::make_unique<WeightSource>(config, all, holders.places(), kDeadlineS));
  Reader reader(config, "dp1", 0, at::kFloat);
  for (int64_t version = 0; version < 3; ++version) {
    holders.publish(V{version});
    for (const auto& source : sources) EXPECT_TRUE(reader.fetch(*source, V{version}, at::kFloat).is_whole);
  }
  const WeightServerCounts counts = holders.servers[0]->counts();
  EXPECT_EQ(counts.bytes_copied, 3 * static_cast<int64_t>(reader.values.nbytes()));
  EXPECT_EQ(counts.bytes_sent, 0);
  EXPECT_EQ(counts.mapped, 24);
}

// Readers that cannot map: the run gives each version to one of them, and those that have it give it to the others.
TEST(WeightsByPull, AreGivenOnceAndPassedOn) {
  constexpr int kReaders = 8;
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "tp2", at::kFloat);
  std::atomic<int64_t> wrong = 0;
  std::vector<std::unique_ptr<WeightServer>> passing;
  std::vector<std::unique_ptr<WeightSource>> sources;
  for (int i = 0; i < kReaders; ++i) {
    sources.push_back(std::make_unique<WeightSource>(config, model::family::parameters(config), far(holders.places()), kDeadlineS));
    passing.push_back(std::make_unique<WeightServer>(model::parameter_table(config, {}, 0), at::kFloat, "tcp://127.0.0.1:0"));
  }
  for (int64_t version = 0; version < 3; ++version) {
    holders.publish(V{version});
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kReaders; ++i)
      threads.emplace_back([&, i] {
        Reader reader(config, "dp1", 0, at::kFloat);
        wrong += !reader.fetch(*sources[i], V{version}, at::kFloat).is_whole;
        wrong += !at::equal(reader.values, reader.expected(V{version}, at::kFloat));
        if (i == 7) return sources[i]->tell(V{version});  // it passes on nothing
        passing[i]->publish(reader.values, V{version});
        sources[i]->tell(V{version}, far({{passing[i]->place(), {}, 0, at::kFloat}}).front());
      });
    for (std::thread& each : threads) each.join();
  }
  EXPECT_EQ(wrong, 0);
  int64_t sent = 0;
  for (const auto& server : holders.servers) sent += server->counts().bytes_sent;
  const int64_t copies = 3 * model::parameter_table(config, {}, 0).num_elements * 4;
  EXPECT_GE(sent, copies);
  EXPECT_LE(sent, copies + copies / 4) << "each version once; both ranks give what they share";
  EXPECT_EQ(holders.servers[0]->counts().sent_elsewhere, 3 * (kReaders - 1));
}

// The ranks of a layout want different parts: each part is given once, and passed on among those that want it.
TEST(WeightsByPull, PartsArePassedOnAmongRanksThatWantThem) {
  constexpr int kWorkers = 4;
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  struct RankOfWorker {
    RankOfWorker(const model::ModelConfig& config, int rank, const std::vector<WeightHolder>& run)
        : reader(config, "tp2", rank, at::kFloat),
          source(reader.table, model::family::parameters(config), run, {.deadline_s = kDeadlineS, .host = ""}) {}
    Reader reader;
    PassingSource source;
  };
  std::vector<std::unique_ptr<RankOfWorker>> ranks;
  for (int i = 0; i < 2 * kWorkers; ++i) ranks.push_back(std::make_unique<RankOfWorker>(config, i % 2, far(holders.places())));
  int64_t parts = 0;
  for (int i = 0; i < 2; ++i) parts += ranks[static_cast<size_t>(i)]->reader.values.nbytes();
  std::atomic<int64_t> wrong = 0;
  for (int64_t version = 0; version < 3; ++version) {
    holders.publish(V{version});
    std::vector<std::thread> threads;
    for (const auto& each : ranks)
      threads.emplace_back([&wrong, &rank = *each, version] {
        wrong += !rank.source.fetch(V{version}, rank.reader.values).is_whole;
        wrong += !at::equal(rank.reader.values, rank.reader.expected(V{version}, at::kFloat));
      });
    for (std::thread& each : threads) each.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(holders.servers[0]->counts().bytes_sent, 3 * parts) << "one copy of each part a version";
  EXPECT_EQ(holders.servers[0]->counts().sent_elsewhere, 3 * 2 * (kWorkers - 1));
}

TEST(WeightsByPull, OneThatPassesOnMayDie) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  holders.publish(V{0});
  std::string place;
  {
    WeightServer gone(model::parameter_table(config, {}, 0), at::kFloat, "tcp://127.0.0.1:0");
    place = gone.place();
  }
  const auto all = model::family::parameters(config);
  WeightSource first(config, all, far(holders.places()), kDeadlineS), second(config, all, far(holders.places()), kDeadlineS);
  Reader reader(config, "dp1", 0, at::kFloat);
  EXPECT_TRUE(reader.fetch(first, V{0}, at::kFloat).is_whole);
  first.tell(V{0}, {place, {}, 0, at::kFloat});
  for (int i = 0; i < 3; ++i) {
    reader.values.zero_();
    EXPECT_TRUE(reader.fetch(second, V{0}, at::kFloat).is_whole);
    EXPECT_TRUE(at::equal(reader.values, reader.expected(V{0}, at::kFloat)));
    second.tell(V{0}, {place, {}, 0, at::kFloat});
  }
}

TEST(WeightsByPull, OneThatHangsIsNotWaitedForLong) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "dp1", at::kFloat);
  holders.publish(V{0});
  const comm::ServerKeys keys = comm::make_keys();
  comm::Endpoint hangs = comm::Endpoint::at("tcp://127.0.0.1:0", keys);
  constexpr double kShortS = 4;
  const auto all = model::family::parameters(config);
  WeightSource first(config, all, far(holders.places()), kShortS), second(config, all, far(holders.places()), kShortS);
  Reader reader(config, "dp1", 0, at::kFloat);
  EXPECT_TRUE(reader.fetch(first, V{0}, at::kFloat).is_whole);
  first.tell(V{0}, far({{hangs.address() + " " + keys.public_key, {}, 0, at::kFloat}}).front());
  reader.values.zero_();
  EXPECT_TRUE(reader.fetch(second, V{0}, at::kFloat).is_whole);
  EXPECT_TRUE(at::equal(reader.values, reader.expected(V{0}, at::kFloat)));
}

TEST(WeightsByPull, AFetchThatNobodyWantsAnyMoreEnds) {
  const model::ModelConfig config = test::tiny_config();
  const comm::ServerKeys keys = comm::make_keys();
  comm::Endpoint hangs = comm::Endpoint::at("tcp://127.0.0.1:0", keys);
  WeightSource source(config, model::family::parameters(config), far({{hangs.address() + " " + keys.public_key, {}, 0, at::kFloat}}), 600);
  Reader reader(config, "dp1", 0, at::kFloat);
  std::thread stops([&] { source.stop(); });
  EXPECT_THROW((void)reader.fetch(source, V{0}, at::kFloat), PeerError);
  stops.join();
}

// One that took others for these, or whose memory is damaged, gives nobody what it has.
TEST(WeightsByPull, WhatIsPassedOnIsThatOfTheRun) {
  const model::ModelConfig config = test::tiny_config();
  for (const char* layout : {"dp1", "tp2"})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Holders holders(config, layout, dtype);
      holders.publish(V{0});
      WeightServer liar(model::parameter_table(config, {}, 0), dtype, "tcp://127.0.0.1:0");
      const auto all = model::family::parameters(config);
      WeightSource first(config, all, far(holders.places()), kDeadlineS), second(config, all, far(holders.places()), kDeadlineS);
      Reader reader(config, "dp1", 0, dtype);
      EXPECT_TRUE(reader.fetch(first, V{0}, dtype).is_whole);
      const at::Tensor right = reader.values.clone();
      reader.values[reader.values.numel() / 2] += 1;
      liar.publish(reader.values, V{0});
      first.tell(V{0}, far({{liar.place(), {}, 0, dtype}}).front());
      EXPECT_TRUE(reader.fetch(second, V{0}, dtype).is_whole);
      EXPECT_TRUE(at::equal(reader.values, right)) << layout;
      EXPECT_GT(liar.counts().bytes_sent, 0) << "it was asked";
    }
}

TEST(WeightsByPull, WhatIsNoRequestIsNotAnswered) {
  const model::ModelConfig config = test::tiny_config();
  Holders holders(config, "tp2", at::kFloat);
  holders.publish(V{0});
  const std::string& place = holders.servers[1]->place();
  comm::Endpoint line = comm::Endpoint::to(place.substr(0, place.find(' ')), place.substr(place.find(' ') + 1));
  const auto is_answered = [&](std::vector<std::byte> bytes) {
    line.send({{}, std::move(bytes)});
    return line.receive(0.3).has_value();
  };
  const NumberedBox all{0, Box::whole({config.vocab_size, config.hidden_size})};
  EXPECT_FALSE(is_answered(std::vector<std::byte>(100)));
  EXPECT_FALSE(is_answered(to_bytes(WeightsRequest{1, WeightsRequest::Ask::kBoxes, V{0}, at::kFloat, {all}}))) << "it has half of it";
  EXPECT_FALSE(is_answered(to_bytes(WeightsRequest{1, WeightsRequest::Ask::kBoxes, V{0}, at::kFloat, {{100'000, all.box}}})));
  EXPECT_FALSE(is_answered(to_bytes(WeightsRequest{1, WeightsRequest::Ask::kBoxes, V{0}, at::kFloat, {{-1, Box{{-5, 0}, {5, 1}}}}})));
  WeightSource source(config, model::family::parameters(config), holders.places(), kDeadlineS);
  Reader reader(config, "dp1", 0, at::kFloat);
  EXPECT_TRUE(reader.fetch(source, V{0}, at::kFloat).is_whole) << "it goes on";
}

TEST(WeightsByPull, AHolderThatIsGoneIsAnError) {
  const model::ModelConfig config = test::tiny_config();
  std::vector<WeightHolder> places;
  {
    Holders holders(config, "dp1", at::kFloat);
    places = holders.places();
  }
  WeightSource source(config, model::family::parameters(config), places, kDeadlineS);
  Reader reader(config, "dp1", 0, at::kFloat);
  EXPECT_THROW((void)reader.fetch(source, V{0}, at::kFloat), PeerError);
}

const model::LoraOptions kLora{3, 6};

// A rank that trains adapters: they depend on the version alone, the weights below them on nothing.
struct Trained {
  Trained(const model::ModelConfig& config, const std::string& layout, int rank, at::ScalarType dtype)
      : table(model::parameter_table(config, model::parse_layout(layout, "test"), rank)),
        values(arena.allocate("weights", {table.num_elements}, dtype)),
        lora(table, kLora, values, arena) {
    model::initialize_parameters(table, values, 1, 0.5);
    lora.start(1);
  }
  void update(V version) {
    for (const model::ParameterEntry& entry : lora.table().entries) {
      RandomStream random = model::stream_of(entry.parameter.name, static_cast<uint64_t>(value(version)) + 7);
      model::fill_box(entry, lora.table().view(lora.values(), entry), [&] { return 0.3 * random.normal(); });
    }
    lora.refresh();
  }
  device::Arena arena{"device"};
  model::ParameterTable table;
  at::Tensor values;
  model::Lora lora;
};

// Those of a layout, and what they publish: weights once, adapters of each version.
struct Trainers {
  Trainers(const model::ModelConfig& config, const std::string& layout_text, at::ScalarType dtype) {
    const model::Layout layout = model::parse_layout(layout_text, "test");
    for (int rank = 0; rank < layout.world(); ++rank) {
      ranks.push_back(std::make_unique<Trained>(config, layout_text, rank, dtype));
      base.push_back(std::make_unique<WeightServer>(ranks.back()->table, dtype, "tcp://127.0.0.1:0"));
      adapters.push_back(std::make_unique<WeightServer>(ranks.back()->lora.table(), at::kFloat, "tcp://127.0.0.1:0"));
      base_places.push_back({base.back()->place(), layout, rank, dtype});
      adapter_places.push_back({adapters.back()->place(), layout, rank, at::kFloat});
    }
  }
  void publish(V version, bool with_base) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank]->update(version);
      if (with_base) base[rank]->publish(ranks[rank]->values, V{0});
      adapters[rank]->publish(ranks[rank]->lora.values(), version);
    }
  }
  std::vector<std::unique_ptr<Trained>> ranks;
  std::vector<std::unique_ptr<WeightServer>> base, adapters;
  std::vector<WeightHolder> base_places, adapter_places;
};

TEST(AdaptersByPull, ComeUnderAnotherLayout) {
  const model::ModelConfig config = test::tiny_config();
  const std::vector<model::family::Parameter> which = model::lora_parameters(config, kLora);
  for (const char* from : {"dp1", "tp2", "pp2"})
    for (const char* to : {"dp1", "tp2", "pp2"}) {
      Trainers trainers(config, from, at::kFloat);
      trainers.publish(V{4}, false);
      WeightSource source(config, which, trainers.adapter_places, kDeadlineS);
      for (int rank = 0; rank < model::parse_layout(to, "test").world(); ++rank) {
        const model::ParameterTable table = model::parameter_table(config, model::parse_layout(to, "test"), rank, which);
        const at::Tensor values = at::zeros({table.num_elements}, at::kFloat);
        EXPECT_TRUE(source.fetch(V{4}, reshard::held_weights(table, values, at::kFloat), at::kFloat).is_whole);
        Trained expected(config, to, rank, at::kFloat);
        expected.update(V{4});
        EXPECT_TRUE(at::equal(values, expected.lora.values())) << from << " to " << to << " rank " << rank;
      }
    }
}

// What products read of them is the trainer's, bit for bit; in a worker of another dtype it is as that rounds.
TEST(AdaptersByPull, AreReadAsTheirTrainerReadsThem) {
  for (const model::ModelConfig& config : {test::tiny_config(), test::experts_config("deepseek_v3")})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Trainers trainers(config, "dp1", dtype);
      Trained& trained = *trainers.ranks[0];
      trainers.publish(V{2}, true);
      device::Arena arena{"device"};
      const at::Tensor base = arena.allocate("base", {trained.table.num_elements}, dtype);
      PassingSource model(trained.table, model::family::parameters(config), trainers.base_places, {.deadline_s = kDeadlineS});
      EXPECT_TRUE(model.fetch(V{0}, base).is_whole);
      EXPECT_TRUE(at::equal(base, trained.values));
      model::Lora mine(trained.table, kLora, base, arena), narrow(trained.table, kLora, base.to(at::kBFloat16), arena);
      PassingSource adapters(mine.table(), model::lora_parameters(config, kLora), trainers.adapter_places, {.deadline_s = kDeadlineS});
      for (const V version : {V{2}, V{3}}) {
        if (version != V{2}) trainers.publish(version, false);
        EXPECT_TRUE(adapters.fetch(version, mine.values()).is_whole);
        narrow.values().copy_(mine.values());
        mine.refresh(), narrow.refresh();
        const model::ModelParameters theirs = trained.lora.adapted(), here = mine.adapted(), rounded = narrow.adapted();
        for (size_t i = 0; i < theirs.layers.size(); ++i) {
          const auto &want = theirs.layers[i].output, &got = here.layers[i].output, &less = rounded.layers[i].output;
          EXPECT_TRUE(at::equal(got.a_RK, want.a_RK) && at::equal(got.b_NR, want.b_NR)) << config.family << " " << dtype;
          EXPECT_GT(want.b_NR.abs().max().item<double>(), 0);
          EXPECT_TRUE(at::equal(less.a_RK, want.a_RK.to(at::kBFloat16)) && at::equal(less.b_NR, want.b_NR.to(at::kBFloat16)));
        }
      }
    }
}

// By sockets: the weights once, then the adapters alone; and what one reader has, the next one gets from it.
TEST(AdaptersByPull, AVersionCostsTheAdaptersAlone) {
  const model::ModelConfig config = test::tiny_config();
  const std::vector<model::family::Parameter> which = model::lora_parameters(config, kLora);
  Trainers trainers(config, "dp1", at::kFloat);
  const model::ParameterTable &table = trainers.ranks[0]->table, &adapter_table = trainers.ranks[0]->lora.table();
  const auto bytes_of = [](const model::ParameterTable& of) {
    int64_t elements = 0;
    for (const model::ParameterEntry& entry : of.entries) elements += entry.box.num_elements();
    return elements * 4;
  };
  const PassingOptions options{.deadline_s = kDeadlineS, .host = ""};
  struct Replica {
    PassingSource model, adapters;
    at::Tensor base, values;
  };
  std::vector<std::unique_ptr<Replica>> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back(new Replica{PassingSource(table, model::family::parameters(config), far(trainers.base_places), options),
                                     PassingSource(adapter_table, which, far(trainers.adapter_places), options),
                                     at::zeros({table.num_elements}, at::kFloat), at::zeros({adapter_table.num_elements}, at::kFloat)});
  for (int64_t version = 0; version < 3; ++version) {
    trainers.publish(V{version}, version == 0);
    for (const auto& reader : readers) {
      if (version == 0) {
        EXPECT_TRUE(reader->model.fetch(V{0}, reader->base).is_whole);
        EXPECT_TRUE(at::equal(reader->base, trainers.ranks[0]->values));
      }
      EXPECT_TRUE(reader->adapters.fetch(V{version}, reader->values).is_whole);
      EXPECT_TRUE(at::equal(reader->values, trainers.ranks[0]->lora.values()));
    }
    const WeightServerCounts base = trainers.base[0]->counts(), adapters = trainers.adapters[0]->counts();
    EXPECT_EQ(base.bytes_copied, table.num_elements * 4);
    EXPECT_EQ(base.bytes_sent, bytes_of(table));
    EXPECT_EQ(base.sent_elsewhere, 1);
    EXPECT_EQ(adapters.bytes_copied, (version + 1) * adapter_table.num_elements * 4);
    EXPECT_EQ(adapters.bytes_sent, (version + 1) * bytes_of(adapter_table));
    EXPECT_EQ(adapters.sent_elsewhere, version + 1);
  }
}

}  // namespace
}  // namespace tandem::pull
