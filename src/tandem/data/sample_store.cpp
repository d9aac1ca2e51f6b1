// SPDX-License-Identifier: Apache-2.0
#include "tandem/data/sample_store.h"

#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/strings.h"
#include "tandem/data/backend/sample_sql.h"
#include "tandem/data/backend/statement.h"
#include "tandem/data/schema.h"

namespace tandem::data {
namespace {

// Of samples and of answers alike; ?1 is the text. Without one all are found, and nobody reads what they say.
const char* holds_text(const std::string& text) {
  return text.empty() ? "?1 = ''" : "instr(lower(prompt || char(10) || answer || char(10) || response), lower(?1)) > 0";
}

// By SampleOrder. Older files do not tell how many tokens a response has.
constexpr const char* kGroupOrder[] = {"group_id", "avg(score), group_id", "avg(score) DESC, group_id",
                                       "max(score) - min(score) DESC, group_id",
                                       "max(coalesce(response_tokens, length(response_ids) / 4)) DESC, group_id"};
constexpr const char* kLongestUntold = "max(length(response_ids)) DESC, group_id";
constexpr const char* kAnswerOrder[] = {"row, id", "score, row, id", "score DESC, row, id", "abs(score - old_score) DESC, row, id",
                                        "length(response) DESC, row, id"};

// ?2 is the step.
std::string found_groups(const GroupQuery& query, bool tells_tokens) {
  const bool is_untold = query.order == SampleOrder::kLongest && !tells_tokens;
  const char* const order = is_untold ? kLongestUntold : kGroupOrder[static_cast<size_t>(query.order)];
  return join_text("SELECT group_id AS id, row_number() OVER (ORDER BY ", order, ") AS place FROM samples WHERE step = ?2",
                   query.group ? join_text(" AND group_id = ", value(*query.group)) : "", " GROUP BY group_id HAVING max(",
                   holds_text(query.text), ")");
}

// By AnswerKind.
constexpr const char* kAnswerKind[] = {"1", "is_right", "NOT is_right", "is_right AND old_id IS NOT NULL AND NOT was_right",
                                       "NOT is_right AND was_right"};
const char* answer_kind(AnswerKind kind) { return kAnswerKind[static_cast<size_t>(kind)]; }

// The answers of one evaluation beside those of an earlier one. ?2 and ?3 are their steps, ?4 is the score from which an answer is right.
// A score that is no number is not right.
// SET is the column of a set's name, ASKED that of the question, ?5 the set asked for.
constexpr const char* kComparedAnswers = R"(
WITH numbered AS (SELECT rowid AS id, *, SET AS set_name, ASKED AS asked,
                         row_number() OVER (PARTITION BY step, SET, row, prompt ORDER BY rowid) AS place FROM evals
                  WHERE step IN (?2, ?3)),
compared AS (SELECT later.id, later.set_name, later.asked, later.row, later.prompt, later.answer, later.response, later.score,
                    coalesce(later.score >= ?4, 0) AS is_right, earlier.id AS old_id, earlier.response AS old_response,
                    earlier.score AS old_score, coalesce(earlier.score >= ?4, 0) AS was_right
             FROM numbered AS later LEFT JOIN numbered AS earlier ON earlier.step = ?3 AND earlier.row = later.row AND
             earlier.prompt = later.prompt AND earlier.place = later.place AND earlier.set_name = later.set_name
             WHERE later.step = ?2 AND (?5 IS NULL OR later.set_name = ?5))
SELECT )";

std::string asked_for(const AnswerQuery& query) { return join_text("(", answer_kind(query.kind), ") AND (", holds_text(query.text), ")"); }

struct Evals {
  sqlite3* database;
  const std::string &set_column, &question_column;
};

Statement compared_rows(const Evals& evals, const AnswerQuery& query, const std::string& columns, const std::string& which) {
  const std::string compared = replaced(replaced(kComparedAnswers, "SET", evals.set_column), "ASKED", evals.question_column);
  Statement rows(evals.database, compared + columns + " FROM compared " + which);
  rows.bind(query.text).bind(query.step).bind(query.since).bind(query.right_at).bind(query.set);
  return rows;
}

std::string parts_text(const Sample& sample) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& [name, number] : sample.parts) parts[name] = number;
  return parts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<std::pair<std::string, double>> parts_of(const std::string& text) {
  std::vector<std::pair<std::string, double>> parts;
  const auto object = nlohmann::ordered_json::parse(text);
  for (const auto& [name, number] : object.items())
    parts.emplace_back(name, number.is_null() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>());
  return parts;
}

