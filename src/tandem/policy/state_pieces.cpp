// SPDX-License-Identifier: Apache-2.0
#include "tandem/policy/state_pieces.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::policy {

using nlohmann::json;

namespace {

int64_t width_of(const Box& box) { return box.extent(box.begin.size() - 1); }

}  // namespace

std::vector<Box> boxes_of(const Piece& piece) {
  return boxes_of_range(piece.tensor.box, piece.begin, piece.end);
}

std::vector<PieceRun> runs_of(const Piece& source, const Piece& wanted, const Box& box) {
  TANDEM_CHECK(box.begin.size() == 1 || box.begin.size() == 2, source.tensor.name, " has ", box.begin.size(), " dimensions");
  const int64_t count = width_of(box), rows = box.num_elements() / count;
  int64_t from = position_in(source.tensor.box, box.begin) - source.begin + source.at;
  int64_t to = position_in(wanted.tensor.box, box.begin) - wanted.begin;
  std::vector<PieceRun> runs;
  for (int64_t row = 0; row < rows; ++row, from += width_of(source.tensor.box), to += width_of(wanted.tensor.box)) {
    const bool joins = !runs.empty() && runs.back().from + runs.back().count == from && runs.back().to + runs.back().count == to;
    if (joins) runs.back().count += count;
    else runs.push_back({from, to, count});
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

}  // namespace tandem::policy
