// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/http_rule.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/log.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {

using nlohmann::json;

namespace {

constexpr double kFirstPauseS = 0.5, kLongestPauseS = 30;  // between attempts, doubled each time

struct Address {
  std::string server;  ///< scheme, host and port
  std::string path;
};

Address address_of(const std::string& url) {
  const size_t scheme = url.find("://");
  const bool known = url.starts_with("http://") || url.starts_with("https://");
  const size_t path = known ? url.find('/', scheme + 3) : std::string::npos;
  if (!known || path == scheme + 3 || url.size() == scheme + 3)
    throw UserError("reward.url", "`" + url + "` is no address", "expected http://HOST:PORT/PATH or https://...");
  return {url.substr(0, path), path == std::string::npos ? "/" : url.substr(path)};
}

json plain_form(const json& one) {
  if (one.is_number() || one.is_null()) return json::array({one, json::object(), ""});
  if (one.is_boolean()) return json::array({one.get<bool>() ? 1.0 : 0.0, json::object(), ""});
  json parts = json::object();
  for (const auto& [name, value] : one.items())
    if (value.is_number() && name != "score") parts[name] = value;
  return json::array({one.at("score").get<double>(), parts, one.value("extracted", "")});
}

json scores_in(const json& reply, const std::string& where) {
  const json* list = &reply;
  if (reply.is_object() && reply.contains("scores")) list = &reply["scores"];
  else if (reply.is_object() && reply.contains("rewards")) list = &reply["rewards"];
  json scores = json::array();
  try {
    if (!list->is_array()) throw UserError(where, "answered " + reply.dump().substr(0, 80), "expected {\"scores\": [...]}");
    for (const json& one : *list) scores.push_back(plain_form(one));
  } catch (const json::exception&) {
    throw UserError(where, "answered " + reply.dump().substr(0, 80), "expected numbers, or objects with a `score`");
  }
  return scores;
}

class HttpRule : public Rule {
 public:
  HttpRule(const HttpOptions& o, double timeout_s)
      : address_(address_of(o.url)), url_(o.url), timeout_s_(timeout_s), retries_(o.http_retries) {}

  const std::string& name() const override { return name_; }
  bool needs_gold() const override { return false; }  // what it needs is its own affair
  bool reads_columns() const override { return true; }
  Score score(const Answer& answer) const override { return score_batch({&answer, 1}).front(); }
  std::vector<Score> score_batch(std::span<const Answer> answers) const override {
    if (answers.empty()) return {};
    const json reply = parse_or_discard<json>(post(batch_json(answers).dump()));
    if (reply.is_discarded()) throw UserError("reward.url " + url_, "did not answer with JSON", "expected {\"scores\": [...]}");
    return scores_of(scores_in(reply, "reward.url " + url_), answers.size(), name_);
  }

  void abandon() const noexcept override {
    std::lock_guard lock(mutex_);
    ++num_abandoned_;
    woken_.notify_all();
  }

 private:
  std::string post(const std::string& body) const {
    std::unique_lock lock(mutex_);
    const int64_t abandoned = num_abandoned_;
    double pause_s = kFirstPauseS;
    for (int64_t attempt = 0;; ++attempt) {
      lock.unlock();
      std::string problem;
      const std::optional<std::string> reply = try_once(body, problem);
      if (reply) return *reply;
      lock.lock();
      const std::string where = "reward.url " + url_;
      if (attempt == retries_) throw PeerError(where + ": " + problem + ", " + std::to_string(attempt + 1) + " times");
      log::warning(where, ": ", problem, "; asked again in ", pause_s, " s");
      if (woken_.wait_for(lock, std::chrono::duration<double>(pause_s), [&] { return num_abandoned_ != abandoned; }))
        throw UserError(where, "the batch was given up", "the run is ending");
      pause_s = std::min(2 * pause_s, kLongestPauseS);
    }
  }

  // The body of a right reply; nullopt, with the problem, where another attempt may help.
  std::optional<std::string> try_once(const std::string& body, std::string& problem) const {
    httplib::Client client(address_.server);  // one per attempt: a client serves one thread
    const auto seconds = static_cast<time_t>(std::ceil(timeout_s_));
    client.set_connection_timeout(seconds);
    client.set_read_timeout(seconds);
    client.set_write_timeout(seconds);
    const httplib::Result result = client.Post(address_.path, body, "application/json");
    if (!result) {
      problem = "no answer (" + httplib::to_string(result.error()) + ")";
      return std::nullopt;
    }
    if (result->status == 200) return result->body;
    problem = "status " + std::to_string(result->status);
    if (result->status < 500 && result->status != 408 && result->status != 429)
      throw UserError("reward.url " + url_, problem + ": " + result->body.substr(0, 200), "expected status 200 and {\"scores\": [...]}");
    return std::nullopt;
  }

  Address address_;
  std::string url_;
  double timeout_s_;
  int64_t retries_;
  std::string name_ = "http";
  mutable std::mutex mutex_;
  mutable std::condition_variable woken_;
  mutable int64_t num_abandoned_ = 0;
};

}  // namespace

void describe(OptionVisitor& field, HttpOptions& o) {
  field("url", o.url, "http: where batches are posted to; docs/rewards.md has their form.");
  field("http_retries", o.http_retries, "http: how often a batch is posted again when the server fails or does not answer.", at_least(0));
}

std::unique_ptr<Rule> http_rule(const HttpOptions& options, double timeout_s) {
  return std::make_unique<HttpRule>(options, timeout_s);
}

}  // namespace tandem::reward
