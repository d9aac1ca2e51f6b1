// SPDX-License-Identifier: Apache-2.0
// Suite `tokenizer`: encodings, decodings and streams; each file is recognised by the fields of its rows.
#include <filesystem>
#include <memory>

#include "tandem/base/error.h"
#include "oracle/suites.h"
#include "tandem/text/stream.h"
#include "tandem/text/tokenizer_files.h"
#include "tandem/text/unicode.h"

namespace tandem::cli {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string model_of(const std::string& file, const OracleOptions& options) {
  if (!options.model.empty()) return options.model;
  const fs::path folder = fs::absolute(file).parent_path();
  return (folder / "../../data" / (folder.filename() == "stories260k" ? "stories260k/hf" : "qwen2.5-tokenizer")).string();
}

void run_encoding(const text::Tokenizer& tokenizer, const json& row, const std::string& name, Report& report) {
  const std::string text = row.at("text");
  const auto ids = tokenizer.encode(text);
  if (json(ids) != row.at("ids")) return report.expect_equal(name + " " + text.substr(0, 60), ids, row.at("ids"));
  if (row.contains("decoded_skip_special") && tokenizer.decode(ids, true) != row["decoded_skip_special"])
    return report.expect_equal(name + " decoded_skip_special", tokenizer.decode(ids, true), row["decoded_skip_special"]);
  if (!row.contains("decoded")) return report.pass();
  // Where special tokens are part of the ids but not of the expected text, the reference has skipped them.
  const bool skip = !row.contains("decoded_skip_special") && tokenizer.bos_id() && !ids.empty() && ids[0] == *tokenizer.bos_id();
  report.expect_equal(name + " decoded", tokenizer.decode(ids, skip), row["decoded"]);
}

void run_stream(const text::Tokenizer& tokenizer, const json& row, const std::string& name, Report& report) {
  text::StreamingDetokenizer stream(tokenizer, row.value("skip_special_tokens", false));
  std::string joined;
  for (int32_t id : row.at("ids")) {
    const std::string part = stream.push(id);
    if (!text::is_utf8(part)) return report.fail(name, "a chunk ends inside a character");
    joined += part;
  }
  joined += stream.finish();
  report.expect_equal(name, joined, row.at("text"));
}

void run_mini(const json& file, Report& report) {
  std::vector<std::string> merges = file.at("merges");
  json added = json::object();
  for (const auto& [content, id] : file.at("added_tokens").items())
    added[std::to_string(id.get<int>())] = {{"content", content}, {"special", true}};
  const text::Tokenizer tokenizer(text::qwen2_spec(file.at("vocab"), merges, {{{"added_tokens_decoder", added}}}, "qwen2_mini"),
                                  "qwen2_mini");
  for (const json& row : file.at("encode"))
    report.run("qwen2_mini encode", [&] { run_encoding(tokenizer, row, "qwen2_mini encode", report); });
  for (const json& row : file.at("decode"))
    report.run("qwen2_mini decode", [&] {
      report.expect_equal("qwen2_mini decode", tokenizer.decode(row.at("ids").get<std::vector<int32_t>>()), row.at("text"));
    });
}

}  // namespace

void run_tokenizer(const std::string& file, const OracleOptions& options, Report& report) {
  const std::string stem = fs::path(file).filename().string();
  if (fs::path(file).extension() == ".json") {
    const json content = oracle_json(file);
    if (!content.contains("vocab")) return report.skip(stem, "not a tokenizer file");
    return run_mini(content, report);
  }
  const auto tokenizer = text::Tokenizer::load(model_of(file, options));
  int64_t number = 0;
  for (const json& row : oracle_rows(file)) {
    const std::string name = stem + ":" + std::to_string(++number);
    report.run(name, [&] {
      if (row.contains("chunks")) return run_stream(tokenizer, row, name, report);
      if (!row.contains("text_skip_special")) return run_encoding(tokenizer, row, name, report);
      const auto ids = row.at("ids").get<std::vector<int32_t>>();
      report.expect_equal(name, json::array({tokenizer.decode(ids), tokenizer.decode(ids, true)}),
                          json::array({row.at("text"), row.at("text_skip_special")}));
    });
  }
}

}  // namespace tandem::cli
