// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/tokenizer_files.h"

#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/strings.h"
#include "tandem/text/pipeline/step_reader.h"

namespace tandem::text {

using nlohmann::json;

const std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// What the model knows a name by: bytes, or in a vocabulary of characters the name itself. None for a name that no bytes have.
std::optional<std::string> key_of(const std::string& name, bool by_character) {
  std::string bytes;
  if (by_character) return name;
  return bytes_of_symbols(name, bytes) ? std::optional(bytes) : std::nullopt;
}

void read_vocab(const JsonPart& vocab, TokenizerSpec& spec) {
  if (!vocab.value().is_object()) vocab.unsupported("expected {\"token\": id, ...}");
  spec.bpe.vocab.reserve(vocab.value().size());
  for (const auto& [name, id] : vocab.value().items()) {
    const int32_t number = JsonPart(id, vocab.where() + ": token `" + name + "`").number(kLargestId);
    if (!spec.names.emplace(number, name).second)
      vocab.refuse("id " + std::to_string(number) + " belongs to two tokens, one of them `" + name + "`", "expected one token per id");
    if (auto key = key_of(name, spec.bpe.by_character)) spec.bpe.vocab.emplace(*key, number);
  }
}

void add_merge(const std::string& left, const std::string& right, Bpe::Spec& bpe) {
  auto left_key = key_of(left, bpe.by_character), right_key = key_of(right, bpe.by_character);
  if (left_key && right_key) bpe.merges.push_back({std::move(*left_key), std::move(*right_key)});
}

void add_merge_line(const std::string& line, const std::string& where, Bpe::Spec& bpe) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != std::string::npos)
    throw UserError(where, "`" + line.substr(0, 60) + "` is not a merge", "expected two tokens and one space between them");
  add_merge(line.substr(0, space), line.substr(space + 1), bpe);
}

void read_merges(const JsonPart& merges, Bpe::Spec& bpe) {
  for (const JsonPart& merge : merges.items()) {
    if (merge.value().is_string()) {
      add_merge_line(merge.text(), merge.where(), bpe);
      continue;
    }
    const std::vector<JsonPart> sides = merge.items();
    if (sides.size() != 2) merge.unsupported("expected two tokens");
    add_merge(sides[0].text(), sides[1].text(), bpe);
  }
}

// What changes ids and is not there: refused. Flags of training and of offsets are left alone.
void read_model(const JsonPart& model, TokenizerSpec& spec) {
  const std::string type = model["type"].text_or(model["merges"].is_none() ? "none" : "BPE");
  if (type != "BPE") model["type"].unsupported("supported is BPE");
  const JsonPart dropout = model["dropout"];
  if (!dropout.is_none() && dropout.value() != 0) dropout.unsupported("expected null: encoding is not random here");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[affix].text_or("").empty()) model[affix].unsupported("expected null");
  spec.bpe.byte_fallback = model["byte_fallback"].flag_or(false);
  spec.bpe.fuse_unk = model["fuse_unk"].flag_or(false);
  spec.bpe.whole_piece_first = model["ignore_merges"].flag_or(false);
  spec.bpe.unk = key_of(model["unk_token"].text_or(""), spec.bpe.by_character).value_or("");
  read_vocab(model["vocab"], spec);
  read_merges(model["merges"], spec.bpe);
}

void read_added_tokens(const JsonPart& added, TokenizerSpec& spec) {
  if (added.is_none()) return;
  std::map<std::string, int32_t> ids;
  for (const auto& [id, name] : spec.names) ids.emplace(name, id);
  for (const JsonPart& entry : added.items()) {
    spec.added.push_back(read_added(entry, entry["id"].number(kLargestId)));
    const AddedToken& token = spec.added.back();
    const auto known = ids.emplace(token.content, token.id).first;
    if (known->second != token.id)
      entry["id"].refuse("gives `" + token.content + "` the id " + std::to_string(token.id) + ", but it has " +
                             std::to_string(known->second),
                         "expected one id per token");
  }
}

std::vector<std::string> lines_of(const std::string& bytes) {
  std::vector<std::string> lines;
  for (std::string_view line : split(bytes, '\n')) lines.emplace_back(line.substr(0, line.size() - line.ends_with('\r')));
  return lines;
}

}  // namespace

TokenizerSpec qwen2_spec(const json& vocab, const std::vector<std::string>& merge_lines, const DeclaredTokens& declared,
                         const std::string& where) {
  TokenizerSpec spec;
  spec.bpe.where = where;
  spec.normalizer.emplace_back();
  spec.pre_tokenizer.push_back({.pattern = {std::string(kQwen2Split), true, where}});
  read_vocab({vocab, where + "/vocab.json"}, spec);
  spec.bpe.merges.reserve(merge_lines.size());
  for (size_t i = 0; i < merge_lines.size(); ++i) {
    if (merge_lines[i].empty() || (i == 0 && merge_lines[i].starts_with("#version"))) continue;
    add_merge_line(merge_lines[i], where + "/merges.txt:" + std::to_string(i + 1), spec.bpe);
  }
  add_declared_tokens(declared, where, spec);
  for (AddedToken& token : spec.added) token.normalized = false;  // Qwen2 matches all of them on the raw text
  return spec;
}

