// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/optimizer_files.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <tuple>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "../../tensor_file.h"
#include "../../tiny_model.h"
#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/model/weight_checksum.h"
#include "tandem/train/optimizer.h"

namespace tandem::policy {
namespace {

using test::error_of;
namespace fs = std::filesystem;

policy::Piece random_piece(RandomStream& random, const std::vector<int64_t>& shape, int64_t at) {
  policy::Piece p{{"w", shape, Box::whole(shape)}, 0, 0, at};
  for (size_t d = 0; d < shape.size(); ++d) {
    p.tensor.box.begin[d] = random.below(shape[d]);
    p.tensor.box.end[d] = p.tensor.box.begin[d] + 1 + random.below(shape[d] - p.tensor.box.begin[d]);
  }
  p.begin = random.below(p.tensor.box.num_elements());
  p.end = p.begin + 1 + random.below(p.tensor.box.num_elements() - p.begin);
  return p;
}

at::Tensor part(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.begin.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
  return whole;
}

// The elements of a piece, out of the whole tensor.
at::Tensor elements(const at::Tensor& whole, const policy::Piece& p) {
  return part(whole, p.tensor.box).reshape(-1).narrow(0, p.begin, p.end - p.begin);
}

TEST(StatePieces, ARangeIsAtMostThreeBoxes) {
  const uint64_t seed = 7;
  RandomStream random(seed, 1);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(join_text("seed ", seed, ", case ", i));
    const std::vector<int64_t> shape = i % 3 == 0 ? std::vector<int64_t>{20} : std::vector<int64_t>{7, 5};
    const policy::Piece p = random_piece(random, shape, 0);
    const std::vector<Box> boxes = policy::boxes_of(p);
    EXPECT_LE(boxes.size(), i % 3 == 0 ? 1u : 3u);
    at::Tensor whole = at::zeros(shape, at::kLong), want = at::zeros(shape, at::kLong);
    for (const Box& box : boxes) part(whole, box).add_(1);
    at::Tensor flat = at::zeros({p.tensor.box.num_elements()}, at::kLong);
    flat.narrow(0, p.begin, p.end - p.begin).fill_(1);
    part(want, p.tensor.box).copy_(flat.view(p.tensor.box.shape()));
    EXPECT_TRUE(at::equal(whole, want));
  }
}

TEST(StatePieces, RunsOfACommonBoxMoveItsElementsAlone) {
  const uint64_t seed = 8;
  RandomStream random(seed, 1);
  int met = 0;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(join_text("seed ", seed, ", case ", i));
    const std::vector<int64_t> shape = i % 3 == 0 ? std::vector<int64_t>{20} : std::vector<int64_t>{7, 5};
    const at::Tensor whole = at::arange(1, Box::whole(shape).num_elements() + 1, at::kLong).view(shape);
    const policy::Piece source = random_piece(random, shape, 13), wanted = random_piece(random, shape, 0);
    at::Tensor stored = at::full({13 + source.end - source.begin}, -1, at::kLong), got = at::zeros({wanted.end - wanted.begin}, at::kLong);
    stored.narrow(0, 13, source.end - source.begin).copy_(elements(whole, source));
    at::Tensor in_both = at::zeros(shape, at::kLong);
    for (const Box& a : policy::boxes_of(source))
      for (const Box& b : policy::boxes_of(wanted))
        if (const auto common = intersect(a, b)) {
          ++met;
          part(in_both, *common).copy_(part(whole, *common));
          for (const policy::PieceRun& run : policy::runs_of(source, wanted, *common))
            got.narrow(0, run.to, run.count).copy_(stored.narrow(0, run.from, run.count));
        }
    EXPECT_TRUE(at::equal(got, elements(in_both, wanted)));
  }
  EXPECT_GT(met, 100);
  const policy::Piece left{{"w", {4, 6}, {{0, 0}, {4, 3}}}, 0, 12, 0}, all{{"w", {4, 6}, {{0, 0}, {4, 6}}}, 0, 24, 0};
  EXPECT_EQ(policy::runs_of(all, all, all.tensor.box).size(), 1u) << "rows that follow one another are one run";
  EXPECT_EQ(policy::runs_of(left, all, left.tensor.box).size(), 4u);
}

