// SPDX-License-Identifier: Apache-2.0
#include "tandem/fit/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/config/algorithm.h"

namespace tandem::fit {
namespace {

constexpr const char* kTrain = "train.micro_batch_tokens";
constexpr const char* kWarm = "supervised.micro_batch_tokens";
constexpr const char* kScore = "train.logprob_micro_batch_tokens";
constexpr const char* kReference = "train.reference_micro_batch_tokens";
constexpr const char* kCritic = "critic.micro_batch_tokens";
constexpr const char* kValues = "critic.value_micro_batch_tokens";
constexpr const char* kRunning = "rollout.max_running";
constexpr const char* kCache = "rollout.kv_cache_mib";
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLeastSequences = 8;   // that should find room in the cache before passes get more
constexpr int64_t kMostRunning = 512;
constexpr double kNearlyAsFast = 0.95;

struct Field {
  const char* option;
  int64_t* value;
};
std::vector<Field> fields(config::RunConfig& c) {
  std::vector<Field> all = {{kTrain, &c.train.micro_batch_tokens},
                            {kWarm, &c.supervised.train.micro_batch_tokens},
                            {kScore, &c.train.logprob_micro_batch_tokens},
                            {kReference, &c.train.reference_micro_batch_tokens},
                            {kCache, &c.rollout.engine.kv_cache_mib},
                            {kRunning, &c.rollout.engine.max_running}};
  if (config::algorithm_of(c).needs_critic())
    all.insert(all.begin() + 4, {{kCritic, &c.critic.train.micro_batch_tokens}, {kValues, &c.critic.value_micro_batch_tokens}});
  return all;
}

int64_t power_from(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n)))); }
int64_t power_to(int64_t n) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, n)))); }

std::string per_second(double tokens_s) { return join_text(static_cast<int64_t>(std::llround(tokens_s)), " tokens/s"); }

class Chooser {
 public:
  Chooser(const Measured& m, const config::RunConfig& config, const std::vector<std::string>& given)
      : m_(m),
        given_(given),
        decisions_(undecided(config)),
        room_(m.budget_bytes - m.held_bytes),
        has_critic_(config::algorithm_of(config).needs_critic()),
        block_tokens_(m.block_tokens) {}

  std::vector<Decision> run() {
    choose_training(kTrain, m_.train, m_.train_tokens_s);
    choose_warm_start();
    if (has_critic_) choose_training(kCritic, m_.value_train, m_.value_train_tokens_s);
    choose_cache();
    choose_scoring(kScore, m_.score, m_.score_tokens_s);
    choose_scoring(kReference, m_.score, m_.score_tokens_s);
    if (has_critic_) choose_scoring(kValues, m_.values, m_.values_tokens_s);
    choose_running();
    for (Decision& d : decisions_)
      if (is_given(d.option)) d.because = "set by the user, and left so";
    return decisions_;
  }

 private:
  bool is_given(const std::string& option) const { return std::ranges::find(given_, option) != given_.end(); }
  Decision& decision(const char* option) { return *std::ranges::find(decisions_, option, &Decision::option); }
  int64_t cache_of(int64_t sequences) const { return sequences * (m_.context_tokens + block_tokens_) * m_.kv_token_bytes; }
  int64_t least_cache() const {  // of one sequence, be it of an evaluation
    return (std::max(m_.context_tokens, m_.eval_tokens) + block_tokens_) * m_.kv_token_bytes;
  }
  int64_t beside_passes() const { return m_.cache_leaves ? 0 : cache_; }  // of the cache
  int64_t longest() const { return std::max<int64_t>(1, m_.context_tokens - 1); }

  [[noreturn]] void refuse(const char* what, int64_t bytes) const {
    throw UserError("--fit",
                    join_text(what, " take ", bytes_text(bytes), ", and of ", bytes_text(m_.budget_bytes), " (", m_.budget_from,
                              ") a rank holds ", bytes_text(m_.held_bytes)),
                    "train.recompute: full, train.swap_optimizer or memory.offload_*, model.lora_rank, a shorter rollout.max_new_tokens, "
                    "more ranks, or a smaller model");
  }

