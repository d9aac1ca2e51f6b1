// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tandem/base/error.h"
#include "tandem/checkpoint/durable_file.h"
#include "temporary_folder.h"

namespace tandem::checkpoint {
namespace {

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
  const std::string bytes = std::string(reinterpret_cast<const char*>(&size), sizeof size) + header;
  return SafetensorsFile(std::as_bytes(std::span(bytes)), "in memory");
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
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 4096;
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_safetensors(path, {{"w", at::ones({100000})}}), PeerError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(SafetensorsFile(path).view("w").numel(), 4);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_THROW(write_durable("/nonexistent/x", "y"), PeerError);
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
