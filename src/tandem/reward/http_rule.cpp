// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/http_rule.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/log.h"
#include "tandem/reward/backend/http_post.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/rule.h"

namespace tandem::reward {

using nlohmann::json;

namespace {

constexpr const char* kName = "http";
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

// The beginning of what is no list of scores, whatever it is.
std::string shown(const json& reply) { return reply.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80); }

json scores_in(const json& reply, size_t count, const std::string& where) {
  const json* list = &reply;
  if (reply.is_object() && reply.contains("scores")) list = &reply["scores"];
  else if (reply.is_object() && reply.contains("rewards")) list = &reply["rewards"];
  json scores = json::array();
  try {
    if (!list->is_array()) throw UserError(where, "answered " + shown(reply), "expected {\"scores\": [...]}");
    if (list->size() != count)  // before each of them is taken
      throw UserError(where, "answered with " + std::to_string(list->size()) + " scores for " + std::to_string(count) + " answers",
                      "expected a score for each answer");
    for (const json& one : *list) scores.push_back(plain_form(one));
  } catch (const json::exception&) {
    throw UserError(where, "answered " + shown(reply), "expected numbers, or objects with a `score`");
  }
  return scores;
}

// Asked by any number of threads at once.
class Server {
 public:
  Server(const HttpOptions& o, double timeout_s)
      : where("reward.url " + o.url), address_(address_of(o.url)), timeout_s_(timeout_s), retries_(o.http_retries),
        poster_(address_.server, where) {}

  const std::string where;

  void abandon() {
    std::lock_guard lock(mutex_);
    ++num_abandoned_;
    woken_.notify_all();
    poster_.give_up();
  }

  std::string post(const std::string& body) {
    std::unique_lock lock(mutex_);
    const int64_t abandoned = num_abandoned_;
    double pause_s = kFirstPauseS;
    for (int64_t attempt = 0;; ++attempt) {
      lock.unlock();
      std::string problem;
      const std::optional<std::string> reply = try_once(body, problem);
      if (reply) return *reply;
      lock.lock();
      if (num_abandoned_ != abandoned) throw UserError(where, "the batch was given up", "the run is ending");
      if (attempt == retries_) throw PeerError(where + ": " + problem + ", " + std::to_string(attempt + 1) + " times");
      log::warning(where, ": ", problem, "; asked again in ", pause_s, " s");
      if (woken_.wait_for(lock, std::chrono::duration<double>(pause_s), [&] { return num_abandoned_ != abandoned; }))
        throw UserError(where, "the batch was given up", "the run is ending");
      pause_s = std::min(2 * pause_s, kLongestPauseS);
    }
  }

 private:
  // The body of a right reply; nullopt, with the problem, where another attempt may help.
  std::optional<std::string> try_once(const std::string& body, std::string& problem) {
    HttpReply reply = poster_.post(address_.path, body, timeout_s_);
    if (reply.status == 200) {
      has_answered_ = true;
      return std::move(reply.body);
    }
    // A server that speaks no TLS never will; one that did may stand behind a proxy that answers in its place for a moment.
    const bool may_pass = reply.is_plain && has_answered_;
    if (!reply.remedy.empty() && !may_pass) throw UserError(where, reply.problem, reply.remedy);
    problem = reply.status == 0 ? "no answer (" + reply.problem + ")" : "status " + std::to_string(reply.status);
    if (reply.status != 0 && reply.status < 500 && reply.status != 408 && reply.status != 429)
      throw UserError(where, problem + ": " + reply.body.substr(0, 200), "expected status 200 and {\"scores\": [...]}");
    return std::nullopt;
  }

  Address address_;
  double timeout_s_;
  int64_t retries_;
  HttpPoster poster_;
  std::mutex mutex_;
  std::condition_variable woken_;
  int64_t num_abandoned_ = 0;
  std::atomic<bool> has_answered_ = false;
};

}  // namespace

std::vector<Score> scores_of_reply(std::string_view body, size_t count, const std::string& where) {
  const json reply = parse_or_discard<json>(body);
  if (reply.is_discarded()) throw UserError(where, "did not answer with JSON", "expected {\"scores\": [...]}");
  return scores_of(scores_in(reply, count, where), count, kName);
}

void describe(OptionVisitor& field, HttpOptions& o) {
  field("url", o.url, "http: where batches are posted to; docs/rewards.md has their form.");
  field("http_retries", o.http_retries, "http: how often a batch is posted again when the server fails or does not answer.", at_least(0));
}

std::unique_ptr<Rule> http_rule(const HttpOptions& options, double timeout_s) {
  const auto server = std::make_shared<Server>(options, timeout_s);
  const auto score = [server](std::span<const Answer> answers) -> std::vector<Score> {
    if (answers.empty()) return {};
    return scores_of_reply(server->post(batch_json(answers)), answers.size(), server->where);
  };
  const RuleNeeds needs{false, true, true};  // what it needs is its own affair
  return std::make_unique<Rule>(kName, needs, score, [server] { server->abandon(); });
}

}  // namespace tandem::reward
