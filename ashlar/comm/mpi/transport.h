// Rounds over MPI: an announcement to and from each partner, then the payload.  Each lane has one
// tag for announcements and one for payload.  MPI keeps the messages of a pair of ranks in order,
// and the announcements check that both ranks have the same order.
#pragma once

#include "ashlar/comm/mpi/engine.h"

namespace ashlar::comm {

class MpiTransport final : public Transport {
 public:
  // Uses the tags `tag` and `tag` + 1.
  MpiTransport(MpiEngine& engine, int tag, const Telling& telling);
  void exchange(const Round& round) override;
  void interrupt() override { interrupted_ = true; }

 private:
  // The content of a request: the announcement of a partner, or anything else sent to or from it.
  struct Part {
    int partner;
    bool announces = false;
  };

  void find_partners(const Round& round);
  void post(const Round& round);
  void meet(const Round& round);
  int poll(const Round& round);  // requests that have ended; -1: another lane is calling MPI
  void arrived(const Round& round, int partner);
  MPI_Request* add(const Part& part);  // MPI must fill it before the next is added
  void add_payload(std::span<const Message> messages, bool is_send);
  LateError late(const Round& round) const;
  void abandon();

  MpiEngine& engine_;
  const int tag_;
  LateWatch watch_;
  std::atomic<bool> interrupted_{false};
  std::vector<int> partners_, absent_;
  std::vector<Announcement> mine_, theirs_;  // by rank
  std::vector<MPI_Request> requests_;        // null: done
  std::vector<Part> parts_;                  // by request
  std::vector<int> done_;                    // the requests that MPI_Testsome returned
  int num_open_ = 0;
  Clock::time_point start_;  // when the time-out began to run
};

}  // namespace ashlar::comm
