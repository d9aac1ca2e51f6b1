// SPDX-License-Identifier: Apache-2.0
#pragma once
// One prepared SQLite statement: bind, step, read. Used by sample_store.cpp alone.

#include <sqlite3.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tandem/base/error.h"
#include "tandem/base/ids.h"

namespace tandem::data {

/// Ownership  the database outlives it. Bound bytes are copied.
/// Threads    one at a time.
/// Errors     PeerError naming the file and SQLite's reason.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& sql) : database_(database) {
    sqlite3_stmt* made = nullptr;
    check(sqlite3_prepare_v2(database, sql.c_str(), -1, &made, nullptr));
    statement_.reset(made);
  }

  Statement& bind(int64_t value) { return check(sqlite3_bind_int64(statement_.get(), ++bound_, value)); }
  Statement& bind(double value) { return check(sqlite3_bind_double(statement_.get(), ++bound_, value)); }
  Statement& bind(std::string_view text) {
    return check(sqlite3_bind_text64(statement_.get(), ++bound_, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  template <class T>
  Statement& bind(const std::vector<T>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    if (bytes.empty()) return check(sqlite3_bind_zeroblob(statement_.get(), ++bound_, 0));
    return check(sqlite3_bind_blob64(statement_.get(), ++bound_, bytes.data(), bytes.size(), SQLITE_TRANSIENT));
  }
  template <class Id>
    requires std::is_enum_v<Id>
  Statement& bind(Id id) {
    return bind(value(id));
  }
  template <class T>
  Statement& bind(const std::optional<T>& value) {
    return value ? bind(*value) : bind_null();
  }
  Statement& bind_null() { return check(sqlite3_bind_null(statement_.get(), ++bound_)); }

  /// True while there is a row to read.
  bool next() {
    const int code = sqlite3_step(statement_.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) check(code);
    return code == SQLITE_ROW;
  }
  /// Runs to the end, then is ready to be bound again.
  void run() {
    while (next()) {
    }
    check(sqlite3_reset(statement_.get()));
    bound_ = 0;
  }

  bool is_null(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  /// NaN where SQLite, which has no NaN, holds NULL.
  double real(int column) const {
    if (is_null(column)) return std::numeric_limits<double>::quiet_NaN();
    return sqlite3_column_double(statement_.get(), column);
  }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
    return bytes ? std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))) : std::string();
  }
  template <class T>
  std::vector<T> numbers(int column) const {
    const void* bytes = sqlite3_column_blob(statement_.get(), column);
    std::vector<T> out(static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column)) / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes, out.size() * sizeof(T));
    return out;
  }

 private:
  Statement& check(int code) {
    if (code == SQLITE_OK) return *this;
    const char* file = sqlite3_db_filename(database_, "main");
    throw PeerError(std::string(file ? file : "samples.sqlite") + ": " + sqlite3_errmsg(database_));
  }

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  sqlite3* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

}  // namespace tandem::data
