// SPDX-License-Identifier: Apache-2.0
// A chat template, a byte 0, its variables as JSON: it is refused with a UserError, or renders within its limits.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tandem/base/error.h"
#include "tandem/text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  auto variables = nlohmann::ordered_json::parse(input.substr(std::min(end + 1, size)), nullptr, false);
  if (!variables.is_object())
    variables = {{"messages", {{{"role", "user"}, {"content", "Hi <é>"}}, {{"role", "assistant"}, {"content", nullptr}}}},
                 {"bos_token", "<s>"},
                 {"add_generation_prompt", true},
                 {"numbers", {3, 1.5, -2}}};
  try {
    jinja::Limits limits;
    limits.work = int64_t{1} << 22;
    limits.output_bytes = int64_t{1} << 20;
    limits.depth = 200;
    jinja::Template(input.substr(0, end), "fuzz", limits).render(variables);
  } catch (const tandem::UserError&) {
    return 0;
  }
  return 0;
}