Database open_database(const std::string& path, int flags) {
  sqlite3* made = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &made, flags | SQLITE_OPEN_URI, nullptr);
  Database database(made);
  if (code != SQLITE_OK)
    throw UserError(path, std::string("cannot be opened: ") + sqlite3_errstr(code), "give the run folder of a Tandem run");
  sqlite3_busy_timeout(database.get(), 5000);
  return database;
}

constexpr int kWriterWait_ms = 200;  // who writes has other work; runtime/folder/sample_writer.h tries again

// Whether other machines may have the file open, too: SQLite's write-ahead log works within one. The magic numbers are those of statfs(2).
bool is_shared(const std::string& path) {
  constexpr uint32_t kTypes[] = {0x6969 /* NFS */,       0xff534d42 /* CIFS */, 0xfe534d42 /* SMB2 */,    0x0bd00bd0 /* Lustre */,
                                 0x47504653 /* GPFS */,  0x00c36400 /* Ceph */, 0x19830326 /* BeeGFS */,  0x5346414f /* AFS */,
                                 0x01021997 /* 9P */,    0x65735546 /* FUSE */, 0x20030528 /* OrangeFS */, 0x7461636f /* OCFS2 */,
                                 0x01161970 /* GFS2 */};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  struct statfs found {};
  if (::statfs(folder.empty() ? "." : folder.c_str(), &found) != 0) return false;
  return std::ranges::find(kTypes, static_cast<uint32_t>(found.f_type)) != std::end(kTypes);
}

// `?`, `#` and `%` mean something in a URI.
std::string uri_path(const std::string& path) {
  return replaced(replaced(replaced(path, "%", "%25"), "?", "%3f"), "#", "%23");
}

