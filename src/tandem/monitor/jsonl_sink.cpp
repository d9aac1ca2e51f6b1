// SPDX-License-Identifier: Apache-2.0
#include "tandem/monitor/jsonl_sink.h"

#include "tandem/monitor/json_text.h"

namespace tandem::monitor {

void JsonlSink::write_step(int64_t step, const Metrics& metrics) {
  std::string line = "{\"step\":" + std::to_string(step);
  for (const auto& [name, value] : metrics) {
    if (name == "step") continue;
    line += ',';
    append_json_string(line, name);
    line += ':';
    append_json_number(line, value);
  }
  line += "}\n";
  file_.append(line);
}

}  // namespace tandem::monitor
