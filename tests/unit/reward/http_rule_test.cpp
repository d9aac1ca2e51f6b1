// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/reward/rule.h"

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

TEST(HttpRule, RepliesOfOtherServersAreUnderstood) {
  const Server server([](const json& batch, httplib::Response& response) {
    response.set_content(batch["completions"][0] == "list" ? "[0.5]" : R"({"rewards": [0.25]})", "application/json");
  });
  EXPECT_EQ(server.rule()->score({"list", ""}).score, 0.5);
  EXPECT_EQ(server.rule()->score({"rewards", ""}).score, 0.25);
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