/// A transaction that is undone unless committed.
class Transaction {
 public:
  explicit Transaction(sqlite3* database) : database_(database) { Statement(database, "BEGIN IMMEDIATE").run(); }
  ~Transaction() {
    if (!committed_) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  void commit() {
    Statement(database_, "COMMIT").run();
    committed_ = true;
  }

 private:
  sqlite3* database_;
  bool committed_ = false;
};

void drop_rows(sqlite3* database, const std::string& table, const char* comparison, StepId step) {
  Statement(database, "DELETE FROM " + table + " WHERE step " + comparison + " ?").bind(value(step)).run();
}

// Scores of greedy answers by group. A file of an earlier Tandem has no such table.
void read_greedy(sqlite3* database, StepId step, std::vector<StoredGroup>& groups) {
  if (!Statement(database, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'greedy'").next()) return;
  Statement rows(database, "SELECT group_id, score FROM greedy WHERE step = ?");
  rows.bind(value(step));
  while (rows.next()) {
    const auto found = std::ranges::find(groups, GroupId{rows.integer(0)}, [](const StoredGroup& stored) { return stored.group.id; });
    if (found == groups.end()) continue;  // of another page
    Sample& greedy = found->group.greedy.emplace();
    greedy.scored = true;
    greedy.score = rows.real(1);
  }
}

// Older files lack some columns.
bool has_column(sqlite3* database, const std::string& table, const std::string& column) {
  return Statement(database, "SELECT 1 FROM pragma_table_info('" + table + "') WHERE name = '" + column + "'").next();
}

std::string columns_of(sqlite3* database, const std::string& table) {
  Statement rows(database, "SELECT group_concat(name, ', ') FROM pragma_table_info('" + table + "')");
  return rows.next() ? rows.text(0) : "";
}

void add_later_columns(sqlite3* database) {
  const auto add = [&](const std::string& table, const std::string& column, const std::string& type) {
    if (!has_column(database, table, column)) Statement(database, "ALTER TABLE " + table + " ADD COLUMN " + column + type).run();
  };
  for (const char* column : {"eval_set", "question"}) add("evals", column, " TEXT NOT NULL DEFAULT ''");
  for (const char* column : {"prompt_tokens", "response_tokens", "oldest_version", "newest_version"}) add("samples", column, " INTEGER");
  each_body_column([&](const auto& column) {
    add("samples", column.stored, join_text(" ", type_of(column), " DEFAULT ", empty_of(column)));
  });
}

// A value, and how many tokens in a row have it.
std::vector<int64_t> runs_of(std::span<const int64_t> values) {
  std::vector<int64_t> runs;
  for (const int64_t value : values) {
    if (runs.empty() || runs[runs.size() - 2] != value) runs.insert(runs.end(), {value, 0});
    ++runs.back();
  }
  return runs;
}

std::vector<int64_t> values_of(std::span<const int64_t> runs) {
  std::vector<int64_t> values;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) values.insert(values.end(), static_cast<size_t>(runs[i + 1]), runs[i]);
  return values;
}

// What select_groups reads.
void bind_body(Statement& insert, const Prompt& prompt, const Sample& sample) {
  each_body_column([&]<class Column>(const Column& column) {
    if constexpr (std::is_same_v<typename Column::Owner, Prompt>) insert.bind(prompt.*column.list);
    else if constexpr (std::is_same_v<typename Column::Value, int64_t>) insert.bind(runs_of(sample.*column.list));
    else insert.bind(sample.*column.list);
  });
}

std::vector<StepSummary> summaries(Statement& rows) {
  std::vector<StepSummary> out;
  while (rows.next()) out.push_back({StepId{rows.integer(0)}, rows.integer(1), rows.integer(2), rows.real(3), rows.real(4)});
  return out;
}

// Into the lists of this prompt or sample.
void read_body(const Statement& row, auto& owner) {
  int at = kFirstOfBody;
  each_body_column([&]<class Column>(const Column& column) {
    const int place = at++;
    if constexpr (std::is_same_v<typename Column::Owner, std::decay_t<decltype(owner)>>) {
      if constexpr (Column::kIsText) owner.*column.list = row.text(place);
      else owner.*column.list = row.numbers<typename Column::Value>(place);
      if constexpr (std::is_same_v<typename Column::Value, int64_t>)
        if (!row.is_null(kFirstOfTold)) owner.*column.list = values_of(owner.*column.list);
    }
  });
}

Sample read_sample(const Statement& row) {
  Sample sample;
  read_body(row, sample);
  sample.id = SampleId{row.integer(4)};
  const auto finish = std::ranges::find(kFinishNames, row.text(6));
  sample.finish = finish == kFinishNames.end() ? FinishReason::kAborted : static_cast<FinishReason>(finish - kFinishNames.begin());
  sample.scored = true;
  sample.score = row.real(7);
  sample.parts = parts_of(row.text(9));
  return sample;
}

ToldSample told_of(const Statement& row, const Sample& sample, bool has_tokens) {
  if (!has_tokens) return {false, row.integer(10), row.integer(11), row.integer(12)};
  ToldSample told{true, std::ssize(sample.ids)};
  if (sample.versions.empty()) return told;
  const auto [oldest, newest] = std::ranges::minmax(sample.versions);
  told.oldest_version = oldest, told.newest_version = newest;
  return told;
}

}  // namespace

void CloseDatabase::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

SampleStore::SampleStore(const std::string& path, const KeptTokens& kept)
    : path_(path), kept_(kept), database_(open_database(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)),
      has_log_(!is_shared(path)) {
  char* reason = nullptr;
  const std::string mode = has_log_ ? "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                                    : "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;";
  if (sqlite3_exec(database_.get(), (mode + schema()).c_str(), nullptr, nullptr, &reason) == SQLITE_OK) {
    add_later_columns(database_.get());
    sqlite3_busy_timeout(database_.get(), kWriterWait_ms);
    return;
  }
  const std::string what = reason ? reason : "unknown fault";
  sqlite3_free(reason);
  throw UserError(path, "cannot hold samples: " + what, "choose a fresh and writable --run-dir");
}

void SampleStore::append(const Batch& batch, std::span<const double> advantages, std::span<const std::vector<float>> train_logprobs) {
  Transaction transaction(database_.get());
  drop_rows(database_.get(), "samples", "=", batch.step);
  drop_rows(database_.get(), "greedy", "=", batch.step);
  Statement insert(database_.get(), insert_sample());
  Statement insert_greedy(database_.get(), "INSERT INTO greedy (step, group_id, score) VALUES (?,?,?)");
  size_t row = 0;
  for (const Group& group : batch.groups) {
    const Prompt& prompt = group.prompt;
    if (group.greedy) insert_greedy.bind(value(batch.step)).bind(value(group.id)).bind(group.greedy->score).run();
    for (size_t index = 0; index < group.samples.size(); ++index, ++row) {
      const Sample& sample = group.samples[index];
      TANDEM_CHECK(row < advantages.size(), "one advantage per sample: ", advantages.size(), " given");
      TANDEM_CHECK(train_logprobs.empty() || row < train_logprobs.size(), "one train_logprobs per sample: ", train_logprobs.size());
      insert.bind(value(batch.step)).bind(value(group.id)).bind(static_cast<int64_t>(index)).bind(value(sample.id)).bind(prompt.row);
      insert.bind(finish_name(sample.finish)).bind(sample.score).bind(advantages[row]);
      insert.bind(value(group.version)).bind(value(batch.version)).bind(parts_text(sample));
      insert.bind(std::ssize(prompt.ids)).bind(std::ssize(sample.ids));
      if (sample.versions.empty()) insert.bind_null().bind_null();
      else insert.bind(std::ranges::min(sample.versions)).bind(std::ranges::max(sample.versions));
      if (train_logprobs.empty()) insert.bind_null();
      else insert.bind(train_logprobs[row]);
      bind_body(insert, prompt, sample);
      insert.run();
    }
  }
  TANDEM_CHECK(row == advantages.size(), row, " samples but ", advantages.size(), " advantages");
  const int64_t last = kept_.last_steps > 0 ? value(batch.step) - kept_.last_steps : 0;
  if (last > 0) Statement(database_.get(), drop_tokens()).bind(std::min(thinned_to_ + 1, last)).bind(last).bind(kept_.every_steps).run();
  transaction.commit();
  thinned_to_ = std::max(last, int64_t{0});
}

void SampleStore::append_evals(StepId step, std::span<const EvalAnswer> answers) {
  Transaction transaction(database_.get());
  drop_rows(database_.get(), "evals", "=", step);
  Statement insert(database_.get(),
                   "INSERT INTO evals (step, row, prompt, answer, response, score, eval_set, question) VALUES (?,?,?,?,?,?,?,?)");
  for (const EvalAnswer& it : answers) {
    insert.bind(value(step)).bind(it.row).bind(it.prompt).bind(it.answer).bind(it.response).bind(it.score).bind(it.set);
    insert.bind(it.question).run();
  }
  transaction.commit();
}

void SampleStore::append_dropped(StepId step, std::span<const GroupId> groups) {
  if (groups.empty()) return;
  Transaction transaction(database_.get());
  drop_rows(database_.get(), "dropped", "=", step);
  Statement insert(database_.get(), "INSERT INTO dropped (step, group_id) VALUES (?,?)");
  for (const GroupId group : groups) insert.bind(value(step)).bind(value(group)).run();
  transaction.commit();
}

void SampleStore::truncate_after(StepId step) {
  Transaction transaction(database_.get());
  for (const char* table : {"dropped", "samples", "greedy", "evals"}) drop_rows(database_.get(), table, ">", step);
  transaction.commit();
}

void SampleStore::adopt(const std::string& path) {
  sqlite3* database = database_.get();
  // Where it cannot, the next call does.
  const auto detach = [&] { sqlite3_exec(database, "DETACH other", nullptr, nullptr, nullptr); };
  detach();
  try {
    SampleStore with_all_columns(path);
  } catch (const UserError& e) {
    throw PeerError(e.what());
  }
  Statement(database, "ATTACH ? AS other").bind(std::string_view(path)).run();
  try {
    Transaction transaction(database);
    for (const std::string table : {"samples", "greedy", "evals", "dropped"}) {
      Statement(database, "DELETE FROM main." + table + " WHERE step IN (SELECT step FROM other." + table + ")").run();
      const std::string columns = columns_of(database, table);  // their order differs between versions
      Statement(database, "INSERT OR REPLACE INTO main." + table + " (" + columns + ") SELECT " + columns + " FROM other." + table).run();
    }
    transaction.commit();
  } catch (const PeerError&) {
    detach();
    throw;
  }
  detach();
}

int64_t SampleStore::num_samples() const {
  try {
    Statement count(database_.get(), "SELECT count(*) FROM samples");
    return count.next() ? count.integer(0) : 0;
  } catch (const PeerError&) {
    return 0;
  }
}

void SampleStore::flush() {
  if (!has_log_) return;
  // A commit under FULL syncs the log and with it all commits before; the checkpoint copies what it can without waiting.
  const char* sql =
      "PRAGMA synchronous=FULL; BEGIN IMMEDIATE; PRAGMA user_version=1; COMMIT; PRAGMA synchronous=NORMAL; PRAGMA wal_checkpoint(PASSIVE)";
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return;
  const std::string fault = path_ + ": " + sqlite3_errmsg(database_.get());
  sqlite3_exec(database_.get(), "PRAGMA synchronous=NORMAL", nullptr, nullptr, nullptr);
  throw PeerError(fault);
}

namespace {

// What may be well the next time: the disk's fault or the machine's, not the file's.
bool may_pass(int code) {
  constexpr int kCodes[] = {SQLITE_IOERR, SQLITE_CANTOPEN, SQLITE_NOMEM, SQLITE_PERM, SQLITE_READONLY, SQLITE_FULL, SQLITE_AUTH};
  return std::ranges::find(kCodes, code & 0xff) != std::end(kCodes);
}

}  // namespace

std::string sample_store_fault(const std::string& path, double patience_s) {
  std::error_code absent;
  if (!std::filesystem::exists(path, absent)) return "";
  for (const char* of : {"", "-wal", "-shm", "-journal"})
    if (std::filesystem::exists(path + of, absent) && !std::filesystem::is_regular_file(path + of, absent))
      return path + of + " is no file";
  sqlite3* made = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &made, SQLITE_OPEN_READWRITE, nullptr);
  const Database database(made);
  const auto unless_it_passes = [&](int fault) {
    if (may_pass(fault)) throw PeerError(path + " cannot be read: " + sqlite3_errstr(fault));
    return std::string(sqlite3_errmsg(database.get()));
  };
  if (code != SQLITE_OK) return unless_it_passes(code);
  Deadline deadline = Deadline::after_s(patience_s);
  constexpr int kInstructions = 10000;  // between two looks at the clock
  const auto is_late = [](void* by) { return static_cast<int>(static_cast<Deadline*>(by)->passed()); };
  sqlite3_progress_handler(database.get(), kInstructions, is_late, &deadline);
  std::string said = "ok";
  const auto keep = [](void* to, int, char** values, char**) {
    *static_cast<std::string*>(to) = values[0] ? values[0] : "";
    return 0;
  };
  const int end = sqlite3_exec(database.get(), "PRAGMA quick_check(1)", keep, &said, nullptr);
  if (end == SQLITE_INTERRUPT || end == SQLITE_BUSY) return "";
  if (end != SQLITE_OK) return unless_it_passes(end);
  return said == "ok" ? "" : said;
}

