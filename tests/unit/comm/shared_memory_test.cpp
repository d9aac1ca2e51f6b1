// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

TEST(SharedMemory, AnotherProcessReadsInPlaceAndGivesBack) {
  SharedMemory memory(100'000);
  std::memset(memory.bytes().data(), 7, 100'000);
  memory.lend(1);
  EXPECT_FALSE(memory.is_free());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto borrowed = BorrowedMemory::map(memory.handle());
    const bool right = borrowed && borrowed->bytes().size() == 100'000 && borrowed->bytes()[99'999] == std::byte{7};
    if (right) borrowed->give_back();
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory.is_free());
}

TEST(SharedMemory, WhatIsLentIsNotLentAgain) {
  SharedMemory memory(64);
  memory.lend(2);
  EXPECT_THROW(memory.lend(1), InternalError);
}

TEST(SharedMemory, AWrongHandleMapsNothing) {
  SharedMemory memory(64);
  SharedHandle handle = memory.handle();
  EXPECT_TRUE(BorrowedMemory::map(handle));
  for (int64_t SharedHandle::*field : {&SharedHandle::process, &SharedHandle::file, &SharedHandle::serial, &SharedHandle::num_bytes}) {
    SharedHandle wrong = handle;
    wrong.*field += 1'000'000;
    EXPECT_FALSE(BorrowedMemory::map(wrong));
  }
}

TEST(SharedMemory, RanksOfOneProcessShareWithAll) {
  run_local(3, 60, [](Group& world) {
    const auto all = who_shares(world);
    ASSERT_EQ(all.size(), 3u);
    for (const std::vector<bool>& row : all) EXPECT_EQ(row, std::vector<bool>(3, true));
  });
}

}  // namespace
}  // namespace tandem::comm
