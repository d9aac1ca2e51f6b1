// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/run_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "../../error_text.h"
#include "../../temporary_folder.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/board/run_folder.h"

namespace tandem::runtime {
namespace {

std::string state_on_the_page(const std::string& dir) {
  const auto found = nlohmann::json::parse(board::RunFolder(dir).run());
  return found.at("state").get<std::string>() + ":" + found.at("error").get<std::string>();
}

// What the board reads is what a run writes: the lock, the log, and the recipe.
TEST(RunFolder, ThePageKnowsARunThatGoesOnAndWhyItEnded) {
  const test::TemporaryFolder folder("run_folder");
  const std::string dir = folder / "run";
  {
    const RunFolder run(dir, config::RunConfig(), EarlierRun::kRefuse);
    EXPECT_EQ(state_on_the_page(dir), "running:");
    std::filesystem::create_directory(run.path("checkpoint"));  // so that the folder stays
  }
  EXPECT_EQ(state_on_the_page(dir), "killed:");
  log::write("info", "stopped after step 3; --resume continues");
  EXPECT_EQ(state_on_the_page(dir), "stopped:stopped after step 3; --resume continues");
  log::write("error", "reward: cannot be computed (another one)");
  log::stop_file();
  EXPECT_EQ(state_on_the_page(dir), "failed:reward: cannot be computed (another one)");
  const RunFolder again(dir, config::RunConfig(), EarlierRun::kResume);
  EXPECT_EQ(state_on_the_page(dir), "running:");
  log::stop_file();
}

// The page asks several times a second, if many look at it.
TEST(RunFolder, BeginsWhileThePageLooksWhetherARunHoldsIt) {
  const test::TemporaryFolder folder("run_folder");
  const std::string dir = folder / "run";
  std::atomic<bool> done = false;
  std::atomic<int> num_looks = 0;
  std::thread page([&] {
    while (!done) {
      const int lock = ::open((dir + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
      if (lock < 0) continue;
      if (::flock(lock, LOCK_SH | LOCK_NB) == 0) ++num_looks;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::close(lock);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_NO_THROW({
      const RunFolder run(dir, config::RunConfig(), i > 0 ? EarlierRun::kResume : EarlierRun::kRefuse);
      std::filesystem::create_directories(run.path("checkpoint"));  // so that the folder stays
    });
    const int before = num_looks;
    for (const Deadline end = Deadline::after_s(5); num_looks == before && !end.passed();) std::this_thread::yield();
    EXPECT_GT(num_looks, before);
  }
  done = true;
  page.join();
  log::stop_file();
}

TEST(RunFolder, AFolderThatIsInUseIsRefused) {
  const test::TemporaryFolder folder("run_folder");
  const std::string dir = folder / "run";
  const RunFolder run(dir, config::RunConfig(), EarlierRun::kRefuse);
  const std::string error = test::error_of<UserError>([&] { RunFolder(dir, config::RunConfig(), EarlierRun::kResume); });
  EXPECT_NE(error.find("another run or loop"), std::string::npos) << error;
}

}  // namespace
}  // namespace tandem::runtime