TEST(StatePieces, AListComesBackAndADamagedOneIsNamed) {
  const std::vector<policy::Piece> pieces = {{{"a", {4, 6}, {{0, 3}, {4, 6}}}, 2, 9, 5}, {{"b", {9}, {{0}, {9}}}, 0, 9, 12}};
  const std::string text = to_text(pieces);
  const std::vector<policy::Piece> read = policy::read_pieces(text, 21, "here");
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read[0].tensor.box, pieces[0].tensor.box);
  EXPECT_NE(error_of([&] { policy::read_pieces(text, 20, "here"); }).find("here: has an impossible piece of b"), std::string::npos);
  const char* const damaged[] = {"", "[[]]", "{}x", R"([["a",[4],[0],[5],0,1,0]])", R"([["a",[4],[0,0],[4,4],0,1,0]])",
                                 R"([["a",[4],[0],[4],3,2,0]])"};
  for (const char* wrong : damaged)
    EXPECT_THROW(policy::read_pieces(wrong, 100, "here"), UserError) << wrong;
}

// A number for each element of a state, whoever has it.
at::Tensor made_up(const std::string& state, const train::StatePiece& p) {
  const Box& box = p.entry->box;
  const int64_t start = 1000 * static_cast<int64_t>(p.entry->parameter.name.size()) + 100 * state.front();
  const at::Tensor whole = at::arange(start, start + Box::whole(p.entry->parameter.shape).num_elements(), at::kFloat);
  return part(whole.view(p.entry->parameter.shape), box).reshape(-1).narrow(0, p.begin, p.end - p.begin);
}

// An optimizer without a decoder.
struct Rank {
  comm::Mesh mesh;
  device::Arena arena{"device"};
  model::ParameterTable table;
  at::Tensor values, grads;
  train::Optimizer optimizer;

