// SPDX-License-Identifier: Apache-2.0
// Statements. Expressions stand in evaluate.cpp.
#include "tandem/text/jinja/renderer.h"

#include <algorithm>

#include "tandem/text/jinja/scope.h"
#include "tandem/text/jinja_value/filter.h"
#include "tandem/text/jinja_value/format.h"
#include "tandem/text/jinja_value/method.h"

namespace tandem::text::jinja {

class Renderer::Macro : public Object {
 public:
  Macro(Renderer& renderer, const Statement& statement, std::shared_ptr<Frame> home)
      : renderer_(renderer), statement_(statement), home_(std::move(home)) {}
  const char* type() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value attribute(const std::string& name) const override {
    return name == "name" ? Value(statement_.text) : Object::attribute(name);
  }
  Value call(const Arguments& arguments) override { return renderer_.call_macro(statement_, home_, arguments); }

 private:
  Renderer& renderer_;
  const Statement& statement_;
  std::shared_ptr<Frame> home_;
};

// `loop` within a loop.
class Renderer::Loop : public Object {
 public:
  Loop(Renderer& renderer, const Statement& statement, ListPtr items, int depth)
      : renderer_(renderer), statement_(statement), items_(std::move(items)), depth_(depth) {
    extent = extent_around(Value(items_));
  }
  const char* type() const override { return "LoopContext"; }
  bool callable() const override { return statement_.recursive; }
  size_t at = 0;

