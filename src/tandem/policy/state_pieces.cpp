// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/state_pieces.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::runtime {

using nlohmann::json;

namespace {

int64_t width_of(const Box& box) { return box.extent(box.begin.size() - 1); }

// Rows and columns within `box`, as a box of the tensor.
Box part_of(const Box& box, std::pair<int64_t, int64_t> rows, std::pair<int64_t, int64_t> columns) {
  Box part = box;
  const size_t last = box.begin.size() - 1;
  part.begin[last] = box.begin[last] + columns.first;
  part.end[last] = box.begin[last] + columns.second;
  if (last > 0) {
    part.begin[0] = box.begin[0] + rows.first;
    part.end[0] = box.begin[0] + rows.second;
  }
  return part;
}

// Of the element in a row and a column of the tensor: how many elements of the box come before it.
int64_t position(const Box& box, int64_t row, int64_t column) {
  return box.begin.size() == 1 ? column - box.begin[0] : (row - box.begin[0]) * width_of(box) + column - box.begin[1];
}

}  // namespace

std::vector<Box> boxes_of(const Piece& piece) {
  const Box& box = piece.tensor.box;
  TANDEM_CHECK(box.begin.size() == 1 || box.begin.size() == 2, piece.tensor.name, " has ", box.begin.size(), " dimensions");
  const int64_t width = width_of(box);
  std::vector<Box> boxes;
  if (piece.begin >= piece.end) return boxes;
  const int64_t first = piece.begin / width, before = piece.begin % width, last = piece.end / width, behind = piece.end % width;
  if (first == last) return {part_of(box, {first, first + 1}, {before, behind})};
  if (before > 0) boxes.push_back(part_of(box, {first, first + 1}, {before, width}));
  if (const int64_t whole = first + (before > 0); whole < last) boxes.push_back(part_of(box, {whole, last}, {0, width}));
  if (behind > 0) boxes.push_back(part_of(box, {last, last + 1}, {0, behind}));
  return boxes;
}

std::vector<PieceRun> runs_of(const Piece& source, const Piece& wanted, const Box& box) {
  const bool flat = box.begin.size() == 1;
  const int64_t count = width_of(box), column = box.begin.back();
  std::vector<PieceRun> runs;
  for (int64_t row = flat ? 0 : box.begin[0]; row < (flat ? 1 : box.end[0]); ++row) {
    const int64_t from = position(source.tensor.box, row, column) - source.begin + source.at;
    const PieceRun run{from, position(wanted.tensor.box, row, column) - wanted.begin, count};
    const bool joins = !runs.empty() && runs.back().from + runs.back().count == run.from && runs.back().to + runs.back().count == run.to;
    if (joins) runs.back().count += count;
    else runs.push_back(run);
  }
  return runs;
}

std::string to_text(const std::vector<Piece>& pieces) {
  json all = json::array();
  for (const Piece& p : pieces) all.push_back({p.tensor.name, p.tensor.shape, p.tensor.box.begin, p.tensor.box.end, p.begin, p.end, p.at});
  return all.dump();
}

std::vector<Piece> read_pieces(const std::string& text, int64_t size, const std::string& where) {
  std::vector<Piece> pieces;
  try {
    for (const json& j : json::parse(text))
      pieces.push_back({{j.at(0), j.at(1), {j.at(2), j.at(3)}}, j.at(4).get<int64_t>(), j.at(5).get<int64_t>(), j.at(6).get<int64_t>()});
  } catch (const json::exception& e) {
    throw UserError(where, std::string("has a damaged list of its pieces: ") + e.what(), "a file as Tandem wrote it");
  }
  for (const Piece& p : pieces) {
    const auto& [begin, end] = p.tensor.box;
    const size_t dims = p.tensor.shape.size();
    bool right = (dims == 1 || dims == 2) && begin.size() == dims && end.size() == dims;
    for (size_t d = 0; right && d < dims; ++d) right = 0 <= begin[d] && begin[d] < end[d] && end[d] <= p.tensor.shape[d];
    right = right && 0 <= p.begin && p.begin <= p.end && p.end <= p.tensor.box.num_elements();
    right = right && 0 <= p.at && p.at + p.end - p.begin <= size;
    if (!right) throw UserError(where, "has an impossible piece of " + p.tensor.name, "a file as Tandem wrote it");
  }
  return pieces;
}

}  // namespace tandem::runtime
