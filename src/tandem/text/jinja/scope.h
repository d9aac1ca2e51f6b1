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

/// Another value of a variable: the frame that names are looked up in, the text that is printed to.
template <class T>
class Exchanged {
 public:
  Exchanged(T& at, T inner) : at_(at), outer_(std::exchange(at, std::move(inner))) {}
  ~Exchanged() { at_ = std::move(outer_); }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  T& at_;
  T outer_;
};

}  // namespace tandem::text::jinja
