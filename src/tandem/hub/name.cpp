// SPDX-License-Identifier: Apache-2.0
#include "tandem/hub/name.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHuggingFacePrefix = "hf:", kModelScopePrefix = "modelscope:";
constexpr std::array<std::string_view, 3> kDataSuffixes = {".jsonl", ".json", ".parquet"};
constexpr size_t kCommitLetters = 40;

std::vector<std::string> parts_of(const std::string& path) {
  const auto parts = split(path, '/');
  return {parts.begin(), parts.end()};
}

bool exists(const std::string& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

bool is_word(const std::string& text) {
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; };
  return !text.empty() && text.front() != '.' && std::ranges::all_of(text, is_letter);
}

bool is_commit(const std::string& text) {
  return text.size() == kCommitLetters && std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c); });
}

bool is_data_file(const std::string& text) {
  return std::ranges::any_of(kDataSuffixes, [&](std::string_view suffix) { return text.ends_with(suffix); });
}

// OWNER/NAME[/PATH][@REVISION]; nullopt if it is none.
std::optional<Name> plain_name(const std::string& text, Kind kind) {
  const size_t at = text.find('@');
  Name name;
  if (at != std::string::npos) name.revision = text.substr(at + 1);
  if (at != std::string::npos && name.revision.empty()) return std::nullopt;
  const std::vector<std::string> parts = parts_of(text.substr(0, at));
  if (parts.size() < 2 || (kind == Kind::kModel && parts.size() > 2) || !std::ranges::all_of(parts, is_word)) return std::nullopt;
  name.repository = parts[0] + "/" + parts[1];
  name.path = joined(std::span(parts).subspan(2), "/");
  return name;
}

}  // namespace

std::optional<Name> name_in(const std::string& text, Kind kind, const std::string& where) {
  if (text.empty() || exists(text)) return std::nullopt;
  for (const std::string_view prefix : {kHuggingFacePrefix, kModelScopePrefix}) {
    if (!text.starts_with(prefix)) continue;
    std::optional<Name> name = plain_name(text.substr(prefix.size()), kind);
    if (!name)
      throw UserError(where, "`" + text + "` names no repository",
                      std::string(prefix) + "OWNER/NAME" + (kind == Kind::kModel ? "" : "[/FILE]") + ", and @REVISION for one that stays");
    if (prefix == kModelScopePrefix) name->host = Host::kModelScope;
    return name;
  }
  if (std::optional<Name> fetched = name_of_fetched(text)) return fetched;
  if (is_data_file(text) || exists(text.substr(0, text.find('/')))) return std::nullopt;
  return plain_name(text, kind);
}

// .../models--OWNER--NAME/snapshots/REVISION[/PATH]
std::optional<Name> name_of_fetched(const std::string& path) {
  const std::vector<std::string> parts = parts_of(path);
  for (size_t i = 0; i + 2 < parts.size(); ++i) {
    const std::string& folder = parts[i];
    const size_t kind = folder.find("--"), owner = kind == std::string::npos ? kind : folder.find("--", kind + 2);
    const bool is_kept = folder.starts_with("models--") || folder.starts_with("datasets--");
    if (!is_kept || owner == std::string::npos || parts[i + 1] != "snapshots" || !is_commit(parts[i + 2])) continue;
    Name name{.repository = folder.substr(kind + 2, owner - kind - 2) + "/" + folder.substr(owner + 2)};
    name.path = joined(std::span(parts).subspan(i + 3), "/");
    name.revision = parts[i + 2];
    if (i > 0 && parts[i - 1] == "pinned") name.host = Host::kModelScope;  // fetch.py:ModelScope
    return name;
  }
  return std::nullopt;
}

bool stands_for(const Name& fetched, const Name& asked) {
  const bool below = asked.path.empty() || fetched.path == asked.path || fetched.path.starts_with(asked.path + "/");
  const bool same = fetched.host == asked.host && fetched.repository == asked.repository;
  return same && below && (!is_commit(asked.revision) || fetched.revision == asked.revision);
}

std::string to_text(const Name& name) {
  std::string text{name.host == Host::kHuggingFace ? kHuggingFacePrefix : kModelScopePrefix};
  text += name.repository;
  if (!name.path.empty()) text += "/" + name.path;
  if (!name.revision.empty()) text += "@" + name.revision;
  return text;
}

}  // namespace tandem::hub
