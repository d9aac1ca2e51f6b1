// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lasts for a scope of the renderer and is undone at its end, also by an error.

#include <string>
#include <utility>

#include "tandem/text/jinja/renderer.h"

namespace tandem::text::jinja {

/// One level deeper. Errors: RenderError at the limit.
class Deepened {
 public:
  Deepened(int& depth, int limit) : depth_(depth) {
    if (depth >= limit) throw RenderError("the template is nested, or calls itself, deeper than " + std::to_string(limit) + " levels");
    ++depth_;
  }
  ~Deepened() { --depth_; }
  Deepened(const Deepened&) = delete;
  Deepened& operator=(const Deepened&) = delete;

 private:
  int& depth_;
};

/// Within another frame.
class Entered {
 public:
  Entered(std::shared_ptr<Frame>& at, std::shared_ptr<Frame> inner) : at_(at), outer_(std::exchange(at, std::move(inner))) {}
  ~Entered() { at_ = std::move(outer_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  std::shared_ptr<Frame>& at_;
  std::shared_ptr<Frame> outer_;
};

/// Printing goes to another text.
class Redirected {
 public:
  Redirected(std::string*& at, std::string& text) : at_(at), outer_(std::exchange(at, &text)) {}
  ~Redirected() { at_ = outer_; }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  std::string*& at_;
  std::string* outer_;
};

}  // namespace tandem::text::jinja
