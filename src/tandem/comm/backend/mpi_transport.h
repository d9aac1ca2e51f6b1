// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between the processes of an MPI job.

#include <mpi.h>

#include <array>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tandem/comm/backend/machines.h"
#include "tandem/comm/backend/process/transport.h"

namespace tandem::comm {

/// Errors: PeerError with MPI's text unless `code` is success.
void check_mpi(int code, const char* call);

/// Between MPI_Init and MPI_Finalize, which close() calls. Ranks of one machine are neighbours; MPI_COMM_WORLD may number them otherwise.
///
/// Ownership  a communicator, on which a failing rank tells the others why; buffered messages until they are delivered, and a thread that
///            moves them: MPI alone moves large ones only while some thread calls it, and the peer would wait for the end of this rank's
///            computation.
/// Errors     UserError from take_links() of rank 0 if TANDEM_INTERFACE names nothing there.
class MpiTransport final : public Transport {
 public:
  MpiTransport();
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<int>& machines() const override { return order_.machine; }
  std::unique_ptr<Channel> world() override;
  std::vector<Link> take_links() override;
  void tell(const std::string& reason) noexcept override;
  std::string heard() override;
  std::vector<std::string> untaken() override;
  void close() override;
  void end_others() noexcept override;
  [[noreturn]] void end_process() noexcept override;

  /// A buffered message and what moves it.
  struct Sent {
    MessageBytes bytes;
    std::vector<MPI_Request> requests;
    std::string name;
  };
  void keep(Sent message);
  bool is_closed() const { return is_closed_; }

 private:
  void order_ranks();
  void log_machines();
  void move_messages();
  void stop_moving();

  std::mutex mutex_;
  std::condition_variable changed_;
  WorldOrder order_;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::array<char, 1024> heard_{}, told_{};
  std::string reason_;
  std::list<Sent> sent_;
  int rank_ = 0, size_ = 1;
  bool ends_ = false, is_closed_ = false;
  std::thread mover_;
};

}  // namespace tandem::comm
