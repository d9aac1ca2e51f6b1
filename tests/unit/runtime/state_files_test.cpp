// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "../../error_text.h"
#include "../../latest_checkpoint.h"
#include "../../temporary_folder.h"
#include "tandem/policy/actor.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/model_export.h"
#include "tandem/comm/launch.h"
#include "tandem/policy/start_model.h"

namespace tandem::runtime {
namespace {

using test::error_of;
namespace fs = std::filesystem;

constexpr double kRankDeadline_s = 20;

// A rank of a run as far as its files are concerned.
struct Rank {
  policy::Rank rank;
  policy::Actor actor;
  const std::array<policy::TrainedRole*, 1> roles{&actor.trained()};
  StateFiles files;

  Rank(const config::RunConfig& config, comm::Group& world, const std::string& run_dir, const std::string& model_dir)
      : rank(config, config::layouts_of(config, world.size()), world),
        actor(rank.parts, model::read_config(model_dir), config.train),
        files(rank.parts, run_dir, model_dir) {
    files.load_start(actor.trained());
  }
};

class StateFilesTest : public ::testing::Test {
 protected:
  StateFilesTest() {
    config_.model.init_hidden = 32;
    config_.model.init_intermediate = 64;
    config_.model.init_layers = 1;
    config_.model.lora.rank = 2;
  }

  std::string model(const std::string& name, int64_t seed) const {
    policy::write_random_model(folder_ / name, config_.model, seed);
    return folder_ / name;
  }
  std::string run_dir() const { return folder_ / "run"; }
  void save(const std::string& model_dir, const RunState& state) {
    Rank rank(config_, *alone_, run_dir(), model_dir);
    rank.files.save(state, rank.roles);
  }
  RunState load(const std::string& model_dir, bool needs_start = true) {
    Rank rank(config_, *alone_, run_dir(), model_dir);
    return rank.files.load(rank.roles, {needs_start, {}}).value();
  }