  // From the default downwards, so that the cache has room for some sequences.
  void choose_training(const char* option, const PassBytes& bytes, double tokens_s) {
    Decision& d = decision(option);
    d.measured = measured(bytes, tokens_s);
    const int64_t one = m_.cache_leaves ? 0 : least_cache();
    const int64_t wanted = m_.cache_leaves ? 0 : std::max(one, cache_of(std::min(m_.sequences, kLeastSequences)));
    if (!is_given(option)) {
      halve_to(d, bytes, room_ - wanted);
      if (d.is < most_of(d)) d.because += join_text(" of ", bytes_text(std::max<int64_t>(0, room_)));
    }
    const int64_t pass = bytes.at(std::min(std::max(d.is, longest()), std::max(m_.tokens, longest())));
    if (pass + one > room_) refuse(option == kTrain ? "one pass of training and the cache of one sequence"
                                                    : "one pass of the critic's training and the cache of one sequence", pass + one);
    train_pass_ = std::max(train_pass_, pass);
  }

  static std::string measured(const PassBytes& bytes, double tokens_s) {
    return join_text(bytes_text(bytes.at(1) - bytes.at(0)), " a token, ", per_second(tokens_s));
  }

  int64_t most_of(const Decision& d) const { return std::min(d.was, power_from(m_.tokens)); }

  // At most the default or what a step has, and at least one row.
  void halve_to(Decision& d, const PassBytes& bytes, int64_t room) const {
    const int64_t most = most_of(d), least = std::min(most, power_from(longest()));
    int64_t tokens = most;
    while (tokens > least && bytes.at(tokens) > room) tokens /= 2;
    d.is = std::max(tokens, least);
    if (d.is < most) d.because = join_text(2 * d.is, " would take ", bytes_text(bytes.at(2 * d.is)));
    else d.because = most == d.was ? "the default fits" : join_text("a step has at most ", m_.tokens, " tokens a rank");
  }

  // Of the same model; nothing generates then.
  void choose_warm_start() {
    Decision& d = decision(kWarm);
    d.measured = join_text("as ", kTrain);
    if (is_given(kWarm)) return;
    while (d.is > power_from(longest()) && m_.train.at(d.is) > room_) d.is /= 2;
    d.because = d.is == d.was ? "the default fits" : join_text(2 * d.is, " would take ", bytes_text(m_.train.at(2 * d.is)));
  }

  void choose_cache() {
    Decision& d = decision(kCache);
    const int64_t decode = std::max(m_.decode.at(std::min(m_.sequences, kMostRunning)), int64_t{0});
    const int64_t rolling = m_.budget_bytes - m_.held_rolling_bytes - decode;
    const int64_t left = m_.cache_leaves ? rolling : std::min(rolling, room_ - train_pass_);
    const int64_t all = (std::max(least_cache(), cache_of(m_.sequences + 1)) + kMiB - 1) / kMiB;
    d.measured = bytes_text(m_.kv_token_bytes) + " a token";
    if (!is_given(kCache)) {
      const int64_t fits = rounded_down(left / kMiB);
      d.is = std::max<int64_t>(1, std::min(all, fits));
      d.because = all <= fits ? join_text("all ", m_.sequences, " sequences of a step at full length")
                              : join_text("what passes leave; all ", m_.sequences, " sequences would take ", all, " MiB");
    }
    cache_ = std::min(d.is, all) * kMiB;
    if (cache_ < least_cache() && !is_given(kCache)) refuse("one sequence's cache and a step of decoding", least_cache() + decode);
  }

  // Three leading binary digits: what else goes on in a machine moves the limit by less.
  static int64_t rounded_down(int64_t mib) {
    if (mib < 8) return mib;
    const int64_t unit = power_to(mib) / 4;
    return mib / unit * unit;
  }

