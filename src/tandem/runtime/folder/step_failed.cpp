// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/step_failed.h"

#include "tandem/base/error.h"
#include "tandem/comm/agree.h"

namespace tandem::runtime {
namespace {

comm::Fault fault_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StepFailed& e) {
    return {e.exit_code, e.what()};
  } catch (const std::exception& e) {
    return {exit_code_of(e), e.what()};
  } catch (...) {
    return {exit_code_of(InternalError("")), what_of(error)};
  }
}

}  // namespace

void fail_alike(comm::Group& group, const std::exception_ptr& fault) {
  const std::optional<comm::Fault> first = comm::first_fault(group, fault ? std::optional(fault_of(fault)) : std::nullopt);
  if (first) throw StepFailed(first->exit_code, first->what);
}

void fail_alike(comm::Group& group, const std::function<void()>& work) {
  std::exception_ptr fault;
  try {
    work();
  } catch (const UserError&) {
    fault = std::current_exception();
  }
  fail_alike(group, fault);
}

void end_saved(const StepFailed& failed, int64_t step, const std::function<void()>& save) {
  const std::string ended = join_text("the run ended after step ", step);
  std::string where = ended + ", which is saved; --resume goes on from there";
  try {
    save();
  } catch (const PeerError& e) {
    where = ended + ", which could not be saved (" + e.what() + "); --resume goes on from the checkpoint before, if there is one";
  }
  if (failed.exit_code == 2) throw UserError(where, failed.what(), "");
  if (failed.exit_code == 3) throw PeerError(where + ": " + failed.what());
  throw InternalError(where + ": " + failed.what());
}

}  // namespace tandem::runtime
