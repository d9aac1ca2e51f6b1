// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/input/file_kind.h"

#include <gtest/gtest.h>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "tandem/base/json_file.h"

namespace tandem {
namespace {

std::string bytes(std::initializer_list<int> values) { return {values.begin(), values.end()}; }

TEST(FileKind, IsToldByTheFirstBytes) {
  const std::pair<std::string, const char*> kinds[] = {
      {bytes({0x1f, 0x8b, 8, 0}), "a gzip archive"},
      {bytes({'P', 'K', 3, 4, 20}), "a zip archive"},
      {bytes({0x28, 0xb5, 0x2f, 0xfd}), "a zstd archive"},
      {"BZh91AY", "a bzip2 archive"},
      {bytes({0xfd, '7', 'z', 'X', 'Z', 0}), "an xz archive"},
      {"PAR1....", "a Parquet file"},
      {"ARROW1..", "an Arrow file"},
      {"GGUF....", "a GGUF file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a pointer of Git LFS"},
      {"\n<!DOCTYPE html><html>", "a web page"},
      {"<HTML>", "a web page"},
      {bytes({0xff, 0xfe, '{', 0}), "text in UTF-16"},
      {bytes({0xfe, 0xff, 0, '{'}), "text in UTF-16"},
      {bytes({'{', 0, '"', 0}), "text in UTF-16"},
      {bytes({0, '{', 0, '"'}), "text in UTF-16"},
      {bytes({0xff, 0xfe, 0, 0, '{', 0, 0, 0}), "text in UTF-32"},
      {bytes({'{', 0, 0, 0}), "text in UTF-32"},
      {bytes({80, 0, 0, 0, 0, 0, 0, 0, '{', '"', 'a'}), "a safetensors file"},
      {std::string(257, 'a') + "ustar" + std::string(100, ' '), "a tar archive"},
      {bytes({0x80, 4, 0x95}), "a pickle"},
  };
  for (const auto& [begin, kind] : kinds) EXPECT_TRUE(file_kind(begin).starts_with(kind)) << kind << ": " << file_kind(begin);
}

TEST(FileKind, PlainTextIsNone) {
  for (const char* text : {"{\"a\": 1}", "[1]", "", "{", "a,b\n1,2",
                           "\xEF\xBB\xBF{\"a\": 1}", "\xC3\xA9t\xC3\xA9", "# comment", "<think>"})
    EXPECT_EQ(file_kind(text), "") << text;
}

TEST(FileKind, AJsonFileOfAnotherKindIsNamed) {
  const test::TemporaryFolder folder("kinds");
  const std::pair<std::string, const char*> kinds[] = {{"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"},
                                                       {"<html>404</html>", "web page"},
                                                       {bytes({0xff, 0xfe, '{', 0, '}', 0}), "UTF-16"}};
  for (const auto& [content, kind] : kinds) {
    write_file(folder / "config.json", content);
    const std::string error = test::error_of([&] { (void)read_json_object(folder / "config.json"); });
    EXPECT_NE(error.find(kind), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace tandem
