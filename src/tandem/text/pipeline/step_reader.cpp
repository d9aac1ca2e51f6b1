// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/step_reader.h"

#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

constexpr const char* kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kDeepest = 20, kMostSteps = 100;  // of a list of steps, those of its Sequences included; known files have some five

// A Sequence in Sequences, laid flat.
std::vector<JsonPart> flat(const JsonPart& part, const std::string& list, size_t depth = 0) {
  if (part.is_none()) return {};
  if (part["type"].text() != "Sequence") return {part};
  if (depth == kDeepest) part.refuse("has a Sequence in Sequences " + std::to_string(kDeepest) + " deep", "expected fewer");
  std::vector<JsonPart> parts;
  for (const JsonPart& inner : part[list].items()) {
    if (inner.is_none()) inner.unsupported("expected an object with `type`");
    const std::vector<JsonPart> more = flat(inner, list, depth + 1);
    parts.insert(parts.end(), more.begin(), more.end());
    if (parts.size() > kMostSteps) part.refuse("has more than " + std::to_string(kMostSteps) + " steps", "expected fewer");
  }
  return parts;
}

TextPattern read_pattern(const JsonPart& part) {
  const JsonPart literal = part["String"], regex = part["Regex"];
  if (literal.is_none() == regex.is_none()) part.unsupported("expected {\"String\": ..} or {\"Regex\": ..}");
  TextPattern pattern{literal.is_none() ? regex.text() : literal.text(), literal.is_none(), part.where()};
  if (pattern.text.empty()) part.refuse("is empty", "expected a text to look for");
  return pattern;
}

bool is_one_character(const std::string& text) { return !text.empty() && utf8_step(text).length == text.size(); }