  Value attribute(const std::string& name) const override {
    const auto index = static_cast<int64_t>(at), count = static_cast<int64_t>(items_->items.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return count - index;
    if (name == "revindex0") return count - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == count;
    if (name == "length") return count;
    if (name == "depth") return int64_t{depth_} + 1;
    if (name == "depth0") return int64_t{depth_};
    if (name == "previtem") return at > 0 ? items_->items[at - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem") return index + 1 < count ? items_->items[at + 1] : Value::undefined("there is no next item");
    if (name == "cycle") return make_function(name, [index](const Arguments& in) {
      if (in.positional.empty()) throw RenderError("loop.cycle() wants values");
      return in.positional[static_cast<size_t>(index) % in.positional.size()];
    });
    return Object::attribute(name);
  }

  Value call(const Arguments& arguments) override {
    if (!statement_.recursive) throw RenderError("loop() needs {% for ... recursive %}");
    ArgumentReader in("loop()", arguments);
    const Value over = in.next("iterable");
    in.finish();
    return renderer_.workspace_.text(renderer_.captured([&] { renderer_.for_statement(statement_, over, depth_ + 1); }));
  }

 private:
  Renderer& renderer_;
  const Statement& statement_;
  ListPtr items_;
  int depth_;
};

Renderer::Renderer(const Limits& limits)
    : workspace_(limits.work), limits_(limits), namespaces_(std::make_shared<std::vector<std::shared_ptr<Namespace>>>()) {
  globals_ = functions(workspace_);
  globals_["namespace"] = make_function("namespace", [this](const Arguments& arguments) -> Value {
    workspace_.spend(1000);
    auto made = std::make_shared<Namespace>();
    namespaces_->push_back(made);
    for (const Value& from : arguments.positional) {
      if (!from.is_dict()) throw RenderError("namespace() wants names and values");
      for (const auto& [key, value] : from.dict().entries()) made->fields[to_text(workspace_, key)] = value;
    }
    for (const auto& [name, value] : arguments.named) made->fields[name] = value;
    return ObjectPtr(made);
  });
}

Renderer::~Renderer() {
  for (const auto& frame : captured_frames_) frame->names.clear();
  for (const auto& one : *namespaces_) one->fields.clear();
}

std::string Renderer::run(const Block& body, const nlohmann::ordered_json& variables) {
  frame_ = std::make_shared<Frame>();
  for (const auto& [key, value] : variables.items()) frame_->names[key] = workspace_.from_json(value);
  return captured(body);
}

void Renderer::print(const std::string& text) {
  workspace_.spend(static_cast<int64_t>(text.size()));
  if ((printed_bytes_ += static_cast<int64_t>(text.size())) > limits_.output_bytes)
    throw RenderError("the text is longer than " + std::to_string(limits_.output_bytes) + " bytes");
  *out_ += text;
}

std::string Renderer::captured(const std::function<void()>& action) {
  std::string text;
  const Exchanged redirected(out_, &text);
  action();
  printed_bytes_ -= static_cast<int64_t>(text.size());  // it is a value from here on
  return text;
}

std::string Renderer::captured(const Block& body) {
  return captured([&] { block(body); });
}

std::shared_ptr<Frame> Renderer::frame_below() const {
  auto made = std::make_shared<Frame>();
  made->parent = frame_;
  return made;
}

Renderer::Flow Renderer::block(const Block& body) {
  for (const auto& one : body)
    if (const Flow flow = statement(*one); flow != Flow::kNext) return flow;
  return Flow::kNext;
}

Renderer::Flow Renderer::statement(const Statement& one) {
  const Deepened deepened(depth_, limits_.depth);
  workspace_.spend(64);
  line_ = one.line;
  switch (one.kind) {
    case StatementKind::kData: print(one.text); break;
    case StatementKind::kPrint: print(to_text(workspace_, evaluate(*one.value))); break;
    case StatementKind::kIf: return if_statement(one);
    case StatementKind::kFor: for_statement(one, evaluate(*one.value), 0); break;
    case StatementKind::kSet: assign(one.target, evaluate(*one.value)); break;
    case StatementKind::kCapture: capture_statement(one); break;
    case StatementKind::kMacro: frame_->names[one.text] = macro(one); break;
    case StatementKind::kCall: call_statement(one); break;
    case StatementKind::kFilter: {
      const Exchanged entered(frame_, frame_below());
      const Value text = workspace_.text(captured(one.body));
      print(to_text(workspace_, filter(*one.value, &text)));
      break;
    }
    case StatementKind::kWith: with_statement(one); break;
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::if_statement(const Statement& one) {
  for (const Branch& branch : one.branches)
    if (!branch.test || truth(evaluate(*branch.test))) return block(branch.body);
  return Flow::kNext;
}

ListPtr Renderer::kept_items(const Statement& one, const ListPtr& all) {
  if (!one.condition) return all;
  std::vector<Value> kept;
  for (const Value& item : all->items) {
    const Exchanged entered(frame_, frame_below());
    assign(one.target, item);
    if (truth(evaluate(*one.condition))) kept.push_back(item);
  }
  return workspace_.list(std::move(kept)).list_pointer();
}

void Renderer::for_statement(const Statement& one, const Value& over, int depth) {
  const Deepened deepened(depth_, limits_.depth);
  const ListPtr items = kept_items(one, items_of(workspace_, over));
  const auto loop = std::make_shared<Loop>(*this, one, items, depth);
  for (; loop->at < items->items.size(); ++loop->at) {
    workspace_.spend(256);
    const Exchanged entered(frame_, frame_below());
    frame_->names["loop"] = ObjectPtr(loop);
    assign(one.target, items->items[loop->at]);
    if (block(one.body) == Flow::kBreak) break;
  }
  if (items->items.empty()) {
    const Exchanged entered(frame_, frame_below());
    block(one.other);
  }
}

void Renderer::assign(const Target& target, const Value& value) {
  if (!target.field.empty()) {
    const Value found = named(target.names[0]);
    auto* space = found.is_object() ? dynamic_cast<Namespace*>(&found.object()) : nullptr;
    if (!space) throw RenderError("`" + target.names[0] + "` is no namespace, and nothing else can be changed");
    space->fields[target.field] = value;
    return;
  }
  if (!target.unpacks) {
    frame_->names[target.names[0]] = value;
    return;
  }
  const ListPtr parts = items_of(workspace_, value.defined());
  if (parts->items.size() != target.names.size())
    throw RenderError(std::to_string(target.names.size()) + " names stand for " + std::to_string(parts->items.size()) + " values");
  for (size_t i = 0; i < target.names.size(); ++i) frame_->names[target.names[i]] = parts->items[i];
}

void Renderer::capture_statement(const Statement& one) {
  Value text;
  {
    const Exchanged entered(frame_, frame_below());
    text = workspace_.text(captured(one.body));
  }
  assign(one.target, one.value ? filter(*one.value, &text) : text);
}

void Renderer::with_statement(const Statement& one) {
  const auto inner = frame_below();
  for (const Parameter& parameter : one.parameters) inner->names[parameter.name] = evaluate(*parameter.value);
  const Exchanged entered(frame_, inner);
  block(one.body);
}

ObjectPtr Renderer::macro(const Statement& one) {
  workspace_.spend(1000);
  captured_frames_.push_back(frame_);
  return std::make_shared<Macro>(*this, one, frame_);
}

void Renderer::call_statement(const Statement& one) {
  const Value caller = macro(one);
  print(to_text(workspace_, call(*one.value, &caller)));
}

std::string Renderer::call_macro(const Statement& one, const std::shared_ptr<Frame>& home, const Arguments& arguments) {
  const Deepened deepened(depth_, limits_.depth);
  workspace_.spend(1000);
  const auto inner = std::make_shared<Frame>();
  inner->parent = home;
  const Exchanged entered(frame_, inner);
  const std::string title = one.text.empty() ? "caller()" : "the macro `" + one.text + "`";
  Arguments given = arguments;
  const auto caller = std::find_if(given.named.begin(), given.named.end(), [](const auto& pair) { return pair.first == "caller"; });
  if (caller != given.named.end()) {
    inner->names["caller"] = caller->second;
    given.named.erase(caller);
  }
  ArgumentReader in(title, given);
  for (const Parameter& parameter : one.parameters) {
    const Value missing = Value::undefined("parameter '" + parameter.name + "' was not provided");
    Value value = in.next(parameter.name.c_str(), missing);
    inner->names[parameter.name] = value.is_undefined() && parameter.value ? evaluate(*parameter.value) : std::move(value);
  }
  in.finish();
  return captured(one.body);
}

}  // namespace tandem::text::jinja
