// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/tokenizer_files.h"

#include <filesystem>
#include <set>

#include "tandem/base/error.h"
#include "tandem/text/json_file.h"

namespace tandem::text {

using nlohmann::json;

const std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const std::string& where, const std::string& part, const json& value) {
  throw UserError(where, part + " is not supported: " + value.dump().substr(0, 120),
                  "expected a byte-level BPE tokenizer, such as those of Qwen, Llama 3 or DeepSeek");
}

// The name of a token: a text, or an object as added tokens have it; null and absent are none.
std::string token_name(const json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && found->at("content").is_string()) return found->at("content").get<std::string>();
  throw UserError(where, std::string("\"") + key + "\" is " + found->dump().substr(0, 80), "expected a text, or an object with `content`");
}

// `where` is tokenizer.json itself, or the directory.
void read_names(const json& config, TokenizerSpec& spec, const std::string& where) {
  constexpr std::string_view kTokenizer = "/tokenizer.json";
  const std::string directory = where.ends_with(kTokenizer) ? where.substr(0, where.size() - kTokenizer.size()) : where;
  spec.eos = token_name(config, "eos_token", directory + "/tokenizer_config.json");
  spec.bos = token_name(config, "bos_token", directory + "/tokenizer_config.json");
}

bool flag(const json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end()) return false;
  if (!found->is_boolean())
    throw UserError(where, std::string("\"") + key + "\" of an added token is " + found->dump().substr(0, 80), "expected true or false");
  return found->get<bool>();
}

int32_t read_id(const json& id, const std::string& token, const std::string& where) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > 100'000'000)
    throw UserError(where, "token `" + token + "` has id " + id.dump(), "expected a small non-negative integer");
  return id.get<int32_t>();
}

AddedToken read_added(const json& entry, int32_t id, const std::string& where) {
  if (!entry.is_object() || !entry.contains("content") || !entry["content"].is_string())
    throw UserError(where, "an added token is malformed: " + entry.dump().substr(0, 80), "expected an object with `content`");
  AddedToken token;
  token.id = id;
  token.content = entry["content"].get<std::string>();
  token.special = flag(entry, "special", where);
  token.normalized = flag(entry, "normalized", where);
  token.lstrip = flag(entry, "lstrip", where);
  token.rstrip = flag(entry, "rstrip", where);
  token.single_word = flag(entry, "single_word", where);
  return token;
}

// Token bytes of a name in the vocabulary; in the SentencePiece form names are the text itself.
std::string key_of(const std::string& name, bool byte_level) {
  std::string bytes;
  return byte_level && bytes_of_symbols(name, bytes) ? bytes : name;
}

void read_vocab(const json& vocab, TokenizerSpec& spec, const std::string& where) {
  if (!vocab.is_object()) throw UserError(where, "the vocabulary is not a JSON object", "expected {\"token\": id, ...}");
  spec.bpe.vocab.reserve(vocab.size());
  for (const auto& [name, id] : vocab.items()) {
    const int32_t number = read_id(id, name, where);
    if (!spec.names.emplace(number, name).second)
      throw UserError(where, "id " + std::to_string(number) + " belongs to two tokens, one of them `" + name + "`",
                      "expected one token per id");
    spec.bpe.vocab.emplace(key_of(name, !spec.bpe.by_character), number);
  }
}

Bpe::Merge read_merge(const std::string& line, bool byte_level, const std::string& where, size_t number) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != std::string::npos)
    throw UserError(where + ":" + std::to_string(number), "`" + line.substr(0, 60) + "` is not a merge",
                    "expected two tokens and one space between them");
  return {key_of(line.substr(0, space), byte_level), key_of(line.substr(space + 1), byte_level)};
}

std::string pattern_text(const json& pattern, const std::string& where) {
  if (pattern.is_object() && pattern.contains("Regex")) return pattern["Regex"].get<std::string>();
  if (pattern.is_object() && pattern.contains("String")) {
    std::string out;
    for (char c : pattern["String"].get<std::string>()) {
      if (static_cast<unsigned char>(c) < 128 && !std::isalnum(static_cast<unsigned char>(c))) out += '\\';
      out += c;
    }
    return out;
  }
  unsupported(where, "a split pattern", pattern);
}

void read_pre_tokenizer(const json& part, TokenizerSpec& spec, const std::string& where) {
  if (part.is_null()) return;
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    for (const json& inner : part.at("pretokenizers")) read_pre_tokenizer(inner, spec, where);
  } else if (type == "Split") {
    const std::string behavior = part.value("behavior", "");
    const bool covers = behavior == "Isolated" || (behavior == "Removed" && part.value("invert", false));
    if (!covers) unsupported(where, "the pre-tokenizer", part);
    spec.splits.push_back(pattern_text(part.at("pattern"), where));
  } else if (type == "Digits" && part.value("individual_digits", false)) {
    spec.splits.emplace_back(R"(\p{N})");
  } else if (type == "ByteLevel") {
    if (part.value("add_prefix_space", false)) unsupported(where, "the pre-tokenizer", part);
    if (part.value("use_regex", true)) spec.splits.emplace_back(kGpt2Split);
  } else {
    unsupported(where, "the pre-tokenizer", part);
  }
}

void read_normalizer(const json& part, TokenizerSpec& spec, const std::string& where) {
  if (part.is_null()) return;
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    for (const json& inner : part.at("normalizers")) read_normalizer(inner, spec, where);
  } else if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Prepend") {
    spec.prepend = part.at("prepend").get<std::string>();
  } else if (type == "Replace" && part.at("pattern").value("String", "") == " ") {
    spec.space = part.at("content").get<std::string>();
  } else {
    unsupported(where, "the normalizer", part);
  }
}