PreTokenizeStep::Behavior read_behavior(const JsonPart& part) {
  using Behavior = PreTokenizeStep::Behavior;
  static const std::pair<const char*, Behavior> kBehaviors[] = {{"Isolated", Behavior::kIsolated},
                                                                {"Removed", Behavior::kRemoved},
                                                                {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                                {"MergedWithNext", Behavior::kMergedWithNext},
                                                                {"Contiguous", Behavior::kContiguous}};
  for (const auto& [name, behavior] : kBehaviors)
    if (part.value() == name) return behavior;
  part.unsupported("supported are Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

// "always", "first" or "never"; older files have `add_prefix_space` instead.
std::string read_scheme(const JsonPart& metaspace) {
  const JsonPart scheme = metaspace["prepend_scheme"];
  const std::string name = scheme.text_or(metaspace["add_prefix_space"].flag_or(true) ? "always" : "never");
  if (name != "always" && name != "first" && name != "never") scheme.unsupported("supported are always, first, never");
  return name;
}

std::string read_mark(const JsonPart& metaspace) {
  const std::string mark = metaspace["replacement"].text_or("\u2581");
  if (!is_one_character(mark)) metaspace["replacement"].unsupported("expected one character");
  return mark;
}

void read_metaspace(const JsonPart& part, PreTokenizerForm& form) {
  using Step = PreTokenizeStep;
  const std::string mark = read_mark(part), scheme = read_scheme(part);
  form.steps.push_back({.kind = Step::Kind::kReplace, .pattern = {.text = " "}, .content = mark});
  if (scheme != "never") form.steps.push_back({.kind = Step::Kind::kPrefix, .content = mark, .only_first = scheme == "first"});
  if (part["split"].flag_or(true))
    form.steps.push_back({.pattern = {mark, false, part.where()}, .behavior = Step::Behavior::kMergedWithNext});
}

void read_template(const JsonPart& part, PostProcessorForm& form) {
  std::vector<int32_t> before, after;
  bool seen = false;
  for (const JsonPart& item : part["single"].items()) {
    if (const JsonPart sequence = item["Sequence"]; !sequence.is_none()) {
      if (seen || sequence["id"].value() != "A") item.unsupported("expected the text, A, once");
      seen = true;
      continue;
    }
    const std::string name = item["SpecialToken"]["id"].text();
    for (const JsonPart& id : part["special_tokens"][name]["ids"].items()) (seen ? after : before).push_back(id.number(kLargestId));
  }
  if (!seen) part["single"].unsupported("expected the text, A, once");
  form.prefix.insert(form.prefix.begin(), before.begin(), before.end());
  form.suffix.insert(form.suffix.end(), after.begin(), after.end());
}

}  // namespace

std::vector<NormalizeStep> read_normalizer(const JsonPart& part) {
  using Kind = NormalizeStep::Kind;
  std::vector<NormalizeStep> steps;
  for (const JsonPart& inner : flat(part, "normalizers")) {
    const std::string type = inner["type"].text();
    if (type == "Prepend") steps.push_back({.kind = Kind::kPrepend, .content = inner["prepend"].text()});
    else if (type == "Replace") steps.push_back({Kind::kReplace, read_pattern(inner["pattern"]), inner["content"].text()});
    else if (type == "NFC") steps.push_back({.kind = Kind::kNfc});
    else inner["type"].unsupported("supported are NFC, Prepend, Replace, Sequence");
  }
  return steps;
}

PreTokenizerForm read_pre_tokenizer(const JsonPart& part) {
  using Behavior = PreTokenizeStep::Behavior;
  constexpr auto kPrefix = PreTokenizeStep::Kind::kPrefix;
  PreTokenizerForm form;
  for (const JsonPart& inner : flat(part, "pretokenizers")) {
    if (form.byte_level) inner.unsupported("expected nothing after ByteLevel");
    const std::string type = inner["type"].text();
    if (type == "Split") {
      form.steps.push_back({.pattern = read_pattern(inner["pattern"]),
                            .behavior = read_behavior(inner["behavior"]),
                            .invert = inner["invert"].flag_or(false)});
    } else if (type == "Digits") {
      const bool alone = inner["individual_digits"].flag_or(false);
      form.steps.push_back({.pattern = {R"(\p{N})", true, inner.where()},
                            .behavior = alone ? Behavior::kIsolated : Behavior::kContiguous});
    } else if (type == "Metaspace") {
      read_metaspace(inner, form);
    } else if (type == "ByteLevel") {
      form.byte_level = true;
      if (inner["add_prefix_space"].flag_or(true)) form.steps.push_back({.kind = kPrefix, .content = " "});
      if (inner["use_regex"].flag_or(true)) form.steps.push_back({.pattern = {kGpt2Split, true, inner.where()}});
    } else {
      inner["type"].unsupported("supported are Split, Digits, Metaspace, ByteLevel, Sequence");
    }
  }
  return form;
}

PostProcessorForm read_post_processor(const JsonPart& part) {
  PostProcessorForm form;
  for (const JsonPart& inner : flat(part, "processors")) {
    const std::string type = inner["type"].text();
    if (type == "TemplateProcessing")
      read_template(inner, form);
    else if (type != "ByteLevel")
      inner["type"].unsupported("supported are TemplateProcessing, ByteLevel, Sequence");
  }
  return form;
}

DecodeSpec read_decoder(const JsonPart& part) {
  const std::vector<JsonPart> parts = flat(part, "decoders");
  DecodeSpec spec;
  if (parts.size() == 1 && parts[0]["type"].value() == "ByteLevel") return spec;
  spec.byte_level = false;
  if (part.is_none()) spec.separator = " ";
  size_t reached = 0;  // in the order of use
  static constexpr const char* kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip", "end"};
  for (const JsonPart& inner : parts) {
    const std::string type = inner["type"].text();
    if (type == "Metaspace" && parts.size() == 1) {
      spec.replaces.emplace_back(read_mark(inner), " ");
      if (read_scheme(inner) != "never") spec.first_drops = read_mark(inner);
      continue;
    }
    while (reached < 4 && type != kOrder[reached]) ++reached;
    if (reached == 4)
      inner["type"].unsupported("supported are ByteLevel or Metaspace alone, or Replace, ByteFallback, Fuse, Strip in this order");
    if (type == "Replace") {
      const TextPattern pattern = read_pattern(inner["pattern"]);
      if (pattern.regex) inner["pattern"].unsupported("expected {\"String\": ..} in a decoder");
      spec.replaces.emplace_back(pattern.text, inner["content"].text());
    } else if (type == "ByteFallback") {
      spec.byte_fallback = true;
    } else if (type == "Strip") {
      spec.strip = inner["content"].text();
      if (!is_one_character(spec.strip)) inner["content"].unsupported("expected one character");
      spec.num_strip = inner["start"].number(1000);
      if (inner["stop"].number(1000) != 0) inner["stop"].unsupported("supported is 0: nothing is taken off the end");
      reached = 4;
    }
  }
  return spec;
}

}  // namespace tandem::text
