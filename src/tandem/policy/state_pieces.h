// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranges of parameters that ranks of any layout have, and what two of them have in common. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/box.h"

namespace tandem::policy {

/// Elements [begin, end), row by row, of a box of a tensor of one or two dimensions; `begin` lies at `at` of a flat tensor.
struct Piece {
  TensorSpec tensor;
  int64_t begin, end;
  int64_t at;
};

/// Its elements as boxes of the tensor: at most three, disjoint.
std::vector<Box> boxes_of(const Piece& piece);

/// Elements that two pieces have, side by side in both.
struct PieceRun {
  int64_t from;   ///< in the flat tensor of the one
  int64_t to;     ///< behind the begin of the other
  int64_t count;
  bool operator==(const PieceRun&) const = default;
};

/// The elements of `box`, which lies in both pieces.
std::vector<PieceRun> runs_of(const Piece& source, const Piece& wanted, const Box& box);

/// As the metadata of a file.
std::string to_text(const std::vector<Piece>& pieces);
/// Errors: UserError naming `where` if it is not what to_text writes, or a piece leaves its box or a tensor of `size` elements.
std::vector<Piece> read_pieces(const std::string& text, int64_t size, const std::string& where);

}  // namespace tandem::policy
