// SPDX-License-Identifier: Apache-2.0
#include "tandem/hub/recipe.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "tandem/base/check.h"

namespace tandem::hub {
namespace {

// Calls with each place, whose text it may change.
using Visit = std::function<void(const char* option, Kind kind, std::string& text)>;

void visit_entries(const char* option, Kind kind, std::vector<std::string>& entries, const Visit& visit) {
  for (std::string& entry : entries) {
    const bool mix = kind == Kind::kTrainData;  // PATH=WEIGHT; else NAME=PATH
    const size_t equal = mix ? entry.rfind('=') : entry.find('=');
    const bool named = !mix && equal != std::string::npos && entry.substr(0, equal).find('/') == std::string::npos;
    const size_t begin = named ? equal + 1 : 0, end = mix ? std::min(equal, entry.size()) : entry.size();
    std::string text = entry.substr(begin, end - begin);
    visit(option, kind, text);
    entry = entry.substr(0, begin) + text + entry.substr(end);
  }
}

void visit_places(config::RunConfig& c, const Visit& visit) {
  visit("model.path", Kind::kModel, c.model.path);
  visit("model.ref_model_load_path", Kind::kModel, c.model.ref_model_load_path);
  visit("critic.path", Kind::kModel, c.critic.path);
  visit("reward.model", Kind::kModel, c.reward.model);
  if (c.data.mix.empty()) visit("data.train", Kind::kTrainData, c.data.train);
  visit_entries("data.mix", Kind::kTrainData, c.data.mix, visit);
  visit_entries("data.eval", Kind::kHeldOutData, c.data.eval, visit);
}

// The earlier path that stands for a name; "" if there is none.
std::string earlier_path(const Place& place, const Name& name, const std::vector<Place>& earlier) {
  for (const Place& before : earlier) {
    if (before.option != place.option) continue;
    const std::optional<Name> was = name_of_fetched(before.text);
    if (was && stands_for(*was, name)) return before.text;
  }
  return "";
}

}  // namespace

std::vector<Place> places_of(const config::RunConfig& config) {
  std::vector<Place> places;
  config::RunConfig copy = config;
  visit_places(copy, [&](const char* option, Kind kind, std::string& text) { places.push_back({option, kind, text}); });
  return places;
}

config::RunConfig with_texts(config::RunConfig config, const std::vector<std::string>& texts) {
  size_t next = 0;
  visit_places(config, [&](const char*, Kind, std::string& text) {
    TANDEM_CHECK(next < texts.size(), "a place without a text");
    text = texts[next++];
  });
  TANDEM_CHECK(next == texts.size(), texts.size(), " texts for ", next, " places");
  return config;
}

std::vector<std::string> local_paths(const config::RunConfig& config, const std::vector<Place>& earlier, const FetchOptions& options) {
  std::vector<std::string> paths;
  for (const Place& place : places_of(config)) {
    const std::optional<Name> name = name_in(place.text, place.kind, place.option);
    const std::string before = name ? earlier_path(place, *name, earlier) : "";
    paths.push_back(local_path(before.empty() ? place.text : before, place.kind, place.option, options));
  }
  return paths;
}

std::vector<Place> places_of_run(const std::string& run_dir) {
  const std::string recipe = run_dir + "/config.yaml";
  std::error_code absent;
  return std::filesystem::exists(recipe, absent) ? places_of(config::load_config(recipe, {})) : std::vector<Place>();
}

}  // namespace tandem::hub
