// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/step_failed.h"

#include "tandem/base/error.h"
#include "tandem/comm/agree.h"
#include "tandem/comm/scalar.h"

namespace tandem::runtime {
namespace {

int code_of(const std::exception_ptr& fault) {
  try {
    std::rethrow_exception(fault);
  } catch (const StepFailed& e) {
    return e.exit_code;
  } catch (const std::exception& e) {
    return exit_code_of(e);
  } catch (...) {
    return exit_code_of(InternalError("unknown exception"));
  }
}

}  // namespace

void fail_alike(comm::Group& group, const std::exception_ptr& fault) {
  // The lowest rank with a fault has the largest number.
  const int64_t mine = fault ? group.size() - group.rank() : 0, first = comm::max_over(group, mine);
  if (first == 0) return;
  const bool speaks = first == mine;
  const int64_t code = comm::max_over(group, speaks ? int64_t{code_of(fault)} : 0);
  std::string what;
  for (const std::string& text : comm::texts_of_all(group, speaks ? what_of(fault) : ""))
    if (!text.empty()) what = text;
  throw StepFailed(static_cast<int>(code), what);
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
  std::string where = join_text("the run ended after step ", step, ", which is saved"), remedy = "--resume goes on from there";
  try {
    save();
  } catch (const PeerError& e) {
    where = join_text("the run ended after step ", step, ", which could not be saved (", e.what(), ")");
    remedy = "--resume goes on from the checkpoint before, if there is one";
  }
  if (failed.exit_code == 2) throw UserError(where, failed.what(), remedy);
  if (failed.exit_code == 3) throw PeerError(where + ": " + failed.what() + " (" + remedy + ")");
  throw InternalError(where + ": " + failed.what());
}

}  // namespace tandem::runtime
