// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/welcome.h"

#include <filesystem>
#include <fstream>

#include "tandem/data/bytes.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMagic = 0x32656d6f636c6557;  // "Welcome2"
constexpr int64_t kMostFileBytes = int64_t{64} << 20;

bool has_weights(const fs::path& file) {
  const std::string kind = file.extension().string();
  for (const char* each : {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"})
    if (kind == each) return true;
  return file.filename().string().ends_with(".safetensors.index.json");
}

void write(data::ByteWriter& out, const std::vector<pull::WeightHolder>& holders) {
  out.number(std::ssize(holders));
  for (const pull::WeightHolder& each : holders) pull::write(out, each);
}

std::vector<pull::WeightHolder> read_holders(data::ByteReader& in) {
  std::vector<pull::WeightHolder> holders;
  for (int64_t left = in.count(4 * sizeof(int64_t), "the number of holders"); left > 0; --left) holders.push_back(pull::read_holder(in));
  return holders;
}

}  // namespace

std::string to_text(const Welcome& welcome) {
  std::vector<std::byte> bytes;
  data::ByteWriter out(bytes);
  out.number(kMagic);
  out.text(welcome.recipe);
  out.number(std::ssize(welcome.files));
  for (const auto& [name, contents] : welcome.files) {
    out.text(name);
    out.text(contents);
  }
  write(out, welcome.holders);
  write(out, welcome.adapters);
  out.number(welcome.max_context_tokens);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Welcome welcome_of(const std::string& text) {
  data::ByteReader in(std::as_bytes(std::span(text)), "welcome of the run");
  if (in.number("magic") != kMagic) in.fail("another version of Tandem wrote it, or none");
  Welcome welcome;
  welcome.recipe = in.text("the recipe");
  for (int64_t left = in.count(2 * sizeof(int64_t), "the number of files"); left > 0; --left) {
    std::string name = in.text("the name of a file");
    welcome.files[std::move(name)] = in.text("a file");
  }
  welcome.holders = read_holders(in);
  if (welcome.holders.empty()) in.fail("nobody has weights");
  welcome.adapters = read_holders(in);
  welcome.max_context_tokens = in.number("the longest context");
  if (!in.at_end()) in.fail("bytes behind the end");
  return welcome;
}

std::map<std::string, std::string> small_files(const std::string& model_dir) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(model_dir)) {
    if (!entry.is_regular_file() || has_weights(entry.path()) || static_cast<int64_t>(entry.file_size()) > kMostFileBytes) continue;
    files[entry.path().filename().string()] = RegularFile(entry.path().string(), "a file of a model").read_whole(kMostFileBytes);
  }
  return files;
}

void write_files(const std::map<std::string, std::string>& files, const std::string& dir) {
  for (const auto& [name, contents] : files) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
      throw PeerError("welcome of the run: a file named " + name);
    std::ofstream out(fs::path(dir) / name, std::ios::binary);
    out << contents;
    if (!out.flush()) throw UserError(dir, "cannot be written to", "a folder with room");
  }
}

}  // namespace tandem::worker