  const test::TemporaryFolder folder_{"state_files"};
  config::RunConfig config_;
  std::unique_ptr<comm::Group> alone_ = comm::single();
};

RunState at_step(int64_t step) {
  RunState state;
  state.step = step;
  return state;
}

TEST_F(StateFilesTest, AdaptersGoOnNoStartButTheirOwn) {
  const std::string first = model("first", 1), other = model("other", 2), link = folder_ / "latest";
  fs::create_directory_symlink("first", link);
  save(link, at_step(3));
  EXPECT_EQ(load(link).step, 3);
  fs::copy(first, folder_ / "moved", fs::copy_options::recursive);
  EXPECT_EQ(load(folder_ / "moved").step, 3) << "the same weights elsewhere";
  const std::string error = error_of([&] { load(other); });
  EXPECT_NE(error.find("checkpoint/step_3"), std::string::npos) << error;
  EXPECT_NE(error.find(first), std::string::npos) << error;
  EXPECT_NE(error.find(other + " has others"), std::string::npos) << error;
  EXPECT_NE(error.find("--model " + first), std::string::npos) << error;
  fs::remove(link);
  fs::create_directory_symlink("other", link);
  EXPECT_NE(error_of([&] { load(link); }).find(other + " has others"), std::string::npos) << "a link that moved";
  policy::write_random_model(first, config_.model, 5);
  EXPECT_NE(error_of([&] { load(first); }).find("they have changed since"), std::string::npos);
}

bool can_compute(const std::string& products, c10::ScalarType dtype) {
  return model::kernel::cpu::backend().product.can_compute(*model::kernel::parse_choice(products), dtype);
}

// What a context has after a run with these products; measuring never gives forward and input gradient to different libraries.
TEST_F(StateFilesTest, ProductsOfACheckpointAreKeptWhereTheyHold) {
  const std::string kept = "onednn blas blas float", half = "onednn onednn onednn half";
  if (!can_compute(kept, c10::kFloat))
    GTEST_SKIP() << "libtorch takes oneDNN's fp32 products not on this processor: there is one choice";
  const auto after = [&](const model::Products& before) {
    policy::Compute compute(config_, *alone_);
    compute.adopt(before);
    return compute.products();
  };
  model::Products before = policy::Compute(config_, *alone_).products();
  before.training = before.rollout = kept;
  EXPECT_EQ(after(before).training, kept);
  EXPECT_EQ(after(before).rollout, kept);
  EXPECT_EQ(policy::Compute(config_, *alone_, before).products().training, kept) << "from a warm start";
  model::Products elsewhere = before;
  elsewhere.rows = "abacus";
  EXPECT_NE(after(elsewhere).training, kept);
  EXPECT_NE(policy::Compute(config_, *alone_, elsewhere).products().training, kept);

  model::Products in_half = before;
  in_half.training_dtype = "bfloat16";
  EXPECT_NE(after(in_half).training, kept) << "what one dtype was computed with says nothing of another";

  config_.rollout.dtype = "bfloat16";
  before.rows = policy::Compute(config_, *alone_).products().rows;
  EXPECT_EQ(after(before).training, kept);
  before.rollout = "onednn onednn onednn float", before.rollout_dtype = "bfloat16";
  EXPECT_EQ(after(before).rollout, before.rollout);
  if (can_compute(half, c10::kBFloat16)) config_.rollout.products = half;
  config_.model.products = "blas onednn blas float";
  EXPECT_EQ(after(before).training, config_.model.products) << "an option says other";
  if (can_compute(half, c10::kBFloat16)) {
    EXPECT_EQ(after(before).rollout, half);
  }
}

TEST_F(StateFilesTest, AWholeModelNeedsItsStartOnlyAsReference) {
  config_.model.lora.rank = 0;
  const std::string first = model("first", 1), other = model("other", 2);
  save(first, at_step(1));
  EXPECT_EQ(load(other, false).step, 1);
  EXPECT_NE(error_of([&] { load(other); }).find("a reference belong to one start"), std::string::npos);
}

TEST_F(StateFilesTest, TheStartOfTwoRanksIsThatOfBoth) {
  config_.model.init_heads = 4;
  const std::string first = model("first", 1), other = model("other", 2);
  config_.parallel.train_layout = "tp2";
  std::string errors[2];
  comm::run_local(2, kRankDeadline_s, [&](comm::Group& world) {
    Rank rank(config_, world, run_dir(), first);
    rank.files.save(at_step(1), rank.roles);
    EXPECT_EQ(rank.files.load(rank.roles, {true, {}})->step, 1);
    Rank stranger(config_, world, run_dir(), other);
    errors[world.rank()] = error_of([&] { stranger.files.load(stranger.roles, {true, {}}); });
  });
  EXPECT_NE(errors[0].find(other + " has others"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0], errors[1]);
}

TEST_F(StateFilesTest, MetricsThatAreNoNumbersComeBack) {
  const std::string first = model("first", 1);
  const double infinite = std::numeric_limits<double>::infinity();
  RunState state = at_step(2);
  state.unconcluded = {{"actor/ratio_max", infinite}, {"a", -infinite}, {"b", std::nan("")}, {"c", 0.1}};
  save(first, state);
  RunState found = load(first);
  EXPECT_TRUE(std::isnan(found.unconcluded.at("b")));
  found.unconcluded.erase("b"), state.unconcluded.erase("b");
  EXPECT_EQ(found.unconcluded, state.unconcluded);
}

// As another program would have left it: the manifest goes with the file.
void write_format(const std::string& run_dir, int64_t step, const nlohmann::json& number) {
  checkpoint::CheckpointWriter writer(run_dir + "/checkpoint", 0);
  fs::rename(writer.path(step), writer.tmp_path(step));
  const std::string path = writer.tmp_path(step) + "/state.json";
  nlohmann::json state = read_json_object(path);
  if (number.is_null()) state.erase("format");
  else state["format"] = number;
  write_file(path, state.dump());
  fs::remove(writer.tmp_path(step) + "/manifest.json");
  const std::string tmp = writer.tmp_path(step);
  writer.commit(step, checkpoint::sums_of(tmp, checkpoint::files_of(tmp)));
}

TEST_F(StateFilesTest, AStateWithoutANumberGoesOn) {
  const std::string first = model("first", 1);
  save(first, at_step(2));
  EXPECT_EQ(read_json_object(run_dir() + "/checkpoint/step_2/state.json").at("format"), 1);
  write_format(run_dir(), 2, nullptr);
  EXPECT_EQ(load(first).step, 2);
  EXPECT_FALSE(products_of_run(run_dir(), *alone_).training.empty());
}

TEST_F(StateFilesTest, AStateOfANewerFormatIsRefusedByName) {
  const std::string first = model("first", 1);
  save(first, at_step(2));
  write_format(run_dir(), 2, 7);
  const std::string want = "step_2/state.json: has format 7 (this program reads 1, and files without a number";
  const std::string error = error_of([&] { load(first); });
  EXPECT_NE(error.find(want), std::string::npos) << error;
  EXPECT_NE(error_of([&] { products_of_run(run_dir(), *alone_); }).find(want), std::string::npos);
}

TEST_F(StateFilesTest, RankZeroChoosesTheCheckpoint) {
  const std::string first = model("first", 1);
  std::optional<RunState> found[2];
  comm::run_local(2, kRankDeadline_s, [&](comm::Group& world) {
    Rank writer(config_, world, run_dir(), first);
    writer.files.save(at_step(4), writer.roles);
    // To rank 1 the folder looks empty, as a slow network file system may show it.
    Rank reader(config_, world, world.rank() == 0 ? run_dir() : folder_ / "elsewhere", first);
    found[world.rank()] = reader.files.load(reader.roles, {true, {}});
  });
  for (const auto& state : found) {
    ASSERT_TRUE(state);
    EXPECT_EQ(state->step, 4);
  }
}

TEST_F(StateFilesTest, AnExportIsMadeOfWhatStoodThereAtTheStart) {
  const std::string first = model("first", 1), own = folder_ / "own.jinja", link = folder_ / "latest";
  write_file(own, "{{ messages }}");
  config_.data.chat_template = own;
  fs::create_directory_symlink("first", link);
  const std::string tokenizer = read_file(first + "/tokenizer.json");
  Rank rank(config_, *alone_, run_dir(), link);
  fs::remove(first + "/tokenizer.json");
  fs::remove(own);
  fs::remove(link);
  rank.files.exporter().write(folder_ / "out", rank.actor.trained(), *alone_);
  EXPECT_EQ(read_file(folder_ / "out/hf/tokenizer.json"), tokenizer);
  EXPECT_EQ(read_file(folder_ / "out/hf/chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(read_json_object(folder_ / "out/adapter/adapter_config.json")["base_model_name_or_path"], fs::canonical(first).string());
}

TEST_F(StateFilesTest, ATokenizerFileThatCannotBeReadIsNamed) {
  const std::string first = model("first", 1);
  fs::create_symlink("nowhere", first + "/generation_config.json");
  EXPECT_NE(error_of([&] { checkpoint::tokenizer_files(first); }).find("generation_config.json: cannot be read"), std::string::npos);
}

TEST_F(StateFilesTest, AnExportHasItsWeightsLast) {
  const std::string first = model("first", 1);
  write_file(folder_ / "own.jinja", "{{ messages }}");
  config_.data.chat_template = folder_ / "own.jinja";
  Rank rank(config_, *alone_, run_dir(), first);
  const auto fails = [&](const std::string& out, const std::string& in_the_way) {
    fs::create_directories(folder_ / (out + in_the_way));
    EXPECT_THROW(rank.files.exporter().write(folder_ / out, rank.actor.trained(), *alone_), PeerError) << in_the_way;
    EXPECT_FALSE(policy::holds_model(folder_ / (out + "/hf"))) << in_the_way;
  };
  fails("a", "/hf/chat_template.jinja");
  fails("b", "/adapter/adapter_model.safetensors");
  rank.files.exporter().write(folder_ / "c", rank.actor.trained(), *alone_);
  EXPECT_TRUE(policy::holds_model(folder_ / "c/hf"));
}

// Half of a matrix of 720,896 bytes on each rank: 1 MiB holds the halves, but not the whole that rank 0 makes of them, too.
TEST_F(StateFilesTest, WithoutRoomToGatherAllRanksSaySo) {
  config_.model.init_hidden = 256;
  config_.model.init_intermediate = 704;
  config_.model.init_heads = 4;
  const std::string first = model("first", 1);
  config_.parallel.train_layout = "tp2";
  config_.memory.host_mib = 1;
  std::string errors[2];
  comm::run_local(2, kRankDeadline_s, [&](comm::Group& world) {
    Rank rank(config_, world, run_dir(), first);
    errors[world.rank()] = error_of<PeerError>([&] { rank.files.save(at_step(1), rank.roles); });
  });
  EXPECT_NE(errors[0].find("checkpoint of step 1: rank 0: memory.host_mib"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(fs::is_empty(run_dir() + "/checkpoint"));
}

std::map<std::string, std::string> contents_of(const std::string& checkpoint) {
  std::map<std::string, std::string> files;
  for (const std::string& name : checkpoint::files_of(checkpoint)) files[name] = read_file(checkpoint + "/" + name, INT64_MAX);
  return files;
}

// What a run saves while it waits, and then behind it, where every number of the run changes as soon as it may.
void expect_same_bits(const config::RunConfig& config, int ranks, const std::string& run_dir, const std::string& start) {
  comm::run_local(ranks, kRankDeadline_s, [&](comm::Group& world) {
    Rank rank(config, world, run_dir, start);
    RunState state = at_step(1);
    state.queue.assign(1000, std::byte{7});
    rank.files.save(state, rank.roles);
    state.step = 2;
    rank.files.save_behind(state, rank.roles);
    state.queue.assign(1000, std::byte{8});
    rank.files.let_go();
    policy::TrainedRole& role = *rank.roles[0];
    role.model().values().fill_(3);
    if (role.lora()) role.trainer().lora()->values().fill_(3);
    for (const char* name : {"m", "v"}) role.trainer().optimizer().state().tensor(name).fill_(5);
    const std::optional<Written> written = rank.files.wait();
    ASSERT_TRUE(written);
    EXPECT_EQ(written->step, 2);
    EXPECT_EQ(rank.files.last_saved_step(), 2);
    EXPECT_EQ(rank.rank.memory.host.bytes("checkpoint"), 0) << "what was gathered or copied goes";
  });
  auto waited = contents_of(run_dir + "/checkpoint/step_1"), behind = contents_of(run_dir + "/checkpoint/step_2");
  for (const char* name : {"state.json", "manifest.json"}) EXPECT_EQ(waited.erase(name) + behind.erase(name), 2u);
  ASSERT_GE(waited.size(), 4u);
  for (const auto& [name, bytes] : waited) EXPECT_TRUE(behind.contains(name) && behind.at(name) == bytes) << name;
  EXPECT_EQ(waited.size(), behind.size());
  EXPECT_EQ(checkpoint::manifest_fault(run_dir + "/checkpoint/step_2"), "");
}

TEST_F(StateFilesTest, WhatIsWrittenBehindIsTheStateAtTheCallBitForBit) {
  config_.model.init_heads = 4;
  config_.model.init_layers = 2;
  const std::string first = model("first", 1);
  struct Case {
    const char *name, *layout, *dtype;
    int64_t lora_rank;
    bool swap;
  };
  for (const Case& c : {Case{"one", "dp1", "float32", 0, false}, {"dp2", "dp2", "float32", 0, false}, {"half", "dp2", "bfloat16", 0, false},
                        {"tp2", "tp2", "bfloat16", 0, false}, {"pp2", "pp2", "float32", 0, false}, {"lora", "tp2", "float32", 2, false},
                        {"swap", "dp2", "bfloat16", 0, true}}) {
    SCOPED_TRACE(c.name);
    config_.parallel.train_layout = c.layout;
    config_.model.dtype = c.dtype;
    config_.model.lora.rank = c.lora_rank;
    config_.train.swap_optimizer = c.swap;
    expect_same_bits(config_, c.layout == std::string("dp1") ? 1 : 2, folder_ / c.name, first);
  }
}

TEST_F(StateFilesTest, OneIsWrittenAtATimeAndTheEndWaits) {
  const std::string first = model("first", 1);
  {
    Rank rank(config_, *alone_, run_dir(), first);
    for (int64_t step : {1, 2, 3}) rank.files.save_behind(at_step(step), rank.roles);
    EXPECT_EQ(rank.files.last_saved_step(), 2);
  }
  EXPECT_EQ(load(first).step, 3);
  EXPECT_EQ(fs::read_symlink(run_dir() + "/checkpoint/latest"), "step_3");
  Rank rank(config_, *alone_, run_dir(), first);
  EXPECT_FALSE(rank.files.look()) << "nothing is written";
  rank.files.save_behind(at_step(4), rank.roles);
  std::optional<Written> seen;
  while (!seen) seen = rank.files.look();
  EXPECT_EQ(seen->step, 4);
  EXPECT_FALSE(rank.files.look());
  rank.files.save_behind(at_step(5), rank.roles);
  rank.files.save(at_step(6), rank.roles);
  EXPECT_EQ(rank.files.last_saved_step(), 6);
}

// A folder stands where a file of a rank is to be written.
SaveSamples in_the_way_of(const std::string& name) {
  return [name](const std::string& samples) { fs::create_directories(fs::path(samples).parent_path() / name); };
}

TEST_F(StateFilesTest, AWriteThatFailsBehindIsToldToAllAndKeepsTheCheckpointBefore) {
  const std::string first = model("first", 1);
  config_.model.lora.rank = 0;
  config_.parallel.train_layout = "dp2";
  for (const std::string file : {"optimizer_rank0.safetensors.tmp", "optimizer_rank1.safetensors.tmp", "hf/model.safetensors.tmp",
                                 "hf/config.json.tmp", "state.json.tmp", "optimizer_rank1.safetensors/x", "manifest.json.tmp"}) {
    SCOPED_TRACE(file);
    fs::remove_all(run_dir());
    std::string errors[2];
    comm::run_local(2, kRankDeadline_s, [&](comm::Group& world) {
      Rank rank(config_, world, run_dir(), first);
      rank.files.save_behind(at_step(1), rank.roles);
      rank.files.save_behind(at_step(2), rank.roles, in_the_way_of(file));
      errors[world.rank()] = error_of<PeerError>([&] {
        while (!rank.files.look()) continue;
      });
      EXPECT_EQ(rank.files.last_saved_step(), 1);
      if (world.rank() == 0) {
        EXPECT_EQ(checkpoint::find_latest(run_dir() + "/checkpoint")->step, 1);
        EXPECT_FALSE(fs::exists(run_dir() + "/checkpoint/step_2.tmp"));
      }
      world.barrier();
      // As at the end of a run: what failed is taken the place of.
      rank.files.save_behind(at_step(3), rank.roles, in_the_way_of(file));
      EXPECT_FALSE(rank.files.settle());
      rank.files.save(at_step(3), rank.roles);
      EXPECT_EQ(rank.files.last_saved_step(), 3);
    });
    EXPECT_EQ(errors[0].find("checkpoint of step 2: rank "), 0u) << errors[0];
    EXPECT_NE(errors[0].find("that of step 1 is there"), std::string::npos) << errors[0];
    EXPECT_EQ(errors[0], errors[1]);
  }
}

// The writers of the others end with the rank's own, and nothing of the attempt is left.
TEST_F(StateFilesTest, ARankThatFailsWhileFilesAreWrittenHoldsNobodyUp) {
  const std::string first = model("first", 1);
  config_.parallel.train_layout = "dp2";
  for (const int victim : {0, 1}) {
    const std::string error = error_of([&] {
      comm::run_local(2, kRankDeadline_s, [&](comm::Group& world) {
        Rank rank(config_, world, run_dir(), first);
        rank.files.save_behind(at_step(victim + 1), rank.roles);
        if (world.rank() == victim) throw UserError("the reward", "fails", "");
        world.barrier();
      });
    });
    EXPECT_NE(error.find("the reward"), std::string::npos) << error;
    EXPECT_EQ(checkpoint::find_latest(run_dir() + "/checkpoint")->step, victim + 1);
  }
}

}  // namespace
}  // namespace tandem::runtime
