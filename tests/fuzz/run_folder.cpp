// SPDX-License-Identifier: Apache-2.0
// Lines of metrics, a byte 0, a summary, a byte 0, a recipe: what the page of a run is told of them is JSON, the same whenever asked for,
// and each line that is JSON comes once, from wherever it is asked for.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "folder.h"
#include "tandem/board/run_folder.h"

using namespace tandem;
using nlohmann::json;

namespace {

void check_metrics(board::RunFolder& run) {
  const json all = json::parse(run.metrics(0));
  if (all != json::parse(run.metrics(0))) std::abort();
  const int64_t total = all.at("total"), middle = total / 2;
  if (all.at("next") != std::min(total, board::RunFolder::kMaxLines)) return;  // long lines, or many
  json halves = json::parse(run.metrics(middle)).at("lines");
  if (halves.size() > all.at("lines").size()) std::abort();
  for (size_t i = 1; i <= halves.size(); ++i)
    if (halves[halves.size() - i] != all["lines"][all["lines"].size() - i] && total <= board::RunFolder::kMaxLines) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view metrics = fuzz::take_part(input);
  folder.write("metrics.jsonl", metrics.substr(0, metrics.size() / 2));
  folder.write("summary.json", fuzz::take_part(input));
  folder.write("config.yaml", input);
  board::RunFolder run(folder.path());
  json::parse(run.run());
  check_metrics(run);
  (void)run.prometheus();
  folder.write("metrics.jsonl", metrics);  // it has grown, or a resume has cut it back
  check_metrics(run);
  json::parse(run.run());
  return 0;
}
