// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "../../error_text.h"
#include "../../odd_files.h"
#include "../../small_files.h"
#include "../../temporary_folder.h"
#include "../../tensor_file.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/file/checksum.h"
#include "tandem/base/file/durable_file.h"

namespace tandem::checkpoint {
namespace {

using test::TemporaryFolder;

std::map<std::string, at::Tensor> some_tensors() {
  return {{"w", at::arange(6, at::kFloat).reshape({2, 3})},
          {"b", at::ones({3}, at::kBFloat16)},
          {"ids", at::arange(4, at::kLong)},
          {"flag", at::ones({1}, at::kBool)},
          {"none", at::empty({0, 5}, at::kFloat)},
          {"scalar", at::full({}, 2.5, at::kDouble)}};
}

SafetensorsFile file_with_header(const std::string& header) {
  const uint64_t size = header.size();
  const TemporaryFolder folder("header");
  write_file(folder / "x", std::string(reinterpret_cast<const char*>(&size), sizeof size) + header);
  return SafetensorsFile(folder / "x");
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder("roundtrip");
  const auto tensors = some_tensors();
  write_safetensors(folder / "x.safetensors", tensors, {{"format", "pt"}});
  at::Tensor kept;
  {
    const SafetensorsFile file(folder / "x.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    ASSERT_EQ(file.tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      EXPECT_EQ(file.view(name).scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(at::equal(file.view(name), tensor)) << name;
    }
    kept = file.view("w");
  }
  EXPECT_TRUE(at::equal(kept, tensors.at("w")));  // the view keeps the mapping
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TemporaryFolder folder("truncated");
  write_safetensors(folder / "x.safetensors", some_tensors());
  const auto size = std::filesystem::file_size(folder / "x.safetensors");
  for (uintmax_t left = 0; left < size; left += left < 32 ? 1 : 13) {
    std::filesystem::copy_file(folder / "x.safetensors", folder / "cut", std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(folder / "cut", left);
    EXPECT_THROW(SafetensorsFile(folder / "cut"), UserError) << left;
  }
}

TEST(Safetensors, AHeaderThatNestsWithoutEndIsRefused) {
  const std::string brackets = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THROW(file_with_header(R"({"a":{"dtype":)" + brackets + R"(,"shape":[],"data_offsets":[0,0]}})"), UserError);
}

// Twice the tensors take twice the time. 40,000 took 55 s when each looked through all before it; the bound leaves a slow, busy or
// sanitized machine room.
TEST(Safetensors, AHeaderOfManyTensorsIsReadInLinearTime) {
  constexpr int kTensors = 80'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    if (i > 0) header += ',';
    header += "\"model.layers." + std::to_string(i) + R"(.weight":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]})";
  }
  const Deadline deadline = Deadline::after_s(20);
  EXPECT_EQ(file_with_header(header + "}").tensors().size(), size_t{kTensors});
  EXPECT_FALSE(deadline.passed());
}

TEST(Safetensors, ANameMayStandOnceInAnyObjectOfTheHeader) {
  const std::string entry = R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  const auto error = [](const std::string& header) { return test::error_of([&] { file_with_header(header); }); };
  EXPECT_NE(error(R"({"a":)" + entry + R"(,"b":)" + entry + R"(,"a":)" + entry + "}").find("`a` stands twice"), std::string::npos);
  EXPECT_NE(error(R"({"\u0061":)" + entry + R"(,"a":)" + entry + "}").find("`a` stands twice"), std::string::npos) << "written otherwise";
  EXPECT_NE(error(R"({"a":{"dtype":"F32","shape":[0],"shape":[0],"data_offsets":[0,0]}})").find("`shape` stands twice"), std::string::npos);
  EXPECT_NE(error(R"({"__metadata__":{"x":"1","x":"2"}})").find("`x` stands twice"), std::string::npos);
  EXPECT_EQ(error(R"({"a":)" + entry + R"(,"b":)" + entry + R"(,"__metadata__":{"a":"1","b":"1"}})"), "");
}

TEST(Safetensors, APipeOrADeviceIsRefusedAtOnce) {
  const TemporaryFolder folder("odd");
  EXPECT_EQ(test::opens_odd_files(folder / "model.safetensors", [&] { SafetensorsFile(folder / "model.safetensors"); }),
            std::vector<std::string>());
}

TEST(Safetensors, ATensorOfNoBytesMayNotHaveSizesThatNoStrideHolds) {
  EXPECT_EQ(file_with_header(R"({"a":{"dtype":"F32","shape":[7,0,9],"data_offsets":[0,0]}})").view("a").numel(), 0);
  EXPECT_THROW(file_with_header(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})"), UserError);
}

TEST(Safetensors, AMissingFileOrTensorIsNamed) {
  const TemporaryFolder folder("missing");
  EXPECT_THROW(SafetensorsFile(folder / "absent"), UserError);
  EXPECT_THROW(SafetensorsFile(folder.path()), UserError);
  write_safetensors(folder / "x", {{"weight", at::ones({1})}});
  try {
    SafetensorsFile(folder / "x").view("wieght");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("the nearest name is `weight`"), std::string::npos);
  }
}

