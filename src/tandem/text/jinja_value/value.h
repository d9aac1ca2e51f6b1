// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a template computes with: Python's values as far as templates meet them. Immutable but for namespaces; text is UTF-8
// and its positions count characters.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::text::jinja {

/// What a template did wrong, without the place: render() knows it.
class RenderError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;
struct List;
class Dict;
class Object;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

struct None {
  bool operator==(const None&) const = default;
};

/// The value of a name, key or attribute that is not there. Most uses of it are errors that say `what`.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

/// Ownership  shares what it holds; copies are cheap.
/// Threads    as shared_ptr.
class Value {
 public:
  Value() : held_(None{}) {}
  Value(None) : held_(None{}) {}
  Value(bool v) : held_(v) {}
  Value(int64_t v) : held_(v) {}
  Value(double v) : held_(v) {}
  Value(std::string v) : held_(std::make_shared<const std::string>(std::move(v))) {}
  Value(std::shared_ptr<const std::string> v) : held_(std::move(v)) {}
  Value(const char* v) : Value(std::string(v)) {}
  Value(ListPtr v) : held_(std::move(v)) {}
  Value(DictPtr v) : held_(std::move(v)) {}
  Value(ObjectPtr v) : held_(std::move(v)) {}
  static Value undefined(std::string what);

  bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  bool is_none() const { return std::holds_alternative<None>(held_); }
  bool is_bool() const { return std::holds_alternative<bool>(held_); }
  bool is_int() const { return std::holds_alternative<int64_t>(held_); }
  bool is_float() const { return std::holds_alternative<double>(held_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const std::string>>(held_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(held_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(held_); }
  bool is_object() const { return std::holds_alternative<ObjectPtr>(held_); }

  const std::string& text() const { return *std::get<std::shared_ptr<const std::string>>(held_); }
  const List& list() const { return *std::get<ListPtr>(held_); }
  const ListPtr& list_pointer() const { return std::get<ListPtr>(held_); }
  const Dict& dict() const { return *std::get<DictPtr>(held_); }
  Object& object() const { return *std::get<ObjectPtr>(held_); }
  const ObjectPtr& object_pointer() const { return std::get<ObjectPtr>(held_); }
  /// Of a bool or an integer.
  int64_t integer() const { return is_bool() ? std::get<bool>(held_) : std::get<int64_t>(held_); }
  bool boolean() const { return std::get<bool>(held_); }
  double floating() const { return is_float() ? std::get<double>(held_) : static_cast<double>(integer()); }
  /// Errors: RenderError with what is undefined.
  const Value& defined() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>, ListPtr, DictPtr, ObjectPtr> held_;
};

constexpr int64_t kValueBytes = 32;                   ///< about what a value takes beside its text
constexpr int64_t kMostValueBytes = int64_t{1} << 26;  ///< of one value with all it holds, and of its text
constexpr int64_t kMostHeldBytes = int64_t{1} << 29;   ///< of all values of a rendering that live at one time

/// How far a value reaches: `levels` of nesting, `weight` about the bytes of it and of all it holds, written out. Both are bounded
/// when it is made.
struct Extent {
  int levels = 0;
  int64_t weight = kValueBytes;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  Extent extent;
};

/// In order of insertion. Keys are texts, numbers or none.
class Dict {
 public:
  /// Replaces the value of a key that is there. Errors: RenderError for a key of another kind.
  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  Extent extent;

 private:
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;  // by a text of the key, in which 1, 1.0 and true agree
};

/// Counts what a rendering costs, so that no template runs without end or fills the memory. One unit of work is about a byte touched.
class Workspace {
 public:
  explicit Workspace(int64_t work) : left_(work), held_bytes_(std::make_shared<int64_t>(0)) {}
  /// Errors: RenderError when there is no more.
  void spend(int64_t work) {
    if ((left_ -= work) < 0) fail();
  }
  /// Asked before something is built. Errors: RenderError if `times` parts of `bytes` are more than a value may have.
  static void afford(int64_t times, int64_t bytes) {
    if (bytes > 0 && times > kMostValueBytes / bytes) too_large();
  }
  /// Errors: RenderError for one that is too large or nested too deep, or where too much is held already; as spend.
  Value list(std::vector<Value> items, bool is_tuple = false);
  Value dict(Dict dict);
  Value text(std::string text);
  /// The cost of looking for `part` in `whole`.
  void spend_search(const std::string& whole, const std::string& part) {
    spend(16 + static_cast<int64_t>(whole.size() / 16 * std::min(part.size() + 16, whole.size() + 16)));
  }
  Value from_json(const nlohmann::ordered_json& json);

 private:
  [[noreturn]] static void fail();
  [[noreturn]] static void too_large();
  /// Counts `bytes` as held until the last pointer goes.
  template <class T>
  std::shared_ptr<const T> held(T&& value, int64_t bytes);
  Value from_json(const nlohmann::ordered_json& json, int levels);
  int64_t left_;
  std::shared_ptr<int64_t> held_bytes_;  // a value may outlive the workspace
};

/// A text that is put together. Errors, before it grows: RenderError where it is larger than a value may be; as Workspace::spend.
class TextBuilder {
 public:
  explicit TextBuilder(Workspace& workspace) : workspace_(workspace) {}
  TextBuilder& operator+=(std::string_view part) {
    workspace_.spend(static_cast<int64_t>(part.size()));
    Workspace::afford(1, static_cast<int64_t>(text_.size() + part.size()));
    text_ += part;
    return *this;
  }
  TextBuilder& operator+=(char c) { return *this += std::string_view(&c, 1); }
  void append(size_t count, char c) {
    Workspace::afford(1, static_cast<int64_t>(text_.size() + count));
    workspace_.spend(static_cast<int64_t>(count));
    text_.append(count, c);
  }
  std::string take() { return std::move(text_); }

 private:
  Workspace& workspace_;
  std::string text_;
};

Extent extent_of(const Value& value);
/// Of what holds the value. Errors: RenderError where that is nested too deep.
Extent extent_around(const Value& value);

/// What a call is given.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Reads the arguments of one function by position or name, each once.
class ArgumentReader {
 public:
  ArgumentReader(std::string function, const Arguments& arguments) : function_(std::move(function)), arguments_(arguments) {}
  /// The next argument; its default if it is not given.
  Value next(const char* name, const Value& fallback);
  /// Errors: RenderError if it is not given.
  Value next(const char* name);
  bool has_positional() const { return !arguments_.positional.empty(); }
  /// All of them as they are, for what hands them on.
  const Arguments& take_all() {
    position_ = arguments_.positional.size(), named_read_ = arguments_.named.size();
    return arguments_;
  }
  /// Errors: RenderError naming an argument that nobody read.
  void finish() const;

 private:
  const Value* find(const char* name);
  std::string function_;
  const Arguments& arguments_;
  size_t position_ = 0, named_read_ = 0;
};

/// A value with attributes of its own, or one that can be called.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type() const = 0;
  /// Undefined if there is none of that name.
  virtual Value attribute(const std::string& name) const;
  /// Errors: RenderError if it cannot be called.
  virtual Value call(const Arguments& arguments);
  virtual bool callable() const { return false; }
  Extent extent;  ///< of what it holds; objects the renderer itself holds have none
};

/// The one thing a template may change.
class Namespace : public Object {
 public:
  const char* type() const override { return "Namespace"; }
  Value attribute(const std::string& name) const override;
  std::unordered_map<std::string, Value> fields;
};

/// An integer beyond 64 bits: it is written and compared as it stands in the JSON, and not computed with.
class LongInteger : public Object {
 public:
  explicit LongInteger(std::string digits) : digits(std::move(digits)) {}
  const char* type() const override { return "int"; }
  const std::string digits;
};
/// Null for any other value.
const LongInteger* long_integer(const Value& value);

/// "str", "list", ... as Python names the type.
const char* type_name(const Value& value);
bool truth(const Value& value);
/// What a loop over the value visits: items, keys or characters. Errors: RenderError for what has none.
ListPtr items_of(Workspace& workspace, const Value& value);

}  // namespace tandem::text::jinja
