// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tandem/base/rng.h"
#include "tandem/model/kernel/attention.h"

namespace tandem::test {

/// 1 to 8 stems of up to `longest` tokens, most of them short, each with up to 4 branches.
inline model::kernel::Trees random_trees(RandomStream& random, int64_t longest) {
  const auto length = [&] { return 1 + random.below(1 + random.below(longest)); };
  model::kernel::Trees trees;
  int64_t begin = 0;
  for (int64_t n = 1 + random.below(8); n > 0; --n) {
    model::kernel::Tree tree{begin, length(), {}};
    begin += tree.stem;
    for (int64_t branches = random.below(5); branches > 0; --branches) {
      tree.branches.push_back(length());
      begin += tree.branches.back();
    }
    trees.push_back(std::move(tree));
  }
  return trees;
}

inline int64_t num_tokens(const model::kernel::Trees& trees) {
  int64_t n = 0;
  for (const model::kernel::Tree& tree : trees) {
    n += tree.stem;
    for (int64_t length : tree.branches) n += length;
  }
  return n;
}

}  // namespace tandem::test
