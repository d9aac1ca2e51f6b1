// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

std::string nested(int levels) { return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']'); }

TEST(JsonDepth, TheDeepestLevelAllowedIsTheLastOne) {
  EXPECT_FALSE(nests_too_deep(nested(kMaxJsonDepth)));
  EXPECT_TRUE(nests_too_deep(nested(kMaxJsonDepth + 1)));
  EXPECT_TRUE(nests_too_deep("{\"a\":" + nested(kMaxJsonDepth) + "}"));
}

TEST(JsonDepth, ListsSideBySideAreNotDeep) {
  std::string flat = "[";
  for (int i = 0; i < 2000; ++i) flat += "[{}],";
  EXPECT_FALSE(nests_too_deep(flat + "0]"));
}

TEST(JsonDepth, BracketsInTextsDoNotCount) {
  const std::string brackets(1000, '[');
  EXPECT_FALSE(nests_too_deep("[\"" + brackets + "\"]"));
  EXPECT_FALSE(nests_too_deep("[\"\\\"" + brackets + "\"]")) << "an escaped quote ends no text";
  EXPECT_TRUE(nests_too_deep("[\"\\\\\"," + brackets)) << "an escaped backslash before the quote that ends it";
}

}  // namespace
}  // namespace tandem