SampleReader::SampleReader(const std::string& path) : path_(path) {
  if (!std::filesystem::is_regular_file(path)) throw UserError(path, "no such file", "give a run folder that has samples.sqlite");
  database_ = open_database(path, SQLITE_OPEN_READONLY);
  const char* probe = "SELECT (SELECT 1 FROM samples LIMIT 1), (SELECT 1 FROM evals LIMIT 1)";
  const auto probed = [&] { return sqlite3_exec(database_.get(), probe, nullptr, nullptr, nullptr); };
  int code = probed();
  // A write-ahead log cannot be opened where nothing may be written; a finished run there is read as it lies.
  if (code == SQLITE_CANTOPEN || code == SQLITE_READONLY) {
    database_ = open_database("file:" + uri_path(path) + "?immutable=1", SQLITE_OPEN_READONLY);
    code = probed();
  }
  if (code != SQLITE_OK)
    throw UserError(path, std::string("is no sample store: ") + sqlite3_errmsg(database_.get()), "give the run folder of a Tandem run");
  set_column_ = has_column(database_.get(), "evals", "eval_set") ? "eval_set" : "''";
  question_column_ = has_column(database_.get(), "evals", "question") ? "question" : "''";
  tells_tokens_ = has_column(database_.get(), "samples", "response_tokens");
  body_columns_ = of_body([&](const auto& column) {
    return join_text(", ", has_column(database_.get(), "samples", column.stored) ? column.stored : empty_of(column));
  });
}