void read_post_processor(const json& part, TokenizerSpec& spec, const std::string& where) {
  if (part.is_null()) return;
  const std::string type = part.value("type", "");
  if (type == "Sequence") {
    for (const json& inner : part.at("processors")) read_post_processor(inner, spec, where);
  } else if (type == "TemplateProcessing") {
    bool before = true;
    for (const json& item : part.at("single")) {
      if (item.contains("Sequence")) {
        before = false;
        continue;
      }
      const std::string name = item.at("SpecialToken").at("id").get<std::string>();
      for (const json& id : part.at("special_tokens").at(name).at("ids"))
        (before ? spec.prefix_ids : spec.suffix_ids).push_back(read_id(id, name, where));
    }
  } else if (type != "ByteLevel") {
    unsupported(where, "the post-processor", part);
  }
}

std::vector<std::string> lines_of(const std::string& bytes) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at; (at = bytes.find('\n', begin)) != std::string::npos; begin = at + 1) lines.push_back(bytes.substr(begin, at - begin));
  if (begin < bytes.size()) lines.push_back(bytes.substr(begin));
  for (std::string& line : lines)
    if (line.ends_with('\r')) line.pop_back();
  return lines;
}

}  // namespace

TokenizerSpec qwen2_spec(const json& vocab, const std::vector<std::string>& merge_lines, const json& config, const std::string& where) {
  TokenizerSpec spec;
  spec.bpe.where = where;
  spec.nfc = true;
  spec.splits = {std::string(kQwen2Split)};
  read_vocab(vocab, spec, where + "/vocab.json");
  spec.bpe.merges.reserve(merge_lines.size());
  for (size_t i = 0; i < merge_lines.size(); ++i) {
    if (merge_lines[i].empty() || (i == 0 && merge_lines[i].starts_with("#version"))) continue;
    spec.bpe.merges.push_back(read_merge(merge_lines[i], true, where + "/merges.txt", i + 1));
  }
  if (config.contains("added_tokens_decoder")) {
    for (const auto& [id, entry] : config["added_tokens_decoder"].items()) {
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
        throw UserError(where + "/tokenizer_config.json", "`" + id + "` is not a token id", "expected decimal digits");
      AddedToken token = read_added(entry, std::stoi(id), where + "/tokenizer_config.json");
      token.normalized = false;  // Qwen2 matches all of them on the raw text
      spec.added.push_back(std::move(token));
    }
  }
  read_names(config, spec, where);
  return spec;
}

TokenizerSpec tokenizer_json_spec(const json& tokenizer, const json& config, const std::string& where) try {
  const json& model = tokenizer.at("model");
  const std::string type = model.value("type", model.contains("merges") ? "BPE" : "");
  if (type != "BPE") unsupported(where, "the model", type);
  TokenizerSpec spec;
  spec.bpe.where = where;
  read_normalizer(tokenizer.value("normalizer", json()), spec, where);
  spec.bpe.by_character = !spec.space.empty();
  if (spec.bpe.by_character && !model.value("byte_fallback", false))
    unsupported(where, "a SentencePiece model without byte_fallback", type);
  spec.bpe.whole_piece_first = model.value("ignore_merges", false);
  read_pre_tokenizer(tokenizer.value("pre_tokenizer", json()), spec, where);
  read_post_processor(tokenizer.value("post_processor", json()), spec, where);
  read_vocab(model.at("vocab"), spec, where);
  const bool byte_level = !spec.bpe.by_character;
  size_t number = 0;
  for (const json& merge : model.at("merges")) {
    ++number;
    if (merge.is_string())
      spec.bpe.merges.push_back(read_merge(merge.get<std::string>(), byte_level, where + " merges", number));
    else
      spec.bpe.merges.push_back({key_of(merge.at(0).get<std::string>(), byte_level), key_of(merge.at(1).get<std::string>(), byte_level)});
  }
  for (const json& entry : tokenizer.value("added_tokens", json::array())) {
    const int32_t id = read_id(entry.at("id"), entry.value("content", ""), where);
    spec.added.push_back(read_added(entry, id, where));
  }
  read_names(config, spec, where);
  return spec;
} catch (const json::exception& e) {
  throw UserError(where, std::string("is not a tokenizer: ") + e.what(), "expected the form of the Hugging Face tokenizers library");
}

bool Tokenizer::present_in(const std::string& directory) {
  const std::filesystem::path dir(directory);
  return std::filesystem::exists(dir / "tokenizer.json") || std::filesystem::exists(dir / "vocab.json");
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const std::string config_path = directory + "/tokenizer_config.json", tokenizer_path = directory + "/tokenizer.json";
  if (!std::filesystem::is_directory(directory))
    throw UserError(directory, "there is no such directory", "expected a Hugging Face model directory");
  if (!present_in(directory))
    throw UserError(directory, "holds no tokenizer", "expected tokenizer.json, or vocab.json with merges.txt");
  const json config = std::filesystem::exists(config_path) ? read_json_object(config_path) : json::object();
  if (std::filesystem::exists(tokenizer_path))
    return Tokenizer(tokenizer_json_spec(read_json_object(tokenizer_path), config, tokenizer_path), directory);
  const json vocab = read_json_object(directory + "/vocab.json");
  return Tokenizer(qwen2_spec(vocab, lines_of(read_file(directory + "/merges.txt")), config, directory), directory);
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
