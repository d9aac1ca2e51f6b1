// SPDX-License-Identifier: Apache-2.0
#pragma once
// Walks the tree of a template once.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tandem/text/jinja/syntax.h"
#include "tandem/text/jinja/template.h"

namespace tandem::text::jinja {

/// Names of one scope: a loop's round, a macro's call. Lookups go on in the parent.
struct Frame {
  std::shared_ptr<Frame> parent;
  std::map<std::string, Value> names;
};

/// Ownership  of all that a rendering makes; the tree outlives it.
/// Errors     RenderError without a place; line() is where.
class Renderer {
 public:
  explicit Renderer(const Limits& limits);
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  std::string run(const Block& body, const nlohmann::ordered_json& variables);
  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Macro;
  class Loop;

  Flow block(const Block& body);
  Flow statement(const Statement& one);
  Flow if_statement(const Statement& one);
  void for_statement(const Statement& one, const Value& over, int depth);
  ListPtr kept_items(const Statement& one, const ListPtr& all);
  void call_statement(const Statement& one);
  void capture_statement(const Statement& one);
  void with_statement(const Statement& one);
  std::string captured(const Block& body);
  std::string captured(const std::function<void()>& action);
  void print(const std::string& text);
  void assign(const Target& target, const Value& value);
  std::shared_ptr<Frame> frame_below() const;
  ObjectPtr macro(const Statement& one);
  std::string call_macro(const Statement& one, const std::shared_ptr<Frame>& home, const Arguments& arguments);

  Value evaluate(const Expression& one);
  Value dispatch(const Expression& one);
  Value named(const std::string& name) const;
  Value list(const Expression& one);
  Value dict(const Expression& one);
  Value concat(const Expression& one);
  Value compare_chain(const Expression& one);
  Value condition(const Expression& one);
  Value attribute(const Expression& one);
  Value sliced(const Expression& one);
  Value call(const Expression& one, const Value* caller = nullptr);
  Value filter(const Expression& one, const Value* innermost);
  Arguments arguments(const Expression& one);

  Workspace workspace_;
  Limits limits_;
  std::map<std::string, Value> globals_;
  std::shared_ptr<Frame> frame_;
  std::string* out_ = nullptr;
  int depth_ = 0, line_ = 1;
  int64_t printed_bytes_ = 0;  // of all texts that are being printed to
  // What may hold itself: emptied at the end.
  std::vector<std::shared_ptr<Frame>> captured_frames_;
  std::shared_ptr<std::vector<std::shared_ptr<Namespace>>> namespaces_;
};

}  // namespace tandem::text::jinja
