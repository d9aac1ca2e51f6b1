// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/input/exact_json.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(ExactJson, ANumberThat64BitsCannotHoldStaysAsItIsWritten) {
  for (const char* number : {"123456789012345678901234567890", "-123456789012345678901234567890", "18446744073709551616",
                             "-9223372036854775809", "100000000000000000000", "3.14159265358979323846",
                             "0.1000000000000000055511151231257827", "1e-400", "12345678901234567890.5",
                             "1.00000000000000000001"}) {
    const ExactJson parsed = parse_exact(number);
    EXPECT_TRUE(is_long_number(parsed.value)) << number;
    EXPECT_EQ(exact_text(parsed.value), number);
  }
}

TEST(ExactJson, AnyOtherNumberIsOne) {
  for (const char* number : {"0", "-1", "18446744073709551615", "-9223372036854775808", "1.0", "1.50", "0.1", "-0.0", "1e2", "1E-7",
                             "1e300",
                             "0.30000000000000004", "5e-324", "1.7976931348623157e308", "123456.789000"}) {
    const nlohmann::ordered_json value = parse_exact(number).value;
    EXPECT_TRUE(value.is_number()) << number;
    EXPECT_EQ(value, nlohmann::ordered_json::parse(number)) << number;
  }
}

TEST(ExactJson, ADocumentIsReadAndWrittenAsItWas) {
  const std::string text = R"({"b":[1,{"c":12345678901234567890123,"a":null},[]],"a":{},"t":"\n\"é","d":2.5,"x":true})";
  const ExactJson parsed = parse_exact(" " + text + "\n");
  EXPECT_EQ(parsed.wrong, "");
  EXPECT_EQ(exact_text(parsed.value), text) << "keys in order";
}

TEST(ExactJson, WhatIsWrongIsSaid) {
  const std::pair<std::string, const char*> wrong[] = {
      {"{oops", "is not JSON from its byte 2 on"},
      {"", "is not JSON from its byte 1 on"},
      {"[1,", "is not JSON from its byte 4 on"},
      {"{} {}", "is not JSON from its byte 4 on"},
      {"\"caf\xe9\"", "is not UTF-8 at its byte 5, 0xE9"},
      {"[\"a\xff\"]", "is not UTF-8 at its byte 4, 0xFF"},
      {"\"\xc3\xa9\xff\"", "is not UTF-8 at its byte 4, 0xFF"},
      {"\"\xe2\x82\"", "is not UTF-8 at its byte 2, 0xE2"},
      {"\"\xe9", "is not UTF-8 at its byte 2, 0xE9"},
      {"{\"a\": 1e400}", "holds the number 1e400, which is larger than any float"},
      {"[-1e999]", "holds the number -1e999, which is larger than any float"},
      {std::string(1000, '['), "nests deeper than 500 levels"},
  };
  for (const auto& [text, what] : wrong) {
    const ExactJson parsed = parse_exact(text);
    EXPECT_TRUE(parsed.wrong.starts_with(what)) << text.substr(0, 20) << ": " << parsed.wrong;
    EXPECT_TRUE(parsed.value.is_discarded());
  }
}

}  // namespace
}  // namespace tandem