std::vector<StepSummary> SampleReader::steps() const {
  Statement rows(database_.get(),
                 "SELECT step, count(DISTINCT group_id), count(*), avg(score), 0 FROM samples GROUP BY step ORDER BY step");
  return summaries(rows);
}

std::vector<StoredGroup> SampleReader::groups(const GroupQuery& query, int64_t first, int64_t count) const {
  Statement row(database_.get(),
                "WITH page AS (" + found_groups(query, tells_tokens_) + " ORDER BY place LIMIT ?3 OFFSET ?4) " +
                    select_groups(tells_tokens_ ? kTold : "NULL, NULL, NULL", body_columns_));
  row.bind(std::string_view(query.text)).bind(value(query.step)).bind(count).bind(first);
  std::vector<StoredGroup> out;
  while (row.next()) {
    const GroupId id{row.integer(0)};
    if (out.empty() || out.back().group.id != id) {
      StoredGroup& stored = out.emplace_back();
      stored.group.id = id;
      stored.group.prompt.row = row.integer(1);
      read_body(row, stored.group.prompt);
      stored.group.version = PolicyVersion{row.integer(2)};
      stored.trained_version = PolicyVersion{row.integer(3)};
    }
    const Sample& sample = out.back().group.samples.emplace_back(read_sample(row));
    out.back().told.push_back(told_of(row, sample, !out.back().group.prompt.ids.empty()));
    out.back().train_logprobs.push_back(row.numbers<float>(5));
    out.back().advantages.push_back(row.real(8));
  }
  read_greedy(database_.get(), query.step, out);
  return out;
}