  void choose_scoring(const char* option, const PassBytes& bytes, double tokens_s) {
    Decision& d = decision(option);
    d.measured = measured(bytes, tokens_s);
    if (!is_given(option)) halve_to(d, bytes, room_ - beside_passes());
  }

  void choose_running() {
    Decision& d = decision(kRunning);
    if (is_given(kRunning)) return;
    const int64_t in_cache = std::max<int64_t>(1, cache_ / cache_of(1));
    d.is = std::min({m_.sequences, in_cache, kMostRunning});
    d.because = d.is == m_.sequences ? "all sequences of a step"
                : d.is == kMostRunning ? "more would not decode faster"
                                       : "as many as the cache holds at full length";
  }

  const Measured& m_;
  const std::vector<std::string>& given_;
  std::vector<Decision> decisions_;
  const int64_t room_;
  const bool has_critic_;
  const int64_t block_tokens_;
  int64_t train_pass_ = 0, cache_ = 0;
};

}  // namespace

PassBytes through(int64_t tokens, int64_t bytes, int64_t more_tokens, int64_t more_bytes) {
  TANDEM_CHECK(tokens > 0 && more_tokens > tokens, "passes of ", tokens, " and ", more_tokens, " tokens");
  PassBytes line;
  line.per_token = std::max(0.0, static_cast<double>(more_bytes - bytes) / static_cast<double>(more_tokens - tokens));
  line.fixed = std::max(0.0, static_cast<double>(bytes) - line.per_token * static_cast<double>(tokens));
  return line;
}

std::vector<Decision> undecided(const config::RunConfig& config) {
  config::RunConfig copy = config;
  std::vector<Decision> all;
  for (const Field& field : fields(copy)) all.push_back({field.option, *field.value, *field.value, {}, {}});
  return all;
}

std::vector<Decision> choose(const Measured& measured, const config::RunConfig& config, const std::vector<std::string>& given) {
  return Chooser(measured, config, given).run();
}

int64_t value_of(const std::vector<Decision>& decisions, const std::string& option) {
  const auto found = std::ranges::find(decisions, option, &Decision::option);
  TANDEM_CHECK(found != decisions.end(), "no decision on ", option);
  return found->is;
}

std::vector<int64_t> running_candidates(int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = most; n >= 1 && all.size() < 3; n /= 2) all.push_back(n);
  return all;
}

int64_t quickest(const std::vector<int64_t>& candidates, const std::vector<double>& tokens_s) {
  TANDEM_CHECK(!candidates.empty() && candidates.size() == tokens_s.size(), candidates.size(), " candidates, ", tokens_s.size(), " speeds");
  const double best = *std::ranges::max_element(tokens_s);
  int64_t chosen = candidates.front();
  for (size_t i = 0; i < candidates.size(); ++i)
    if (tokens_s[i] >= kNearlyAsFast * best) chosen = std::min(chosen, candidates[i]);
  return chosen;
}

config::RunConfig with_decisions(config::RunConfig config, const std::vector<Decision>& decisions) {
  for (const Field& field : fields(config)) *field.value = value_of(decisions, field.option);
  return config;
}

std::vector<std::string> table(const std::vector<Decision>& decisions) {
  std::vector<std::vector<std::string>> rows = {{"option", "value", "was", "measured", "because"}};
  for (const Decision& d : decisions) rows.push_back({d.option, std::to_string(d.is), std::to_string(d.was), d.measured, d.because});
  std::vector<std::string> lines;
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (size_t column = 0; column < row.size(); ++column) {
      size_t width = 0;
      for (const std::vector<std::string>& other : rows) width = std::max(width, other[column].size());
      line += " " + row[column];
      if (column + 1 < row.size()) line += std::string(width - row[column].size() + 1, ' ');
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace tandem::fit
