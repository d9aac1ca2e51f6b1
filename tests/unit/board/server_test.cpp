// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/server.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <thread>

#include "tandem/base/error.h"

namespace tandem::board {
namespace {

const std::string kFolder = std::filesystem::temp_directory_path().string();

TEST(Server, ServesThePageItsFilesAndTheApiUntilStopped) {
  Server server(kFolder, 0);
  std::atomic<bool> stop = false;
  std::thread thread([&] { server.run(stop); });
  httplib::Client client("127.0.0.1", server.port());
  for (const char* path : {"/", "/app.js", "/style.css", "/dygraph.min.js", "/api/run", "/api/metrics?from_line=0"}) {
    const auto answer = client.Get(path);
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->status, 200) << path;
    EXPECT_FALSE(answer->body.empty());
  }
  EXPECT_EQ(client.Get("/api/samples?step=1")->status, 404);
  EXPECT_EQ(client.Get("/../etc/passwd")->status, 404);
  stop = true;
  thread.join();
}

TEST(Server, StopsWhenItWasStoppedBeforeItRan) {
  Server server(kFolder, 0);
  const std::atomic<bool> stop = true;
  server.run(stop);
}

TEST(Server, ATakenPortIsTheUsersErrorAndNamesAFreeOne) {
  const Server first(kFolder, 0);
  try {
    const Server second(kFolder, first.port());
    FAIL() << "two servers on one port";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("try --port "), std::string::npos) << error.what();
  }
  const Server third(kFolder, 0);
  EXPECT_NE(third.port(), first.port());
}

}  // namespace
}  // namespace tandem::board