int64_t SampleReader::num_groups(const GroupQuery& query) const {
  Statement row(database_.get(), "SELECT count(*) FROM (" + found_groups(query, tells_tokens_) + ")");
  row.bind(std::string_view(query.text)).bind(value(query.step));
  return row.next() ? row.integer(0) : 0;
}

Batch SampleReader::batch(StepId step) const {
  std::vector<StoredGroup> stored = groups({step}, 0, std::numeric_limits<int64_t>::max());
  if (stored.empty()) {
    const auto all = steps();
    const std::string remedy = all.empty() ? "the store is empty"
                                           : "it holds steps " + std::to_string(value(all.front().step)) + " to " +
                                                 std::to_string(value(all.back().step));
    throw UserError(path_, "has no samples of step " + std::to_string(value(step)), remedy);
  }
  if (stored.front().group.prompt.ids.empty())
    throw UserError(path_, join_text("has no tokens of step ", value(step), " any more"),
                    "a run with run.samples_steps 0, which keeps all");
  Batch batch;
  batch.step = step;
  batch.version = stored.front().trained_version;
  for (StoredGroup& it : stored) batch.groups.push_back(std::move(it.group));
  return batch;
}

std::vector<StepId> SampleReader::whole_steps() const {
  Statement rows(database_.get(), "SELECT step FROM samples GROUP BY step HAVING min(length(prompt_ids)) > 0 ORDER BY step");
  std::vector<StepId> steps;
  while (rows.next()) steps.push_back(StepId{rows.integer(0)});
  return steps;
}

