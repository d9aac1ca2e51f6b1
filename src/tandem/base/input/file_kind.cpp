// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/input/file_kind.h"

#include <algorithm>
#include <cctype>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"

namespace tandem {
namespace {

using namespace std::string_view_literals;

struct Beginning {
  std::string_view bytes;
  const char* kind;
};
constexpr Beginning kBeginnings[] = {
    {"\x1f\x8b"sv, "a gzip archive"},
    {"PK\x03\x04"sv, "a zip archive (.zip, .xlsx, .npz and PyTorch's .bin and .pt are such)"},
    {"\x28\xb5\x2f\xfd"sv, "a zstd archive"},
    {"BZh"sv, "a bzip2 archive"},
    {"\xfd\x37zXZ\x00"sv, "an xz archive"},
    {"\x04\x22\x4d\x18"sv, "an lz4 archive"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"},
    {"PAR1"sv, "a Parquet file"},
    {"ARROW1"sv, "an Arrow file"},
    {"FEA1"sv, "a Feather file"},
    {"\xff\xff\xff\xff"sv, "a stream of Arrow"},
    {"Obj\x01"sv, "an Avro file"},
    {"ORC"sv, "an ORC file"},
    {"\x89HDF"sv, "an HDF5 file"},
    {"\x93NUMPY"sv, "an array of NumPy"},
    {"SQLite format 3"sv, "an SQLite database"},
    {"GGUF"sv, "a GGUF file"},
    {"%PDF"sv, "a PDF file"},
    {"\xd0\xcf\x11\xe0"sv, "an Office document"},
    {"version https://git-lfs"sv, "a pointer of Git LFS, not the file itself (`git lfs pull` fetches that)"},
    {"\xff\xfe\x00\x00"sv, "text in UTF-32"},
    {"\x00\x00\xfe\xff"sv, "text in UTF-32"},
    {"\xff\xfe"sv, "text in UTF-16"},
    {"\xfe\xff"sv, "text in UTF-16"},
};

// Without a mark, of a text that begins in ASCII: which of its first bytes are zeros.
std::string wide_text(std::string_view begin) {
  const auto is = [&](std::initializer_list<bool> zeros) {
    return begin.size() >= zeros.size() &&
           std::equal(zeros.begin(), zeros.end(), begin.begin(), [](bool zero, char c) { return zero == (c == 0); });
  };
  if (is({false, true, true, true}) || is({true, true, true, false})) return "text in UTF-32";
  return is({false, true, false, true}) || is({true, false, true, false}) ? "text in UTF-16" : "";
}

bool is_page(std::string_view begin) {
  const size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || begin[first] != '<') return false;
  std::string start(begin.substr(first, 9));
  std::ranges::transform(start, start.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return start == "<!doctype" || start.starts_with("<html") || start.starts_with("<?xml") || start.starts_with("<head");
}

}  // namespace

std::string file_kind(std::string_view begin) {
  for (const Beginning& known : kBeginnings)
    if (begin.starts_with(known.bytes)) return known.kind;
  if (begin.size() > 262 && begin.substr(257, 5) == "ustar") return "a tar archive";
  // Eight bytes of length, then a header of JSON.
  if (begin.size() > 9 && begin[8] == '{' && begin[9] == '"' && begin.substr(4, 4) == "\0\0\0\0"sv) return "a safetensors file";
  if (begin.size() > 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5) return "a pickle of Python";
  if (is_page(begin)) return "a web page or XML (as a failed download leaves)";
  return wide_text(begin);
}

std::string kind_of_file(const std::string& path) {
  try {
    std::string begin(kFileKindBytes, '\0');
    begin.resize(static_cast<size_t>(RegularFile(path).read(0, begin)));
    return file_kind(begin);
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace tandem