  Rank(const model::Layout& layout, const model::ModelConfig& config, c10::ScalarType dtype, comm::Group& world)
      : mesh(world, model::mesh_sizes(layout)),
        table(model::parameter_table(config, layout, world.rank())),
        values(arena.allocate("weights", {table.num_elements}, dtype)),
        grads(arena.allocate("gradients", {table.num_elements}, at::kFloat)),
        optimizer({.state = {.table = table, .kernels = model::kernel::cpu::backend().update, .values = values, .arena = arena},
                   .grads = grads,
                   .ranks = {.world = &world,
                             .data = &mesh.along(comm::Axis::kData),
                             .expert_data = &mesh.along(comm::Axis::kExpertData),
                             .tp = &mesh.along(comm::Axis::kTp)},
                   .bucket_bytes = 20'000}) {}
};

using Body = std::function<void(Rank& rank, comm::Group& world)>;
void on_all(const std::string& layout_text, const model::ModelConfig& config, c10::ScalarType dtype, const Body& body) {
  const model::Layout layout = model::parse_layout(layout_text, "layout");
  model::check_layout(layout, config, model::Use::kTraining, "layout");
  comm::run_local(layout.world(), 60, [&](comm::Group& world) {
    Rank rank(layout, config, dtype, world);
    body(rank, world);
  });
}

void save(const std::string& dir, const std::string& layout, const model::ModelConfig& config, c10::ScalarType dtype = at::kFloat) {
  fs::create_directories(dir);
  on_all(layout, config, dtype, [&](Rank& rank, comm::Group& world) {
    rank.optimizer.restore(3, [](const auto& name, const auto& piece, at::Tensor to) { to.copy_(made_up(name, piece)); });
    policy::optimizer_writer(world.rank(), rank.optimizer.state())(dir);
  });
}

void load(const std::string& dir, int num_ranks, const std::string& layout, const model::ModelConfig& config,
          c10::ScalarType dtype = at::kFloat) {
  on_all(layout, config, dtype, [&](Rank& rank, comm::Group& world) {
    policy::OptimizerFiles files(dir, num_ranks, world.rank());
    rank.optimizer.restore(3, [&](const auto& name, const auto& piece, const at::Tensor& to) { files.read(name, piece, to); });
    int64_t checked = 0;
    for (const std::string& name : train::OptimizerState::names()) {
      const at::Tensor state = rank.optimizer.state().tensor(name);
      for (const train::StatePiece& p : rank.optimizer.state().pieces()) {
        EXPECT_TRUE(at::equal(state.narrow(0, p.at, p.end - p.begin), made_up(name, p))) << name << " of " << p.entry->parameter.name;
        checked += p.end - p.begin;
      }
    }
    EXPECT_GT(checked, 1000);
  });
}

int world_of(const std::string& layout) { return model::parse_layout(layout, "layout").world(); }

class OptimizerFilesTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_{"optimizer_files"};
};

TEST_F(OptimizerFilesTest, AnyLayoutReadsWhatAnyOtherWrote) {
  const std::vector<std::string> dense = {"", "dp4", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,pp2,vpp2", "dp3"};
  const std::vector<std::string> experts = {"", "dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "dp2,tp2,pp2,ep4"};
  for (const char* family : {"qwen2", "qwen3_moe", "deepseek_v3"}) {
    model::ModelConfig config = family == std::string("qwen2") ? test::tiny_config() : test::experts_config(family);
    config.num_layers = 4;
    config.vocab_size = 61;  // tp cuts it unevenly
    const auto& layouts = config.moe.num_experts > 0 ? experts : dense;
    for (const std::string& from : layouts) {
      const std::string dir = folder_ / (std::string(family) + from);
      save(dir, from, config);
      for (const std::string& to : layouts) {
        SCOPED_TRACE(join_text(family, ": ", from, " to ", to));
        load(dir, world_of(from), to, config);
      }
    }
  }
}

TEST_F(OptimizerFilesTest, OneDtypeReadsWhatTheOtherWrote) {
  save(folder_ / "half", "dp2", test::tiny_config(), at::kBFloat16);
  load(folder_ / "half", 2, "tp2", test::tiny_config(), at::kBFloat16);
  load(folder_ / "half", 2, "tp2", test::tiny_config(), at::kFloat);
}

TEST_F(OptimizerFilesTest, UnderTheSameLayoutARankReadsItsOwnFile) {
  const std::string dir = folder_ / "same";
  save(dir, "dp2,tp2", test::tiny_config());
  on_all("dp2,tp2", test::tiny_config(), at::kFloat, [&](Rank& rank, comm::Group& world) {
    const std::string mine = folder_ / join_text("rank", world.rank()), file = join_text("/optimizer_rank", world.rank(), ".safetensors");
    fs::create_directories(mine);
    fs::copy_file(dir + file, mine + file);
    policy::OptimizerFiles files(mine, 4, world.rank());
    rank.optimizer.restore(3, [&](const auto& name, const auto& piece, const at::Tensor& to) { files.read(name, piece, to); });
  });
}

TEST_F(OptimizerFilesTest, WhatIsMissingIsNamed) {
  const std::string dir = folder_ / "dir";
  save(dir, "dp2", test::tiny_config());
  const auto fault = [&](const model::ModelConfig& config, int num_ranks) { return error_of([&] { load(dir, num_ranks, "", config); }); };
  EXPECT_NE(fault(test::tiny_config(), 1).find("has no optimizer state of model."), std::string::npos) << "a rank's file is not looked at";
  model::ModelConfig deeper = test::tiny_config(), wider = test::tiny_config();
  deeper.num_layers = 3;
  wider.intermediate_size = 64;
  EXPECT_NE(fault(deeper, 2).find("has no optimizer state of model.layers.2."), std::string::npos) << fault(deeper, 2);
  EXPECT_NE(fault(wider, 2).find("has another shape of model.layers.0.mlp.gate_proj.weight"), std::string::npos) << fault(wider, 2);
  const std::string file = dir + "/optimizer_rank1.safetensors";
  checkpoint::write_safetensors(file, {{"m", at::zeros({4})}});
  EXPECT_NE(fault(test::tiny_config(), 2).find("optimizer_rank1.safetensors: has no list of the pieces"), std::string::npos);
  fs::remove(file);
  EXPECT_NE(fault(test::tiny_config(), 2).find("optimizer_rank1.safetensors"), std::string::npos);
}

TEST_F(OptimizerFilesTest, AListOfANewerFormatIsRefusedAndOneWithoutANumberRead) {
  const std::string dir = folder_ / "format", path = dir + "/optimizer_rank0.safetensors";
  save(dir, "", test::tiny_config());
  const auto rewrite = [&](const std::string& number) {
    const checkpoint::SafetensorsFile file(path);
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : train::OptimizerState::names()) tensors[name] = file.view(name).clone();
    std::map<std::string, std::string> metadata = file.metadata();
    EXPECT_TRUE(metadata.contains("pieces_format"));
    if (number.empty()) metadata.erase("pieces_format");
    else metadata["pieces_format"] = number;
    checkpoint::write_safetensors(folder_ / "rewritten", tensors, metadata);
    fs::rename(folder_ / "rewritten", path);
  };
  for (const std::string number : {"2", "x"}) {
    rewrite(number);
    const std::string fault = error_of([&] { load(dir, 1, "", test::tiny_config()); });
    EXPECT_NE(fault.find("optimizer_rank0.safetensors: has format " + std::string(number == "2" ? "2" : "that is no number")),
              std::string::npos) << fault;
    EXPECT_NE(fault.find("this program reads 1"), std::string::npos) << fault;
  }
  rewrite("");
  load(dir, 1, "", test::tiny_config());
}

TEST(WeightChecksum, IsTheSameUnderEveryLayoutAndTellsWeightsApart) {
  for (const char* family : {"qwen2", "deepseek_v3"}) {
    model::ModelConfig config = family == std::string("qwen2") ? test::tiny_config() : test::experts_config(family);
    config.num_layers = 4;
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto checksum = [&](const std::string& layout, double change) {
        std::string text;
        on_all(layout, config, dtype, [&](Rank& rank, comm::Group& world) {
          model::initialize_parameters(rank.table, rank.values, 5, 0.3);
          const model::ParameterEntry& last = rank.table.entries.back();
          if (change != 0) rank.table.view(rank.values, last).view(-1)[0] += change;
          const std::string mine = model::weight_checksum(rank.table, rank.values, world);
          if (world.rank() == 0) text = mine;
        });
        return text;
      };
      const std::string want = checksum("", 0);
      std::vector<std::string> layouts = {"dp2", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,pp2,vpp2"};
      if (config.moe.num_experts > 0) layouts.insert(layouts.end(), {"dp4,ep4", "dp2,tp2,ep4", "dp2,tp2,ep2,etp2"});
      for (const std::string& layout : layouts) EXPECT_EQ(checksum(layout, 0), want) << family << ", " << layout;
      EXPECT_NE(checksum("", 0.5), want);
    }
  }
}

TEST(WeightChecksum, OperatorsOfLibtorchAddUpToTheSame) {
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
    on_all("tp2", test::experts_config("deepseek_v3"), dtype, [](Rank& rank, comm::Group&) {
      model::initialize_parameters(rank.table, rank.values, 5, 0.3);
      const std::vector<model::BoxSum> sums = model::box_sums(rank.table, rank.values);
      for (size_t i = 0; i < sums.size(); ++i) {
        const model::ParameterEntry& e = rank.table.entries[i];
        EXPECT_EQ(model::sum_by_operators(e, rank.table.view(rank.values, e)), sums[i].sum) << e.parameter.name;
      }
    });
}

TEST(WeightChecksum, NamesTheReplicaThatHoldsOtherBits) {
  for (const auto& [layout, replica, original] : {std::tuple("dp2", 1, 0), std::tuple("dp2,tp2", 3, 1), std::tuple("dp3", 2, 0)}) {
    std::vector<std::string> faults(4);
    on_all(layout, test::tiny_config(), at::kFloat, [&](Rank& rank, comm::Group& world) {
      model::initialize_parameters(rank.table, rank.values, 5, 0.3);
      const std::string what = "the weights of policy version 7";
      const auto sum = [&] { return model::sum_of_all(world, model::box_sums(rank.table, rank.values), what); };
      const uint64_t before = sum();
      const model::ParameterEntry& matrix = *std::ranges::max_element(rank.table.entries, {}, &model::ParameterEntry::num_elements);
      if (world.rank() == replica) rank.table.view(rank.values, matrix).view(at::kInt).view(-1)[1].bitwise_xor_(1);  // one bit
      faults[static_cast<size_t>(world.rank())] = error_of<PeerError>([&] { sum(); });
      model::initialize_parameters(rank.table, rank.values, 5, 0.3);
      EXPECT_EQ(sum(), before);
    });
    for (int r = 0; r <= replica; ++r) {
      const std::string& fault = faults[static_cast<size_t>(r)];
      EXPECT_NE(fault.find(join_text("rank ", replica, " holds other bits of the weights of policy version 7 than rank ", original)),
                std::string::npos) << layout << ": " << fault;
    }
  }
}

}  // namespace
}  // namespace tandem::policy
