// SPDX-License-Identifier: Apache-2.0
// The table of this folder: that of aten. A kernel of our own comes where a measurement on an Ascend asks for it.
#include "tandem/model/kernel/backend.h"

namespace tandem::model::kernel {
namespace {

Backend own() {
  Backend b = aten::backend();
  b.name = "npu";
  return b;
}

}  // namespace

const Backend& npu::backend() {
  static const Backend one = own();
  return one;
}

}  // namespace tandem::model::kernel
