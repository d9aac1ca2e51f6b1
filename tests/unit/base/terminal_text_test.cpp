// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/strings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "../../temporary_folder.h"
#include "tandem/base/log.h"

namespace tandem {
namespace {

TEST(TerminalText, PlainTextOfAnyLanguageStaysAsItIs) {
  for (const char* text : {"", "plain, with\ta tab\nand a line", "Grüße, 世界, 𝛼 + ½", "e\u0301 \u00a0 \u200d \u2026"})
    EXPECT_EQ(terminal_text(text), text);
}

TEST(TerminalText, WhatATerminalObeysIsWrittenOut) {
  EXPECT_EQ(terminal_text("\x1b[2J\x1b]0;title\a"), "\\u001b[2J\\u001b]0;title\\u0007");
  EXPECT_EQ(terminal_text("safe\roverwritten\b"), "safe\\u000doverwritten\\u0008");
  EXPECT_EQ(terminal_text(std::string("a\0b\x7f", 4)), "a\\u0000b\\u007f");
  EXPECT_EQ(terminal_text("\u009b31m, \u0085"), "\\u009b31m, \\u0085") << "control characters of two bytes";
  EXPECT_EQ(terminal_text("user\u202e txt.exe\u2066"), "user\\u202e txt.exe\\u2066") << "text that reads backwards";
}

TEST(TerminalText, BytesThatAreNoTextAreWrittenOut) {
  EXPECT_EQ(terminal_text("\x9b"), "\\ufffd") << "a control sequence of one byte, as some terminals read it";
  EXPECT_EQ(terminal_text("a\xff\xc0\x9b z"), "a\\ufffd\\ufffd\\ufffd z");
  EXPECT_EQ(terminal_text("\xe2\x80"), "\\ufffd\\ufffd") << "a character without its end";
  EXPECT_EQ(terminal_text("\xed\xa0\x80"), "\\ufffd\\ufffd\\ufffd") << "half of a pair";
  EXPECT_EQ(terminal_text("\xf4\x90\x80\x80"), "\\ufffd\\ufffd\\ufffd\\ufffd") << "beyond the last character";
  EXPECT_EQ(terminal_text("\ufffd"), "\ufffd") << "the mark itself is a character";
}

TEST(TerminalText, TheLogWritesNoEscapeBytesOfOthers) {
  const test::TemporaryFolder folder("terminal");
  const std::string path = folder / "log.txt";
  log::also_to_file(path);
  testing::internal::CaptureStderr();
  log::warning("a reward printed \x1b[31mred\x1b[0m and \x9b");
  log::info("\x1b]52;c;cm0gLXJm\a");
  const std::string shown = testing::internal::GetCapturedStderr();
  log::stop_file();
  std::stringstream kept;
  kept << std::ifstream(path).rdbuf();
  for (const std::string& text : {shown, kept.str()}) {
    EXPECT_NE(text.find("\\u001b[31mred"), std::string::npos) << text;
    for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << text;
    EXPECT_EQ(text.find('\x9b'), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
