// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table `samples` in SQL, with a column for each of data/schema.h. Used by sample_store.cpp alone.

#include <string>

#include "tandem/base/check.h"
#include "tandem/base/strings.h"
#include "tandem/data/schema.h"

namespace tandem::data {

// Blobs: the values of data/schema.h one after the other (int32 ids, float32 logprobs and kept_mass, uint8 trainable, int16 routes),
// and versions as runs of two int64, a version and how many tokens it sampled; in the byte order of the machine (little-endian
// wherever Tandem runs). A sample whose tokens have gone keeps the columns that are no blob or text of tokens. An older Tandem has
// kept a version for each token, and no response_tokens.
inline constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS samples (
  step INTEGER NOT NULL, group_id INTEGER NOT NULL, sample_index INTEGER NOT NULL, sample_id INTEGER NOT NULL,
  prompt_row INTEGER NOT NULL, finish TEXT NOT NULL, score REAL, advantage REAL, group_version INTEGER NOT NULL,
  trained_version INTEGER NOT NULL, parts TEXT NOT NULL, BODY train_logprobs BLOB, prompt_tokens INTEGER, response_tokens INTEGER,
  oldest_version INTEGER, newest_version INTEGER, PRIMARY KEY (step, group_id, sample_index));
CREATE INDEX IF NOT EXISTS samples_by_score ON samples (step, group_id, score);
CREATE TABLE IF NOT EXISTS greedy (step INTEGER NOT NULL, group_id INTEGER NOT NULL, score REAL, PRIMARY KEY (step, group_id));
CREATE TABLE IF NOT EXISTS evals (
  step INTEGER NOT NULL, row INTEGER NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, response TEXT NOT NULL, score REAL,
  eval_set TEXT NOT NULL DEFAULT '', question TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS evals_by_step ON evals (step, row);
CREATE TABLE IF NOT EXISTS dropped (step INTEGER NOT NULL, group_id INTEGER PRIMARY KEY);)";

// Text for each column of the body (data/schema.h), one behind the other.
inline std::string of_body(const auto& text) {
  std::string all;
  each_body_column([&](const auto& column) { all += text(column); });
  return all;
}
template <class Column>
constexpr const char* type_of(const Column&) { return Column::kIsText ? "TEXT NOT NULL" : "BLOB NOT NULL"; }
template <class Column>
constexpr const char* empty_of(const Column&) { return Column::kIsText ? "''" : "x''"; }

inline std::string schema() {
  return replaced(kSchema, "BODY", of_body([](const auto& column) { return join_text(column.stored, " ", type_of(column), ", "); }));
}

// The heads, then the body, as bound by SampleStore::append.
inline std::string insert_sample() {
  return "INSERT INTO samples (step, group_id, sample_index, sample_id, prompt_row, finish, score, advantage, group_version, "
         "trained_version, parts, prompt_tokens, response_tokens, oldest_version, newest_version, train_logprobs" +
         of_body([](const auto& column) { return join_text(", ", column.stored); }) + ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?" +
         of_body([](const auto&) { return ",?"; }) + ")";
}

// Of the steps from ?1 to ?2, but for every ?3-th. A prompt without ids marks them.
inline std::string drop_tokens() {
  return "UPDATE samples SET train_logprobs = NULL" +
         of_body([](const auto& column) { return column.stays ? "" : join_text(", ", column.stored, " = ", empty_of(column)); }) +
         " WHERE step BETWEEN ?1 AND ?2 AND step % ?3 != 0 AND response_tokens IS NOT NULL AND length(prompt_ids) > 0";
}

// As read by SampleReader::groups. Older files lack some columns of the body.
inline constexpr int kFirstOfTold = 10, kFirstOfBody = 13;
inline std::string select_groups(const std::string& told, const std::string& body) {
  return "SELECT group_id, prompt_row, group_version, trained_version, sample_id, train_logprobs, finish, score, advantage, parts, " +
         told + body + " FROM samples JOIN page ON group_id = page.id WHERE step = ?2 ORDER BY page.place, sample_index";
}
// Where the tokens are gone, what is told of them; an older file has them all.
inline constexpr const char* kTold = "response_tokens, oldest_version, newest_version";

}  // namespace tandem::data
