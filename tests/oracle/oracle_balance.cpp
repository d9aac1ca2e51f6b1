// SPDX-License-Identifier: Apache-2.0
// The suites `balance` and `flops`: what a batch costs, and how level it is dealt.

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tandem/base/check.h"
#include "oracle/oracle_losses.h"
#include "oracle/suites.h"
#include "tandem/model/flops.h"
#include "tandem/train/balance.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

std::string file_name(const std::string& file) { return std::filesystem::path(file).filename().string(); }

void expect_level(const std::string& name, const json& c, Report& report) {
  const auto costs = c.at("lengths").get<std::vector<double>>();
  const int parts = c.at("k");
  const std::vector<int> part = train::balance(costs, parts);
  std::vector<double> loads(static_cast<size_t>(parts));
  for (size_t i = 0; i < part.size(); ++i) loads.at(static_cast<size_t>(part[i])) += costs[i];
  const double most = *std::max_element(loads.begin(), loads.end());
  const double bound = c.at("kk_max_load");
  if (most > bound) report.fail(name, join_text("the largest load is ", most, ", expected at most ", bound));
  else report.pass();
}

// The cases state a model's shape alone; what else a config.json has does not change what it costs.
model::ModelConfig shape_of(json config, const std::string& where) {
  for (const char* key : {"intermediate_size", "max_position_embeddings", "eos_token_id"})
    if (!config.contains(key)) config[key] = 1;
  if (config.at("model_type") == "mistral") config["model_type"] = "llama";  // the same shape
  return model::parse_config(config, where);
}

}  // namespace

void run_balance(const std::string& file, const OracleOptions&, Report& report) {
  const json all = oracle_json(file);
  int64_t number = 0;
  for (const json& c : cases_of(all, file_name(file))) {
    const std::string name = join_text(c.at("kind").get<std::string>(), " ", number++);
    report.run(name, [&] { expect_level(name, c, report); });
  }
}

void run_flops(const std::string& file, const OracleOptions&, Report& report) {
  const json all = oracle_json(file);
  for (const json& c : cases_of(all, file_name(file))) {
    const std::string name = c.at("name").get<std::string>() + " " + c.at("seqlens").dump();
    const std::string type = c.at("config").at("model_type");
    if (type == "gemma3_text" || type == "gpt_oss" || type == "apertus") {
      report.skip(name, "its family is not built");
      continue;
    }
    report.run(name, [&] {
      model::TokenWork work;
      for (const json& length : c.at("seqlens")) work.add(length);
      const double tflop = model::training_flops(shape_of(c.at("config"), name), work) / 1e12, expected = c.at("expected_tflop");
      if (std::abs(tflop - expected) <= 1e-9 * expected) report.pass();
      else report.fail(name, join_text("got ", tflop, " TFLOP, expected ", expected));
    });
  }
}

}  // namespace tandem::cli
