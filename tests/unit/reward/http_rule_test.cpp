// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/resource.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "../../error_text.h"
#include "../../raw_server.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "python_file.h"
#include "tandem/reward/batch.h"
#include "tandem/reward/rule.h"
#include "tandem/reward/scorer.h"

namespace tandem::reward {
namespace {

using nlohmann::json;

/// A server on a free port of this machine that answers with a function of the posted batch.
class Server {
 public:
  using Handler = std::function<void(const json& batch, httplib::Response& response)>;
  explicit Server(Handler handler) {
    server_.Post("/score", [handler](const httplib::Request& request, httplib::Response& response) {
      handler(json::parse(request.body), response);
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }
  std::unique_ptr<Rule> rule(int64_t retries = 2, double timeout_s = 5) const {
    Options options;
    options.url = "http://127.0.0.1:" + std::to_string(port_) + "/score";
    options.http_retries = retries;
    options.timeout_s = timeout_s;
    return make_reward(options);
  }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

TEST(HttpRule, AServerScoresABatch) {
  const Server server([](const json& batch, httplib::Response& response) {
    json scores = json::array();
    for (size_t i = 0; i < batch["completions"].size(); ++i) {
      const std::string completion = batch["completions"][i];
      scores.push_back({{"score", completion == batch["answers"][i] ? 1 : 0}, {"length", completion.size()}});
    }
    response.set_content(json{{"scores", scores}}.dump(), "application/json");
  });
  const std::vector<Answer> answers = {{"7", "7"}, {"12", "7"}};
  const std::vector<Score> scores = server.rule()->score_batch(answers);
  EXPECT_EQ(scores.at(0).score, 1);
  EXPECT_EQ(scores.at(1).score, 0);
  EXPECT_EQ(scores.at(1).parts.at(1), (std::pair<std::string, double>{"http/length", 2}));
}

// What a function and a server see.
TEST(Batch, AColumnKeepsTheDigitsOfItsNumbers) {
  const PythonFile file(R"(
def score(completions, n, deep, **columns):
    return [float(str(one) == c and inner == {"a": [one]}) for c, one, inner in zip(completions, n, deep)]
)");
  Options options;
  options.python = file.path() + ":score";
  const auto rule = make_reward(options);
  const std::string digits(60, '7');
  const std::vector<std::string> numbers = {"18446744073709551617", "10000000000600000000009", "-9223372036854775809", digits, "5"};
  for (const std::string& number : numbers) {
    std::vector<Answer> answers = {{number, ""}, {number + "0", ""}};
    for (Answer& answer : answers) answer.columns = R"({"n":)" + number + R"(,"deep":{"a":[)" + number + "]}}";
    const std::vector<Score> scores = rule->score_batch(answers);
    EXPECT_EQ(scores[0].score, 1) << number;
    EXPECT_EQ(scores[1].score, 0) << number;
    const std::string text = batch_json(answers), column = answers[0].columns;
    EXPECT_NE(text.find("\"columns\":[" + column + "," + column + "]"), std::string::npos) << text;
  }
  EXPECT_NE(batch_json(std::vector<Answer>(2)).find("\"columns\":[{},{}]"), std::string::npos) << "rows without columns";
  EXPECT_EQ(json::parse(batch_json({}))["columns"], json::array());
}

TEST(HttpRule, RepliesOfOtherServersAreUnderstood) {
  const Server server([](const json& batch, httplib::Response& response) {
    const std::string asked = batch["completions"][0];
    response.set_content(asked == "list" ? "[0.5]" : asked == "null" ? "[null]" : R"({"rewards": [0.25]})", "application/json");
  });
  EXPECT_EQ(server.rule()->score({"list", ""}).score, 0.5);
  EXPECT_EQ(server.rule()->score({"rewards", ""}).score, 0.25);
  EXPECT_EQ(server.rule()->score({"null", ""}).score, 0) << "it does not apply";
}

TEST(HttpRule, ABusyServerIsAskedAgain) {
  std::atomic<int> calls = 0;
  const Server server([&](const json&, httplib::Response& response) {
    if (++calls < 3) response.status = 503;
    else response.set_content("[1]", "application/json");
  });
  EXPECT_EQ(server.rule(2)->score({"", ""}).score, 1);
  EXPECT_EQ(calls, 3);
}

std::unique_ptr<Rule> rule_of(const test::RawServer& server, double timeout_s, int64_t retries = 0) {
  Options options;
  options.url = "http://127.0.0.1:" + std::to_string(server.port()) + "/score";
  options.http_retries = retries;
  options.timeout_s = timeout_s;
  return make_reward(options);
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

const std::string kOk = "HTTP/1.1 200 OK\r\n";

// Each of these says something often enough that no single read takes long.
TEST(HttpRule, TheTimeForABatchIsThatOfTheWholeReply) {
  const std::pair<const char*, std::function<void(const test::RawServer::Peer&)>> servers[] = {
      {"nothing at all", [](const auto& peer) { peer.pause(60'000); }},
      {"a status line byte by byte", [](const auto& peer) { while (peer.say("H") && peer.pause(100)) {} }},
      {"headers without end", [](const auto& peer) { peer.say(kOk); while (peer.say("X: y\r\n") && peer.pause(100)) {} }},
      {"a body byte by byte", [](const auto& peer) {
         peer.say(kOk + "Content-Length: 1000000\r\n\r\n");
         while (peer.say(" ") && peer.pause(100)) {}
       }},
      {"chunks without end", [](const auto& peer) {
         peer.say(kOk + "Transfer-Encoding: chunked\r\n\r\n");
         while (peer.say("1\r\n \r\n") && peer.pause(100)) {}
       }},
      {"a body without a length", [](const auto& peer) { peer.say(kOk + "\r\n"); while (peer.say(" ") && peer.pause(100)) {} }}};
  for (const auto& [what, answer] : servers) {
    const test::RawServer server(answer);
    const auto rule = rule_of(server, 1);
    const double begin = now_s();
    const std::string error = test::error_of<PeerError>([&] { rule->score({"", ""}); });
    EXPECT_NE(error.find("no answer (not whole within 1"), std::string::npos) << what << ": " << error;
    EXPECT_LT(now_s() - begin, 4) << what;
  }
}

TEST(HttpRule, AReplyWithoutEndIsRefusedInLittleMemory) {
  const std::string much(1 << 20, 'x');
  const std::pair<const char*, std::function<void(const test::RawServer::Peer&)>> servers[] = {
      {"a body of eight gigabytes", [&](const auto& peer) {
         peer.say(kOk + "Content-Length: 8000000000\r\n\r\n");
         while (peer.say(much)) {}
       }},
      {"a body without a length", [&](const auto& peer) { peer.say(kOk + "\r\n"); while (peer.say(much)) {} }},
      {"chunks", [&](const auto& peer) {
         peer.say(kOk + "Transfer-Encoding: chunked\r\n\r\n");
         while (peer.say("100000\r\n" + much + "\r\n")) {}
       }},
      {"headers", [&](const auto& peer) { peer.say(kOk); while (peer.say("X: " + std::string(1000, 'y') + "\r\n")) {} }},
      {"a refusal", [&](const auto& peer) { peer.say("HTTP/1.1 404 Not Found\r\n\r\n"); while (peer.say(much)) {} }}};
  for (const auto& [what, answer] : servers) {
    const test::RawServer server(answer);
    const auto rule = rule_of(server, 30, 3);
    const int64_t before = peak_bytes();
    const double begin = now_s();
    const std::string error = test::error_of([&] { rule->score({"", ""}); });
    EXPECT_NE(error.find("answered with more than"), std::string::npos) << what << ": " << error;
    EXPECT_LT(now_s() - begin, 20) << what;
    EXPECT_LT(peak_bytes() - before, int64_t{200} << 20) << what;
    EXPECT_EQ(server.num_asked(), 1) << "another attempt would end alike";
  }
}

TEST(HttpRule, AServerThatClosesOrResetsIsAskedAgain) {
  const test::RawServer server([](const auto& peer) { peer.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1]"); });
  EXPECT_NE(test::error_of<PeerError>([&] { rule_of(server, 5, 1)->score({std::string(3'000'000, 'x'), ""}); }).find("2 times"),
            std::string::npos);
  EXPECT_EQ(server.num_asked(), 2);
}

// As when a signal ends the run: nobody waits for the server.
TEST(HttpRule, ABatchIsGivenUpAtOnceWhateverTheServerDoes) {
  const std::function<void(const test::RawServer::Peer&)> answers[] = {
      [](const auto& peer) { peer.pause(60'000); },
      [](const auto& peer) { peer.say(kOk + "Content-Length: 1000\r\n\r\n"); while (peer.say(" ") && peer.pause(50)) {} }};
  for (const auto& answer : answers) {
    const test::RawServer server(answer);
    const auto rule = rule_of(server, 60, 3);
    double asked = 0;
    {
      Scorer scorer(*rule);
      data::Group group;
      group.samples.resize(1);
      scorer.submit(std::move(group));
      while (server.num_asked() == 0) std::this_thread::yield();
      EXPECT_THROW(scorer.collect_all(60, [&] { return true; }), Interrupted);
      asked = now_s();
    }
    EXPECT_LT(now_s() - asked, 2);
    EXPECT_EQ(server.num_asked(), 1);
  }
}

TEST(HttpRule, WhatIsWrongIsSaid) {
  const auto error_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  std::atomic<int> calls = 0;
  const Server server([&](const json& batch, httplib::Response& response) {
    ++calls;
    const std::string what = batch["completions"][0];
    if (what == "404") response.status = 404;
    if (what == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const char* reply = what == "two" ? "[1, 2]" : what == "text" ? "fine" : what == "form" ? "[{\"points\": 1}]" : "nothing here";
    response.set_content(reply, "text/plain");
  });
  EXPECT_NE(error_of([&] { server.rule()->score({"404", ""}); }).find("status 404: nothing here"), std::string::npos);
  EXPECT_EQ(calls, 1) << "what the server refuses is not asked again";
  EXPECT_NE(error_of([&] { server.rule()->score({"text", ""}); }).find("did not answer with JSON"), std::string::npos);
  EXPECT_NE(error_of([&] { server.rule()->score({"two", ""}); }).find("2 scores for 1 answers"), std::string::npos);
  EXPECT_NE(error_of([&] { server.rule()->score({"form", ""}); }).find("expected numbers"), std::string::npos);
  EXPECT_NE(error_of([&] { server.rule(0, 1)->score({"slow", ""}); }).find("no answer"), std::string::npos);
  Options options;
  options.url = "localhost:80";
  EXPECT_NE(error_of([&] { make_reward(options); }).find("expected http://"), std::string::npos);
  options.url = "http://127.0.0.1:1/score";
  options.http_retries = 0;
  EXPECT_THROW(make_reward(options)->score({"", ""}), PeerError);
}

}  // namespace
}  // namespace tandem::reward
