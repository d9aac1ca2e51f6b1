// SPDX-License-Identifier: Apache-2.0
#pragma once
// The three kinds of failure. The type says whose fault it is; main() turns it into a line and an exit code.

#include <stdexcept>
#include <string>

namespace tandem {

/// The user's input is wrong. Prints as `WHERE: WHAT (WHAT WOULD BE RIGHT)`; exit code 2.
class UserError : public std::runtime_error {
 public:
  UserError(const std::string& where, const std::string& what, const std::string& remedy)
      : std::runtime_error(where + ": " + what + " (" + remedy + ")") {}
};

/// Another rank, a device or the file system failed; names rank, operation and peer. Exit code 3.
class PeerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bug of ours, thrown by TANDEM_CHECK. Exit code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The run was interrupted and its state is saved. Exit code 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tandem