TEST(Safetensors, AFullDiskLeavesTheOldFile) {
  const TemporaryFolder folder("full");
  const std::string path = folder / "x.safetensors";
  write_safetensors(path, {{"w", at::ones({4})}});
  {
    const test::SmallFiles limit(4096);
    EXPECT_THROW(write_safetensors(path, {{"w", at::ones({100000})}}), PeerError);
  }
  EXPECT_EQ(SafetensorsFile(path).view("w").numel(), 4);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_THROW(write_durable("/nonexistent/x", "y"), PeerError);
}

TEST(Safetensors, AnyBoxOfAnyRankIsReadAsSlicingGivesIt) {
  const TemporaryFolder folder("boxes");
  std::mt19937 random(20261121);
  SCOPED_TRACE("seed 20261121");
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> shape;
    for (int64_t rank = 1 + below(4); rank > 0; --rank) shape.push_back(1 + below(6));
    Box box = Box::whole(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (below(2) == 0) continue;
      box.begin[d] = below(shape[d]);
      box.end[d] = box.begin[d] + 1 + below(shape[d] - box.begin[d]);
    }
    const at::Tensor whole = at::arange(Box::whole(shape).num_elements(), at::kFloat).view(shape);
    at::Tensor part = whole;
    for (size_t d = 0; d < shape.size(); ++d) part = part.narrow(static_cast<int64_t>(d), box.begin[d], box.extent(d));
    write_safetensors(folder / "x", {{"before", at::ones({3})}, {"x", whole}});
    for (c10::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
      at::Tensor got = at::full(box.shape(), -1, wanted);
      SafetensorsFile(folder / "x").read("x", box, got);
      ASSERT_TRUE(at::equal(got, part.to(wanted))) << at::IntArrayRef(shape) << at::IntArrayRef(box.begin) << at::IntArrayRef(box.end);
    }
  }
}

TEST(Safetensors, WhatIsLargerThanAPieceIsConvertedWhole) {
  const TemporaryFolder folder("large");
  const int64_t R = 1500, C = 1111;  // 3.3 MB of bf16, no multiple of a piece
  const at::Tensor stored = at::arange(R * C, at::kFloat).remainder(509).to(at::kBFloat16).view({R, C});
  write_safetensors(folder / "x", {{"x", stored}});
  const SafetensorsFile file(folder / "x");
  for (const Box& box : {Box::whole({R, C}), Box{{3, 10}, {1499, 1100}}})
    for (c10::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
      at::Tensor got = at::full(box.shape(), -1, wanted);
      file.read("x", box, got);
      const at::Tensor part = stored.narrow(0, box.begin[0], box.extent(0)).narrow(1, box.begin[1], box.extent(1));
      EXPECT_TRUE(at::equal(got, part.to(wanted))) << wanted;
    }
}

TEST(Safetensors, AFileCutWhileItIsOpenIsAnError) {
  const TemporaryFolder folder("cut");
  write_safetensors(folder / "x", {{"x", at::ones({4000})}});
  const SafetensorsFile file(folder / "x");
  std::filesystem::resize_file(folder / "x", 8000);
  at::Tensor to = at::empty({4000});
  EXPECT_THROW(file.read("x", Box::whole({4000}), to), PeerError);
}

// Blocks of a mebibyte go past the page cache where the file system lets them; a file system in memory does not everywhere.
TEST(DurableFile, HasTheBytesInOrderWhateverTheirNumberAndSaysTheirChecksum) {
  std::mt19937 random(20261128);
  SCOPED_TRACE("seed 20261128");
  const TemporaryFolder folder("durable");
  std::vector<std::string> paths = {folder / "x"};
  if (std::filesystem::is_directory("/dev/shm")) paths.push_back("/dev/shm/tandem_durable_" + std::to_string(::getpid()));
  constexpr size_t kMib = size_t{1} << 20;
  for (const std::string& path : paths)
    for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kMib - 1, kMib, kMib + 1, kMib + 4096, 3 * kMib + 517}) {
      std::string bytes(size, 0);
      for (char& each : bytes) each = static_cast<char>(random());
      DurableFile file(path);
      for (size_t at = 0, next = 0; at < size; at = next) {
        next = std::min(size, at + 1 + random() % (size / 3 + 1));
        file.append(std::as_bytes(std::span(bytes)).subspan(at, next - at));
      }
      DurableFile moved = std::move(file);
      const std::string sum = moved.commit();
      EXPECT_EQ(read_file(path, INT64_MAX), bytes) << path << " of " << size;
      EXPECT_EQ(sum, file_checksum(path)) << path << " of " << size;
    }
  std::filesystem::remove(paths.back());
}

TEST(Checksum, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  Checksum whole, parts, other;
  whole.update(std::as_bytes(std::span(text)));
  for (size_t at = 0, step = 1; at < text.size(); at += step, step = step % 45 + 1)
    parts.update(std::as_bytes(std::span(text)).subspan(at, std::min(step, text.size() - at)));
  EXPECT_EQ(whole.value(), parts.value());
  text[500] ^= 1;
  other.update(std::as_bytes(std::span(text)));
  EXPECT_NE(whole.value(), other.value());
}

}  // namespace
}  // namespace tandem::checkpoint
