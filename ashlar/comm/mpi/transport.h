// Rounds over MPI: an announcement to and from each partner, then the payload.  One tag each; MPI
// keeps the messages of a pair in order, and the announcements check that it is the same order.
#pragma once

#include <mpi.h>

#include <atomic>
#include <string_view>
#include <vector>

#include "ashlar/comm/transport.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::comm {

class MpiTransport final : public Transport {
 public:
  MpiTransport();  // MPI is initialised; outlived by it
  ~MpiTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool immediate() const override { return size_ == 1; }
  void exchange(const Round& round) override;
  void interrupt() override { interrupted_ = true; }
  void fail(const std::exception_ptr& error) override;

  // Lets one rank of the world report, then ends all of it.  Nobody uses MPI beside the caller.
  [[noreturn]] void end_world(const std::exception_ptr& error,
                              function_ref<void(std::string_view message, int exit_code)> report);

 private:
  // A failure as it travels.
  struct Notice {
    int rank, exit_code;
    char message[2040];
  };
  void find_partners(const Round& round);
  void meet(const Round& round);
  void arrived(const Round& round, int partner);
  void add_payload(std::span<const Message> messages, bool is_send);
  void require_going_on();
  bool hear();  // of a failure elsewhere, into told_
  void listen();
  void abandon();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<int> partners_, absent_;
  std::vector<Announcement> mine_, theirs_;  // by rank
  std::vector<MPI_Request> requests_;        // null: done
  std::vector<int> announcers_;              // of requests_: whose announcement, or -1
  std::vector<int> done_;                    // what MPI_Testsome finds
  int num_open_ = 0;
  std::atomic<bool> interrupted_{false};
  Notice heard_{}, told_{};  // from others; to others
  MPI_Request listening_ = MPI_REQUEST_NULL;
  Failure failure_;         // the first that was heard of; rank -1: none
  bool announced_ = false;  // ... and it is this rank's own
};

}  // namespace ashlar::comm
