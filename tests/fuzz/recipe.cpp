// SPDX-License-Identifier: Apache-2.0
// A recipe, a byte 0, settings as `--set` has them, one a line: refused with a UserError, or a configuration whose YAML reads back as
// itself.
#include <cstdint>
#include <cstdlib>

#include "folder.h"
#include "tandem/base/error.h"
#include "tandem/data/source.h"
#include "tandem/config/config.h"

using namespace tandem;

namespace {

std::vector<config::Setting> settings_of(std::string_view text) {
  std::vector<config::Setting> settings;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equal = std::min(line.find('='), line.size());
    settings.push_back({line.substr(0, equal), line.substr(std::min(equal + 1, line.size()))});
  }
  return settings;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string recipe = folder.write("recipe.yaml", fuzz::take_part(input));
  std::string resolved;
  try {
    const config::RunConfig config = config::load_config(recipe, settings_of(input));
    resolved = config::to_yaml(config);
    data::mix_of(config.data);
  } catch (const UserError&) {
    if (resolved.empty()) return 0;
  }
  // Not within the catch: a configuration that was written is one that is read.
  if (config::to_yaml(config::load_config(folder.write("config.yaml", resolved), {})) != resolved) std::abort();
  return 0;
}
