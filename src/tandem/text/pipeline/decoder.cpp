// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/pipeline/decoder.h"

#include <cstdio>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/text/bpe.h"
#include "tandem/text/unicode.h"

namespace tandem::text {
namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

bool is_byte_name(const std::string& name, char& byte) {
  unsigned int code = 0;
  int end = 0;
  if (name.size() != 6 || std::sscanf(name.c_str(), "<0x%2X>%n", &code, &end) != 1 || end != 6) return false;
  byte = static_cast<char>(code);
  return true;
}

// Before it is built: a chain that doubles each time would else fill the memory. What files of tokenizers replace grows threefold.
std::string replaced_within(const std::string& text, const std::string& from, const std::string& to, size_t most) {
  size_t size = text.size();
  for (size_t at = text.find(from); !from.empty() && at != std::string::npos; at = text.find(from, at + from.size())) {
    size += to.size() - from.size();
    if (to.size() > from.size() && size > most)
      throw UserError("tokenizer.json: decoder", "its Replace makes a token larger than " + std::to_string(most) + " bytes",
                      "expected a text for a token that is about as long as its name");
  }
  return replaced(text, from, to);
}

}  // namespace

TokenPart part_of(const std::string& name, const DecodeSpec& spec) {
  TokenPart part;
  if (spec.byte_level) {
    if (!bytes_of_symbols(name, part.text)) part.text = name;
    return part;
  }
  part.text = name;
  const size_t most = 16 * name.size() + 64;
  for (const auto& [from, to] : spec.replaces) part.text = replaced_within(part.text, from, to, most);
  char byte;
  if (spec.byte_fallback && is_byte_name(part.text, byte)) part = {std::string(1, byte), true};
  return part;
}

void TextJoiner::add(std::string_view text, bool is_byte, std::string& out) {
  if (spec_->byte_level || is_byte) return add_bytes(text, out);
  finish(out);
  if (!at_start_) give(spec_->separator, out);
  at_start_ = false;
  give(text, out);
}

void TextJoiner::add_bytes(std::string_view bytes, std::string& out) {
  pending_ += bytes;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = utf8_step(std::string_view(pending_).substr(at, 4));
    if (step.incomplete) break;
    const size_t taken = step.valid || spec_->byte_level ? step.length : 1;
    give(step.valid ? std::string_view(pending_).substr(at, taken) : kReplacementText, out);
    at += taken;
  }
  pending_.erase(0, at);
}

void TextJoiner::finish(std::string& out) {
  if (pending_.empty()) return;
  const size_t times = spec_->byte_level ? 1 : pending_.size();  // the beginning of a character is one ill-formed part
  pending_.clear();
  for (size_t i = 0; i < times; ++i) give(kReplacementText, out);
}

void TextJoiner::give(std::string_view text, std::string& out) {
  for (; num_strip_ > 0 && !text.empty() && text.starts_with(spec_->strip); --num_strip_) text.remove_prefix(spec_->strip.size());
  if (!text.empty()) num_strip_ = 0;
  out += text;
}

}  // namespace tandem::text
