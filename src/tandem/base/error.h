// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kinds of failure. The type says whose fault it is; main() turns it into a line and an exit code.

#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

namespace tandem {

/// The user's input is wrong. Prints as `WHERE: WHAT (WHAT WOULD BE RIGHT)`; exit code 2.
class UserError : public std::runtime_error {
 public:
  /// `remedy` is empty where `what` is what another error says, and so has its own.
  UserError(const std::string& where, const std::string& what, const std::string& remedy)
      : std::runtime_error(where + ": " + what + (remedy.empty() ? "" : " (" + remedy + ")")),
        fault_(where + ": " + what),
        remedy_(remedy) {}

  /// The same error within something larger: `WHERE: WHAT IT SAYS (ITS REMEDY; MORE)`.
  UserError seen_from(const std::string& where, const std::string& more = "") const {
    return {where, fault_, remedy_ + (remedy_.empty() || more.empty() ? "" : "; ") + more};
  }

 private:
  std::string fault_, remedy_;
};

/// Another rank, a device or the file system failed; names rank, operation and peer. Exit code 3.
class PeerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What ended this rank's operation is another rank's failure, which that rank reports itself.
class EndedByPeer : public PeerError {
 public:
  using PeerError::PeerError;
};

/// A bug of ours, thrown by TANDEM_CHECK. Exit code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// This process ends because of an error that another process of the job reports: only the exit code is left to give.
class ReportedElsewhere : public PeerError {
 public:
  ReportedElsewhere(int exit_code, const std::string& what) : PeerError(what), exit_code(exit_code) {}
  int exit_code;
};

/// The run was interrupted and its state is saved. Exit code 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// True once the user asked to stop (SIGINT, SIGTERM, SIGHUP). May be empty.
using StopRequested = std::function<bool()>;

/// What main() returns for an error.
inline int exit_code_of(const std::exception& error) {
  if (const auto* elsewhere = dynamic_cast<const ReportedElsewhere*>(&error)) return elsewhere->exit_code;
  if (dynamic_cast<const UserError*>(&error)) return 2;
  if (dynamic_cast<const PeerError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return 3;
  return dynamic_cast<const Interrupted*>(&error) ? 130 : 1;
}

/// What an exception of any type says.
inline std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace tandem