TokenizerSpec tokenizer_json_spec(const json& tokenizer, const DeclaredTokens& declared, const std::string& where) {
  constexpr std::string_view kTokenizer = "/tokenizer.json";
  const std::string directory = where.ends_with(kTokenizer) ? where.substr(0, where.size() - kTokenizer.size()) : where;
  const JsonPart file(tokenizer, where + ":");
  TokenizerSpec spec;
  spec.bpe.where = where;
  spec.normalizer = read_normalizer(file["normalizer"]);
  PreTokenizerForm pieces = read_pre_tokenizer(file["pre_tokenizer"]);
  spec.pre_tokenizer = std::move(pieces.steps);
  spec.bpe.by_character = !pieces.byte_level;
  PostProcessorForm around = read_post_processor(file["post_processor"]);
  spec.prefix_ids = std::move(around.prefix);
  spec.suffix_ids = std::move(around.suffix);
  spec.decoder = read_decoder(file["decoder"]);
  read_model(file["model"], spec);
  read_added_tokens(file["added_tokens"], spec);
  add_declared_tokens(declared, directory, spec);
  return spec;
}

bool Tokenizer::present_in(const std::string& directory) {
  const std::filesystem::path dir(directory);
  return std::filesystem::exists(dir / "tokenizer.json") || std::filesystem::exists(dir / "vocab.json");
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const std::string config_path = directory + "/tokenizer_config.json", tokenizer_path = directory + "/tokenizer.json";
  if (!std::filesystem::is_directory(directory))
    throw UserError(directory, "there is no such directory",
                    "expected a Hugging Face model directory; `scripts/get OWNER/NAME` fetches one");
  if (!present_in(directory))
    throw UserError(directory,
                    std::filesystem::exists(directory + "/adapter_config.json") ? "holds a PEFT adapter and no tokenizer"
                                                                                : "holds no tokenizer",
                    "expected tokenizer.json, or vocab.json with merges.txt");
  const auto read_if_there = [&](const std::string& path) {
    return std::filesystem::exists(path) ? read_json_object(path) : json::object();
  };
  DeclaredTokens declared{read_if_there(config_path), {}, read_if_there(directory + "/added_tokens.json"),
                          read_if_there(directory + "/special_tokens_map.json")};
  if (!declared.config.empty()) declared.config_in_order = nlohmann::ordered_json::parse(read_file(config_path));
  if (std::filesystem::exists(tokenizer_path))
    return Tokenizer(tokenizer_json_spec(read_json_object(tokenizer_path), declared, tokenizer_path), directory);
  const json vocab = read_json_object(directory + "/vocab.json");
  return Tokenizer(qwen2_spec(vocab, lines_of(read_file(directory + "/merges.txt")), declared, directory), directory);
}

void write_char_tokenizer(const std::string& directory, std::string_view alphabet, const std::vector<std::string>& special_tokens) {
  json vocab = json::object(), added = json::array(), decoder = json::object();
  std::set<std::string> seen;
  int32_t id = 0;
  for (const std::string& token : special_tokens) {
    if (token.empty() || !seen.insert(token).second)
      throw UserError(directory, "special token `" + token + "` is empty or repeated", "expected distinct names");
    json entry = {{"id", id},        {"content", token},    {"single_word", false}, {"lstrip", false},
                  {"rstrip", false}, {"normalized", false}, {"special", true}};
    added.push_back(entry);
    entry.erase("id");
    decoder[std::to_string(id)] = entry;
    vocab[token] = id++;
  }
  for (char c : alphabet) {
    if (static_cast<unsigned char>(c) >= 128 || !seen.insert(std::string(1, c)).second)
      throw UserError(directory, std::string("alphabet character `") + c + "` is repeated or not ASCII",
                      "expected distinct ASCII characters");
    vocab[byte_symbols()[static_cast<unsigned char>(c)]] = id++;
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", false},
                            {"vocab", vocab},
                            {"merges", json::array()}}}};
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}, {"model_max_length", 1 << 20},
                 {"added_tokens_decoder", decoder}};
  if (seen.count("<eos>")) config["eos_token"] = "<eos>";
  if (seen.count("<pad>")) config["pad_token"] = "<pad>";
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) throw PeerError(directory + ": cannot be created: " + failed.message());
  write_file(directory + "/tokenizer.json", tokenizer.dump(2));
  write_file(directory + "/tokenizer_config.json", config.dump(2));
}

}  // namespace tandem::text
