// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json, a byte 0, a text: the file is refused with a UserError, or what it makes of the text can be decoded.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tandem/base/error.h"
#include "tandem/text/tokenizer.h"
#include "tandem/text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const auto json = nlohmann::json::parse(input.substr(0, end), nullptr, false);
  if (!json.is_object()) return 0;
  const std::string_view text = input.substr(std::min(end + 1, size));
  try {
    const Tokenizer tokenizer(tokenizer_json_spec(json, {}, "fuzz"), "fuzz");
    for (const Special special : {Special::kRecognise, Special::kPlain}) tokenizer.decode(tokenizer.encode(text, special));
  } catch (const tandem::UserError&) {
    return 0;
  }
  return 0;
}
