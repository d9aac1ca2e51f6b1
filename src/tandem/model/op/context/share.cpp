// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/op/context/share.h"

#include <algorithm>
#include <numeric>

#include "tandem/base/check.h"

namespace tandem::model::op {
namespace {

// Who gets which tokens: pieces are dealt in rounds of one for each rank, the piece with the most cells to the rank that has the
// fewest so far. Two facts make the bounds. Adding a falling list to a rising one leaves a spread of at most the larger of the two
// spreads, so cells never lie further apart than in one round. And where rounds are sorted by tokens, the most of a round is at
// most the least of the round before, so the tokens' spreads add up to the largest piece at most.

// What is dealt at once: one run of a span, or two.
struct Piece {
  std::vector<TokenRun> runs;
  int64_t tokens = 0, cells = 0;
};

// A stem or branch and the number of keys that stand before it.
struct Stretch {
  int64_t begin, length, before;
};

std::vector<Stretch> stretches_of(const Trees& trees) {
  std::vector<Stretch> all;
  int64_t end = 0;
  for (const kernel::Tree& tree : trees) {
    TANDEM_CHECK(tree.begin == end, "trees to share lie end to end");
    all.push_back({tree.begin, tree.stem, 0});
    end += tree.stem;
    for (int64_t length : tree.branches) {
      all.push_back({end, length, tree.stem});
      end += length;
    }
  }
  return all;
}

void add(Piece& piece, const Stretch& of, int64_t begin, int64_t end) {
  if (begin == end) return;
  piece.runs.push_back({of.begin + begin, end - begin});
  piece.tokens += end - begin;
  piece.cells += (end - begin) * of.before + end * (end + 1) / 2 - begin * (begin + 1) / 2;
}

// A piece for each rank: chunk r from the front and chunk r from the back. Together they have the same number of tokens, or one more.
std::vector<Piece> front_and_back(const Stretch& s, int64_t ranks) {
  const auto front = [&](int64_t r) { return r * s.length / (2 * ranks); };
  const auto back = [&](int64_t r) { return s.length - (r * s.length / ranks - front(r)); };
  std::vector<Piece> pieces(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    add(pieces[static_cast<size_t>(r)], s, front(r), front(r + 1));
    add(pieces[static_cast<size_t>(r)], s, back(r + 1), back(r));
  }
  return pieces;
}

void cut(const Stretch& s, int64_t most, std::vector<Piece>& pieces) {
  const int64_t n = (s.length + most - 1) / most;
  for (int64_t i = 0; i < n; ++i) {
    Piece piece;
    add(piece, s, i * s.length / n, (i + 1) * s.length / n);
    pieces.push_back(std::move(piece));
  }
}

// At most one piece for each rank. `runs` and `cells` are by rank.
void deal(std::vector<Piece> round, std::vector<std::vector<TokenRun>>& runs, std::vector<int64_t>& cells) {
  std::stable_sort(round.begin(), round.end(), [](const Piece& a, const Piece& b) { return a.cells > b.cells; });
  std::vector<size_t> order(cells.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cells[a] < cells[b]; });
  for (size_t i = 0; i < round.size(); ++i) {
    std::vector<TokenRun>& to = runs[order[i]];
    to.insert(to.end(), round[i].runs.begin(), round[i].runs.end());
    cells[order[i]] += round[i].cells;
  }
}

std::vector<TokenRun> joined(std::vector<TokenRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const TokenRun& a, const TokenRun& b) { return a.begin < b.begin; });
  std::vector<TokenRun> joined;
  for (const TokenRun& run : runs) {
    if (!joined.empty() && joined.back().begin + joined.back().length == run.begin) joined.back().length += run.length;
    else joined.push_back(run);
  }
  return joined;
}

}  // namespace

int64_t ContextShare::num_tokens(int rank) const {
  int64_t n = 0;
  for (const TokenRun& run : runs[static_cast<size_t>(rank)]) n += run.length;
  return n;
}

int64_t ContextShare::most_tokens() const {
  int64_t most = 0;
  for (size_t r = 0; r < runs.size(); ++r) most = std::max(most, num_tokens(static_cast<int>(r)));
  return most;
}

std::vector<int64_t> ContextShare::tokens(int rank) const {
  std::vector<int64_t> all;
  for (const TokenRun& run : runs[static_cast<size_t>(rank)])
    for (int64_t i = 0; i < run.length; ++i) all.push_back(run.begin + i);
  return all;
}

int64_t share_piece(int64_t num_tokens, int ranks) { return std::clamp<int64_t>(num_tokens / ranks / 64, 16, 128); }

ContextShare context_share(const Trees& trees, int ranks) {
  TANDEM_CHECK(ranks >= 1, "ranks to share tokens");
  const std::vector<Stretch> stretches = stretches_of(trees);
  int64_t num_tokens = 0;
  for (const Stretch& s : stretches) num_tokens += s.length;
  const int64_t piece = share_piece(num_tokens, ranks);
  ContextShare share;
  share.runs.resize(static_cast<size_t>(ranks));
  std::vector<int64_t> cells(share.runs.size());
  std::vector<Piece> small;
  for (const Stretch& s : stretches) {
    if (s.length >= 2 * ranks * piece) deal(front_and_back(s, ranks), share.runs, cells);
    else cut(s, 2 * piece, small);
  }
  std::stable_sort(small.begin(), small.end(), [](const Piece& a, const Piece& b) { return a.tokens > b.tokens; });
  for (auto next = small.begin(); next != small.end();) {
    const auto end = next + std::min<ptrdiff_t>(ranks, small.end() - next);
    deal({next, end}, share.runs, cells);
    next = end;
  }
  for (std::vector<TokenRun>& runs : share.runs) runs = joined(std::move(runs));
  return share;
}

}  // namespace tandem::model::op
