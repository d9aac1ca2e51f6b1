// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/optimizer_files.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"

namespace tandem::policy {
namespace {

constexpr const char* kPieces = "pieces";
constexpr const char* kFormat = "pieces_format";
/// Of the list of pieces. Raise it when an older program would misread what is written.
constexpr int64_t kPieces_format = 1;
constexpr const char* kSameModel = "a checkpoint of this model and its adapters";

std::string name_of(int rank) { return join_text(kOptimizerFile, rank, ".safetensors"); }
std::string path_of(const std::string& dir, int rank) { return dir + "/" + name_of(rank); }

Piece piece_of(const train::StatePiece& p) {
  const model::ParameterEntry& e = *p.entry;
  return {{e.parameter.name, e.parameter.shape, e.box}, p.begin, p.end, p.at};
}

}  // namespace

int64_t optimizer_copy_bytes(const train::OptimizerState& state) {
  return std::ssize(train::OptimizerState::names()) * state.size() * static_cast<int64_t>(sizeof(float));
}

FileWriter optimizer_writer(int rank, const train::OptimizerState& state, device::Arena* host) {
  std::vector<Piece> pieces;
  for (const train::StatePiece& p : state.pieces()) pieces.push_back(piece_of(p));
  std::vector<checkpoint::TensorInfo> tensors;
  checkpoint::TensorSource source = [&state](const std::string& name) { return state.tensor(name); };
  std::map<std::string, at::Tensor> copies;
  for (const std::string& name : train::OptimizerState::names()) {
    tensors.push_back({name, at::kFloat, {state.size()}});
    if (!host) continue;
    const at::Tensor& copy = copies[name] = host->allocate("checkpoint", {state.size()}, at::kFloat);
    int64_t at = 0;
    for (const at::Tensor& part : state.parts(name)) copy.narrow(0, std::exchange(at, at + part.numel()), part.numel()).copy_(part);
  }
  if (host) source = [copies](const std::string& name) { return copies.at(name); };
  return [=, text = to_text(pieces)](const std::string& dir) {
    DurableFile file(path_of(dir, rank));
    checkpoint::write_safetensors(file, tensors, source, {{kFormat, std::to_string(kPieces_format)}, {kPieces, text}});
    return Sums{{name_of(rank), file.commit()}};
  };
}

OptimizerFiles::OptimizerFiles(std::string dir, int num_ranks, int rank) : dir_(std::move(dir)), files_(static_cast<size_t>(num_ranks)) {
  for (int r = 0; r < num_ranks; ++r) ranks_.push_back((rank + r) % num_ranks);
}

OptimizerFiles::File& OptimizerFiles::file(int rank) {
  std::unique_ptr<File>& file = files_[static_cast<size_t>(rank)];
  if (file) return *file;
  file = std::make_unique<File>(File{checkpoint::SafetensorsFile(path_of(dir_, rank)), {}});
  const checkpoint::SafetensorsFile& f = file->tensors;
  if (const auto number = f.metadata().find(kFormat); number != f.metadata().end())
    check_format(nlohmann::json::parse(number->second, nullptr, false), f.path(), kPieces_format);
  const auto list = f.metadata().find(kPieces);
  if (list == f.metadata().end())
    throw UserError(f.path(), "has no list of the pieces that are in it", "a checkpoint of this version of Tandem");
  int64_t size = f.view("m").numel();
  for (const std::string& name : train::OptimizerState::names()) size = std::min(size, f.view(name).numel());
  for (Piece& p : read_pieces(list->second, size, f.path())) {
    const std::string name = p.tensor.name;
    file->pieces[name].push_back(std::move(p));
  }
  return *file;
}

std::vector<OptimizerFiles::Source> OptimizerFiles::find(const Piece& wanted) {
  std::vector<Source> sources;
  std::vector<Box> missing = boxes_of(wanted);
  for (int rank : ranks_) {
    if (missing.empty()) break;
    Source source{rank, {}};
    for (const Piece& held : file(rank).pieces[wanted.tensor.name]) {
      if (held.tensor.shape != wanted.tensor.shape)
        throw UserError(file(rank).tensors.path(), "has another shape of " + wanted.tensor.name, kSameModel);
      for (const Box& box : boxes_of(held)) {
        for (const Box& want : missing)
          if (const auto common = intersect(want, box))
            std::ranges::copy(runs_of(held, wanted, *common), std::back_inserter(source.runs));
        missing = subtract(missing, box);
      }
    }
    if (!source.runs.empty()) sources.push_back(std::move(source));
  }
  if (!missing.empty())
    throw UserError(dir_, "has no optimizer state of " + wanted.tensor.name, kSameModel);
  return sources;
}

void OptimizerFiles::read(const std::string& name, const train::StatePiece& piece, const at::Tensor& to) {
  const std::pair<std::string, int64_t> key(piece.entry->parameter.name, piece.begin);
  if (key != last_) sources_ = find(piece_of(piece));
  last_ = key;
  for (const Source& source : sources_)
    for (const PieceRun& run : source.runs)
      file(source.rank).tensors.read(name, {{run.from}, {run.from + run.count}}, to.narrow(0, run.to, run.count));
}

}  // namespace tandem::policy
