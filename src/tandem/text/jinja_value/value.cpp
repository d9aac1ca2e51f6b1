// SPDX-License-Identifier: Apache-2.0
#include "tandem/text/jinja_value/value.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "tandem/base/input/exact_json.h"
#include "tandem/text/jinja_value/characters.h"

namespace tandem::text::jinja {
namespace {

constexpr int kMaxNesting = 200;

// 1, 1.0 and true are one key, as in Python.
std::string key_text(const Value& key) {
  if (key.is_text()) return "t" + key.text();
  if (key.is_none()) return "none";
  if (key.is_float() && key.floating() != std::floor(key.floating())) return "f" + std::to_string(key.floating());
  if (key.is_number()) return "i" + std::to_string(key.is_float() ? static_cast<int64_t>(key.floating()) : key.integer());
  throw RenderError(std::string("a value of type '") + type_name(key.defined()) + "' cannot be the key of a dict");
}

void grow(Extent& whole, const Value& part) {
  const Extent inner = extent_of(part);
  whole.levels = std::max(whole.levels, inner.levels + 1);
  whole.weight += inner.weight;
  if (whole.levels > kMaxNesting) throw RenderError("a value is nested deeper than " + std::to_string(kMaxNesting) + " levels");
  Workspace::afford(1, whole.weight);
}

}  // namespace

Value Value::undefined(std::string what) {
  Value value;
  value.held_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

const Value& Value::defined() const {
  if (is_undefined()) throw RenderError(*std::get<Undefined>(held_).what);
  return *this;
}

void Dict::set(const Value& key, Value value) {
  const auto [place, is_new] = index_.emplace(key_text(key), entries_.size());
  if (is_new)
    entries_.emplace_back(key, std::move(value));
  else
    entries_[place->second].second = std::move(value);
}

const Value* Dict::find(const Value& key) const {
  const auto found = index_.find(key_text(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Workspace::fail() { throw RenderError("the template runs for too long"); }
void Workspace::too_large() { throw RenderError("a value is larger than " + std::to_string(kMostValueBytes >> 20) + " MiB"); }

template <class T>
std::shared_ptr<const T> Workspace::held(T&& value, int64_t bytes) {
  if (*held_bytes_ + bytes > kMostHeldBytes)
    throw RenderError("the template holds more than " + std::to_string(kMostHeldBytes >> 20) + " MiB");
  *held_bytes_ += bytes;
  return {new T(std::move(value)), [held = held_bytes_, bytes](const T* gone) {
            delete gone;
            *held -= bytes;
          }};
}

Value Workspace::list(std::vector<Value> items, bool is_tuple) {
  spend(64 + 32 * static_cast<int64_t>(items.size()));
  const int64_t bytes = 64 + kValueBytes * static_cast<int64_t>(items.size());
  List list{std::move(items), is_tuple, {}};
  for (const Value& item : list.items) grow(list.extent, item);
  return held(std::move(list), bytes);
}

Value Workspace::dict(Dict dict) {
  spend(64 + 128 * static_cast<int64_t>(dict.entries().size()));
  for (const auto& [key, value] : dict.entries()) {
    grow(dict.extent, key);
    grow(dict.extent, value);
  }
  const int64_t bytes = 64 + 8 * kValueBytes * static_cast<int64_t>(dict.entries().size());
  return held(std::move(dict), bytes);
}

Value Workspace::text(std::string text) {
  const auto size = static_cast<int64_t>(text.size());
  afford(1, size);
  spend(32 + size);
  return held(std::move(text), 2 * kValueBytes + size);
}

Value Workspace::from_json(const nlohmann::ordered_json& json) { return from_json(json, 0); }

Value Workspace::from_json(const nlohmann::ordered_json& json, int levels) {
  if (levels > kMaxNesting) throw RenderError("a value is nested deeper than " + std::to_string(kMaxNesting) + " levels");
  if (json.is_string()) return text(json.get<std::string>());
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return ObjectPtr(std::make_shared<LongInteger>(json.dump()));
  if (is_long_number(json)) {
    const std::string written = written_number(json);
    if (written.find_first_of(".eE") == std::string::npos) return ObjectPtr(std::make_shared<LongInteger>(written));
    return std::strtod(written.c_str(), nullptr);  // as Python reads it
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) items.push_back(from_json(item, levels + 1));
    return list(std::move(items));
  }
  if (json.is_object()) {
    Dict entries;
    for (const auto& [key, value] : json.items()) entries.set(text(key), from_json(value, levels + 1));
    return dict(std::move(entries));
  }
  return {};
}

Extent extent_of(const Value& value) {
  if (value.is_list()) return value.list().extent;
  if (value.is_dict()) return value.dict().extent;
  if (value.is_object()) return value.object().extent;
  return {0, kValueBytes + (value.is_text() ? static_cast<int64_t>(value.text().size()) : 0)};
}

Extent extent_around(const Value& value) {
  Extent whole;
  grow(whole, value);
  return whole;
}

const Value* ArgumentReader::find(const char* name) {
  const size_t position = position_++;
  if (position < arguments_.positional.size()) return &arguments_.positional[position];
  for (const auto& [given, value] : arguments_.named)
    if (given == name) return ++named_read_, &value;
  return nullptr;
}

Value ArgumentReader::next(const char* name, const Value& fallback) {
  const Value* found = find(name);
  return found ? *found : fallback;
}

Value ArgumentReader::next(const char* name) {
  if (const Value* found = find(name)) return *found;
  throw RenderError(function_ + " lacks its argument '" + name + "'");
}

void ArgumentReader::finish() const {
  if (position_ < arguments_.positional.size()) throw RenderError(function_ + " is given too many arguments");
  if (named_read_ < arguments_.named.size())
    throw RenderError(function_ + " is given an argument twice, or one that is not supported, among them '" +
                      arguments_.named.back().first + "'");
}

Value Object::attribute(const std::string& name) const {
  return Value::undefined(std::string("'") + type() + "' has no attribute '" + name + "'");
}

Value Object::call(const Arguments&) { throw RenderError(std::string("a value of type '") + type() + "' cannot be called"); }

Value Namespace::attribute(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? Object::attribute(name) : found->second;
}

const LongInteger* long_integer(const Value& value) {
  return value.is_object() ? dynamic_cast<const LongInteger*>(&value.object()) : nullptr;
}

const char* type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_text()) return "str";
  if (value.is_list()) return value.list().is_tuple ? "tuple" : "list";
  return value.is_dict() ? "dict" : value.object().type();
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_float()) return value.floating() != 0;
  if (value.is_number()) return value.integer() != 0;
  if (value.is_text()) return !value.text().empty();
  if (value.is_list()) return !value.list().items.empty();
  if (value.is_dict()) return !value.dict().entries().empty();
  return true;
}

ListPtr items_of(Workspace& workspace, const Value& value) {
  if (value.is_list()) return value.list_pointer();
  std::vector<Value> items;
  if (value.is_dict()) {
    for (const auto& [key, unused] : value.dict().entries()) items.push_back(key);
  } else if (value.is_text()) {
    workspace.spend(64 * static_cast<int64_t>(value.text().size()));
    Workspace::afford(num_characters(value.text()), kValueBytes);
    for (const std::string_view character : characters_of(value.text())) items.emplace_back(std::string(character));
  } else if (!value.is_undefined()) {
    throw RenderError(std::string("a value of type '") + type_name(value) + "' cannot be iterated over");
  }
  return workspace.list(std::move(items)).list_pointer();
}

}  // namespace tandem::text::jinja
