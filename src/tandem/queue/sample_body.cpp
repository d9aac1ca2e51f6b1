// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/sample_body.h"

namespace tandem::queue {

std::vector<CacheField> body_fields() {
  const std::vector<int32_t> ids;
  const std::vector<char> text;
  return {{"prompt_ids", ids, kPrompt},
          {"response_ids", ids, kTraining},
          {"logprobs", std::vector<float>(), kTraining},
          {"routes", std::vector<int16_t>(), kTraining},
          {"versions", std::vector<int64_t>(), kRecord},
          {"kept_mass", std::vector<float>(), kRecord},
          {"text", text, kRecord},
          {"prompt_text", text, kRecord},
          {"answer", text, kRecord},
          {"data_source", text, kRecord}};
}

data::Group head_of(const data::Group& group) {
  data::Group head{group.id, {}, group.version, {}};
  head.prompt.row = group.prompt.row;
  for (const data::Sample& s : group.samples) {
    data::Sample& kept = head.samples.emplace_back();
    kept.id = s.id, kept.finish = s.finish, kept.scored = s.scored, kept.score = s.score, kept.parts = s.parts;
  }
  if (group.greedy) {
    data::Sample& kept = head.greedy.emplace();
    kept.scored = group.greedy->scored, kept.score = group.greedy->score;
    if (!kept.scored) kept.text = group.greedy->text;
  }
  return head;
}

void add_body(data::Group& head, const TensorCache& bodies) {
  const auto list = [&]<class T>(std::vector<T>& to, data::SampleId id, const char* name) {
    const auto from = bodies.read<T>(id, bodies.field(name));
    to.assign(from.begin(), from.end());
  };
  const auto text = [&](std::string& to, data::SampleId id, const char* name) {
    const auto from = bodies.read<char>(id, bodies.field(name));
    to.assign(from.begin(), from.end());
  };
  const data::SampleId first = head.samples.front().id;
  list(head.prompt.ids, first, "prompt_ids");
  text(head.prompt.text, first, "prompt_text");
  text(head.prompt.answer, first, "answer");
  text(head.prompt.data_source, first, "data_source");
  for (data::Sample& s : head.samples) {
    list(s.ids, s.id, "response_ids");
    list(s.logprobs, s.id, "logprobs");
    list(s.kept_mass, s.id, "kept_mass");
    list(s.versions, s.id, "versions");
    list(s.routes, s.id, "routes");
    text(s.text, s.id, "text");
  }
}

}  // namespace tandem::queue