std::vector<StepSummary> SampleReader::eval_steps(double right_at) const {
  Statement rows(database_.get(),
                 "SELECT step, count(DISTINCT row), count(*), avg(score), avg(score >= ?) FROM evals GROUP BY step ORDER BY step");
  return summaries(rows.bind(right_at));
}

std::vector<EvalSetSummary> SampleReader::eval_sets(double right_at) const {
  Statement rows(database_.get(), "SELECT step, " + set_column_ + " AS name, count(*), avg(score), avg(score >= ?) FROM evals WHERE " +
                                      set_column_ + " != '' GROUP BY step, name ORDER BY step, min(row)");
  rows.bind(right_at);
  std::vector<EvalSetSummary> out;
  while (rows.next()) out.push_back({StepId{rows.integer(0)}, rows.text(1), rows.integer(2), rows.real(3), rows.real(4)});
  return out;
}

std::vector<EvalAnswer> SampleReader::evals(StepId step, int64_t first, int64_t count) const {
  std::vector<EvalAnswer> out;
  for (ComparedAnswer& each : compared({.step = step, .since = {}}, first, count)) out.push_back(std::move(each.now));
  return out;
}

std::vector<ComparedAnswer> SampleReader::compared(const AnswerQuery& query, int64_t first, int64_t count) const {
  Statement row = compared_rows({database_.get(), set_column_, question_column_}, query,
                                "row, prompt, answer, response, score, old_id IS NOT NULL, old_response, old_score, set_name, asked",
                                join_text("WHERE ", asked_for(query), " ORDER BY ", kAnswerOrder[static_cast<size_t>(query.order)],
                                          " LIMIT ?6 OFFSET ?7"));
  row.bind(count).bind(first);
  std::vector<ComparedAnswer> out;
  while (row.next()) {
    ComparedAnswer& it = out.emplace_back();
    it.now = {row.integer(0), row.text(1), row.text(2), row.text(3), row.real(4), row.text(8), row.text(9)};
    if (row.integer(5)) it.before = {it.now.row, it.now.prompt, it.now.answer, row.text(6), row.real(7), it.now.set, it.now.question};
  }
  return out;
}

AnswerCounts SampleReader::counts(const AnswerQuery& query) const {
  const auto those = [](const std::string& condition) { return ", count(*) FILTER (WHERE " + condition + ")"; };
  Statement row = compared_rows({database_.get(), set_column_, question_column_}, query,
                                "count(*)" + those("is_right") + those("old_id IS NOT NULL") +
                                    those(answer_kind(AnswerKind::kBecameRight)) + those(answer_kind(AnswerKind::kBecameWrong)) +
                                    those(asked_for(query)),
                                "");
  if (!row.next()) return {};
  return {row.integer(0), row.integer(1), row.integer(2), row.integer(3), row.integer(4), row.integer(5)};
}

}  // namespace tandem::data
