// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/declared_tokens.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tandem/text/pipeline/step_reader.h"

namespace tandem::text {
namespace {

using nlohmann::json;

constexpr const char* kDecoder = "added_tokens_decoder";

// A token and who declares it. Without an id, the next one is meant.
struct Declared {
  JsonPart by;
  AddedToken token;
  std::optional<int32_t> id;
};

// A text, or an object as added tokens have it. Special tokens are looked for in the raw text.
AddedToken special_token(const JsonPart& part) {
  AddedToken token;
  if (part.value().is_object()) token = read_added(part, 0);
  else token.content = part.text();
  token.special = true;
  return token;
}

std::map<int32_t, Declared> decoder_tokens(const JsonPart& decoder) {
  std::map<int32_t, Declared> tokens;
  if (!decoder.value().is_object()) decoder.unsupported("expected an object");
  for (const auto& [name, entry] : decoder.value().items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0 || id > kLargestId)
      decoder.refuse("has `" + name + "`, which is not a token id", "expected an integer from 0 to " + std::to_string(kLargestId));
    const JsonPart part = decoder[name];
    tokens.emplace(id, Declared{part, read_added(part, id), id});
  }
  return tokens;
}

// The named special tokens in the order in which they get their ids, and the extra ones behind them.
class SpecialTokens {
 public:
  SpecialTokens(const DeclaredTokens& files, const JsonPart& config, const JsonPart& map) {
    for (const char* key : kNames) standard(config, key);
    for (const auto& [key, value] : files.config_in_order.items())
      if (key.ends_with("_token") && value.is_string() && !is_standard(key))
        named_.push_back({config[key], special_token(config[key]), {}});
    const char* extra = has(config, "extra_special_tokens") ? "extra_special_tokens" : "additional_special_tokens";
    constexpr const char* kModels = "model_specific_special_tokens";
    if (has(config, kModels)) {
      if (!config[kModels].value().is_object()) config[kModels].unsupported("expected an object of names and tokens");
      add_extra(config[kModels], files.config_in_order[kModels]);
    }
    if (has(config, extra)) add_extra(config[extra], files.config_in_order[extra]);
    if (files.config.contains(kDecoder)) return;
    for (const char* key : kNames) standard(map, key);
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
      if (has(map, key) && (extra_.empty() || std::string_view(key) == "extra_special_tokens")) add_extra(map[key], {});
  }

  std::string name_of(const char* key) const {
    const auto found = standard_.find(key);
    return found == standard_.end() ? "" : found->second.token.content;
  }

  bool is_named(const std::string& content) const {
    const auto is_it = [&](const Declared& one) { return one.token.content == content; };
    return std::ranges::any_of(named_, is_it) || std::ranges::any_of(standard_, [&](const auto& one) { return is_it(one.second); });
  }

  std::vector<Declared> in_order() const {
    std::vector<Declared> all;
    for (const char* key : kNames)
      if (const auto found = standard_.find(key); found != standard_.end()) all.push_back(found->second);
    all.insert(all.end(), named_.begin(), named_.end());
    all.insert(all.end(), extra_.begin(), extra_.end());
    return all;
  }

 private:
  static constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
  static bool is_standard(std::string_view key) { return std::ranges::find(kNames, key) != std::end(kNames); }
  static bool has(const JsonPart& file, const char* key) { return !file[key].is_none() && !file[key].value().empty(); }

  void standard(const JsonPart& file, const char* key) {
    if (file[key].is_none()) return;
    if (AddedToken token = special_token(file[key]); !token.content.empty())
      standard_.insert_or_assign(key, Declared{file[key], std::move(token), {}});
  }

  // A list, or names and tokens.
  void add_extra(const JsonPart& tokens, const nlohmann::ordered_json& in_order) {
    if (tokens.value().is_object()) {
      for (const auto& [name, unused] : in_order.items()) named_.push_back({tokens[name], special_token(tokens[name]), {}});
      return;
    }
    for (const JsonPart& one : tokens.items()) extra_.push_back({one, special_token(one), {}});
  }

  std::map<std::string, Declared, std::less<>> standard_;
  std::vector<Declared> named_, extra_;
};

// The tokens of a spec by what they are written as. It looks up where declared ones are.
class Known {
 public:
  Known(TokenizerSpec& spec, std::string place) : spec_(spec), place_(std::move(place)) {
    for (const auto& [id, name] : spec.names) ids_.emplace(name, id);
    next_ = static_cast<int32_t>(spec.names.size());
    for (size_t i = 0; i < spec.added.size(); ++i) take(spec.added[i].content, spec.added[i].id, i);
  }

