// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/welcome.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tandem/base/file/bytes.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/file/checksum.h"
#include "tandem/pull/boxes.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMagic = 0x35656d6f636c6557;  // "Welcome5"
constexpr int64_t kMostFileBytes = int64_t{64} << 20, kMostWelcomeBytes = int64_t{200} << 20;

bool has_weights(const fs::path& file) {
  const std::string kind = file.extension().string();
  for (const char* each : {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"})
    if (kind == each) return true;
  return file.filename().string().ends_with(".safetensors.index.json");
}

}  // namespace

std::string to_text(const Welcome& welcome) {
  std::vector<std::byte> bytes = packed(kMagic, welcome);
  if (std::ssize(bytes) > kMostWelcomeBytes)
    throw UserError("the model's folder", join_text("has ", bytes.size(), " bytes beside its weights, and workers get them in one message"),
                    join_text("at most ", kMostWelcomeBytes, " bytes: tokenizer and configuration"));
  ByteWriter(bytes).number(static_cast<int64_t>(pull::digest_of(bytes)));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Welcome welcome_of(const std::string& text) {
  const auto all = std::as_bytes(std::span(text)), bytes = all.first(all.size() - std::min(all.size(), sizeof(uint64_t)));
  ByteReader in(bytes, "welcome of the run");
  if (in.number("magic") != kMagic) in.fail("another version of Tandem wrote it, or none");
  uint64_t digest = 0;
  std::memcpy(&digest, all.data() + bytes.size(), sizeof digest);
  if (digest != pull::digest_of(bytes)) in.fail("its digest is another: recipe or model are not those of the run");
  Welcome welcome;
  Unpack{in}(welcome);
  if (welcome.holders.empty()) in.fail("nobody has weights");
  if (!in.at_end()) in.fail("bytes behind the end");
  return welcome;
}

std::map<std::string, std::string> reward_files(const reward::Options& options, const std::string& environment) {
  std::map<std::string, std::string> digests;
  if (const size_t colon = environment.rfind(':'); colon != std::string::npos) {
    const std::string file = environment.substr(0, colon);
    digests[file] = file_digest(file);
  }
  for (const std::string& file : reward::python_files(options)) digests[file] = file_digest(file);
  return digests;
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
