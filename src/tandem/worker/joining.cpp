// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/joining.h"

#include "tandem/base/check.h"
#include "tandem/config/algorithm.h"

namespace tandem::worker {
namespace {

std::string dtype_of(const Drawing& of_run, const queue::call::Join& worker) { return worker.dtype.empty() ? of_run.dtype : worker.dtype; }
std::string device_of(const Drawing& of_run, const queue::call::Join& worker) {
  return of_run.is_device_open ? worker.device : of_run.device;
}

}  // namespace

Drawing drawing_of(const config::RunConfig& config, const std::string& device) {
  return {.dtype = config.rollout.dtype.empty() ? config.model.dtype : config.rollout.dtype,
          .device = device,
          .is_device_open = config.run.device == "auto",
          .is_corrected = config::algorithm_of(config).correction.active(),
          .is_parity = config.run.parity};
}

std::string drawing_text(const Drawing& of_run, const queue::call::Join& worker) {
  return worker.device.empty() ? "" : join_text(dtype_of(of_run, worker), " on ", device_of(of_run, worker));
}

std::string refusal_of(const Drawing& of_run, const queue::call::Join& worker) {
  if (worker.device.empty()) return "";
  const bool is_dtype = dtype_of(of_run, worker) == of_run.dtype, is_device = device_of(of_run, worker) == of_run.device;
  if (is_dtype && (is_device || of_run.is_corrected)) return "";
  if (of_run.is_corrected && !of_run.is_parity) return "";
  const std::string expected = join_text(of_run.dtype, " on ", of_run.device), same = is_dtype ? "" : "--dtype " + of_run.dtype;
  const std::string corrected = "start the run with algo.correction=token";
  const std::string with_parity = is_dtype ? "a machine with such a device" : same;
  const std::string remedy = of_run.is_parity ? with_parity : is_device ? join_text(same, ", or ", corrected) : corrected;
  return join_text("generates in ", drawing_text(of_run, worker), ", and the run expects ", expected,
                   of_run.is_parity ? " under --parity" : " without a correction", " (", remedy, ')');
}

}  // namespace tandem::worker