  bool is_added(const std::string& content) const {
    const auto found = ids_.find(content);
    return found != ids_.end() && places_.count(found->second) > 0;
  }

  /// `overrides`: its flags take the place of those that the token has.
  void declare(const Declared& declared, bool overrides, bool is_named) {
    AddedToken token = declared.token;
    if (token.content.empty()) return;
    if (const auto known = ids_.find(token.content); known != ids_.end()) {
      if (declared.id && *declared.id != known->second) refuse(declared, "but " + place_ + " gives it " + std::to_string(known->second));
      token.id = known->second;
      if (const auto at = places_.find(token.id); at != places_.end()) {
        AddedToken& own = spec_.added[at->second];
        if (!overrides || same_flags(own, token)) return;
        token.special |= own.special || is_named;
        own = std::move(token);
        return;
      }
    } else {
      token.id = declared.id.value_or(next_);
      if (const auto name = written(token.id)) refuse(declared, "but " + place_ + " gives that to `" + *name + "`");
      if (token.id != next_)
        refuse(declared, "but the next one behind those of " + place_ + " is " + std::to_string(next_) + ", which transformers gives it");
    }
    token.special |= is_named;
    spec_.added.push_back(std::move(token));
    take(spec_.added.back().content, spec_.added.back().id, spec_.added.size() - 1);
  }

 private:
  static bool same_flags(const AddedToken& a, const AddedToken& b) {
    return a.special == b.special && a.normalized == b.normalized && a.lstrip == b.lstrip && a.rstrip == b.rstrip &&
           a.single_word == b.single_word;
  }
  void take(const std::string& content, int32_t id, size_t at) {
    ids_.emplace(content, id);
    places_[id] = at;
    next_ = std::max(next_, id + 1);
  }

  std::optional<std::string> written(int32_t id) const {
    if (const auto at = places_.find(id); at != places_.end()) return spec_.added[at->second].content;
    const auto name = spec_.names.find(id);
    return name == spec_.names.end() ? std::nullopt : std::optional(name->second);
  }

  [[noreturn]] static void refuse(const Declared& declared, const std::string& other) {
    declared.by.refuse("gives `" + declared.token.content + "` the id " + std::to_string(declared.token.id) + ", " + other,
                       "expected files that agree");
  }

  TokenizerSpec& spec_;
  std::string place_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, size_t> places_;  // of an id in spec.added
  int32_t next_ = 0;
};

}  // namespace

AddedToken read_added(const JsonPart& entry, int32_t id) {
  return {.id = id,
          .content = entry["content"].text(),
          .special = entry["special"].flag_or(false),
          .normalized = entry["normalized"].flag_or(false),
          .lstrip = entry["lstrip"].flag_or(false),
          .rstrip = entry["rstrip"].flag_or(false),
          .single_word = entry["single_word"].flag_or(false)};
}

void add_declared_tokens(const DeclaredTokens& files, const std::string& directory, TokenizerSpec& spec) {
  const JsonPart config(files.config, directory + "/tokenizer_config.json:");
  const JsonPart added(files.added, directory + "/added_tokens.json:"), map(files.special_map, directory + "/special_tokens_map.json:");
  const SpecialTokens special(files, config, map);
  spec.eos = special.name_of("eos_token");
  spec.bos = special.name_of("bos_token");

  const std::vector<Declared> by_role = special.in_order();
  std::set<std::string> roles;
  for (const Declared& one : by_role) roles.insert(one.token.content);
  std::map<int32_t, Declared> with_id;
  const bool has_decoder = !config[kDecoder].is_none();
  if (has_decoder) with_id = decoder_tokens(config[kDecoder]);
  for (const auto& [content, unused] : files.added.items()) {
    const JsonPart part = added[content];
    const int32_t id = part.number(kLargestId);
    const auto other = with_id.find(id);
    if (other != with_id.end() && other->second.token.content != content)
      part.refuse("gives `" + content + "` the id " + std::to_string(id) + ", which " + other->second.by.where() + " gives to `" +
                      other->second.token.content + "`",
                  "expected files that agree");
    AddedToken token;
    token.id = id;
    token.content = content;
    token.special = roles.count(content) > 0;
    token.normalized = !token.special;
    if (!has_decoder) with_id.emplace(id, Declared{part, std::move(token), id});
  }

  Known known(spec, directory + "/" + (spec.bpe.where.ends_with("tokenizer.json") ? "tokenizer.json" : "vocab.json"));
  for (const auto& [id, one] : with_id) known.declare(one, has_decoder, special.is_named(one.token.content));
  for (const Declared& one : by_role)
    if (!known.is_added(one.token.content)) known.declare(one, false, true);  // also what the vocabulary has: it is found as a whole then
}

}  // namespace tandem::text
