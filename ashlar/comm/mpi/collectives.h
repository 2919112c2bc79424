// Runs operations by MPI's own collectives: all_reduce, reduce_scatter, all_gather, broadcast,
// reduce and all_to_all.  send_receive and barrier use rounds, which are MPI messages already.
//
// Before an operation its ranks meet in a round without payload.  So a rank that does not arrive,
// or calls something else, is named as with rounds, and MPI begins only when all have arrived.  The
// counters are those of the rounds that were not run.
//
// Numerics  MPI chooses the order of sums: they equal the exact ones up to rounding.  bf16 is added
//           in fp32 by an operation of ours and rounded at every step, not once.  Integers wrap, by
//           operations of ours too: Open MPI's sums of bytes saturate.
// Limits    2^31 - 1 elements an operation: MPI counts in int.
// Memory    MPI's own; no staging.  An all_to_all in place copies its input.
// Faults    MPI cannot withdraw a collective.  If a rank fails during one, it polls the collective
//           for up to a second, then abandons it; the process ends soon after.
#pragma once

#include <vector>

#include "ashlar/comm/mpi/engine.h"
#include "ashlar/comm/rounds.h"

namespace ashlar::comm {

class MpiCollectives final : public Runner {
 public:
  MpiCollectives(MpiEngine& engine, std::unique_ptr<Transport> transport, Buffer staging,
                 double timeout_s);
  void enter(Group& group) override;  // all ranks of the group meet
  Moved run(const Operation& operation, const Header& header, std::span<const int> world_ranks,
            int rank) override;
  void interrupt() override;
  Awaited& awaited() override { return rounds_.awaited(); }

 private:
  // Runs the first round of an operation without payload; the others only add to the counters.
  class Meeting;
  Moved meet(const Operation& operation, const Header& header, std::span<const int> world_ranks,
             int rank);
  void post(const Operation& operation, MPI_Comm comm, int rank);
  void reduce_chunks(const Operation& operation, MPI_Comm comm, int rank);
  std::byte* place_of(const Operation& operation, int rank) const;  // of its chunk in the output
  bool gathers_apart(const Operation& operation, int rank) const;   // not in place
  void gather_apart(const Operation& operation, MPI_Comm comm, int rank);
  const std::byte* apart(const Operation& operation);
  void lay_out_counts(const Operation& operation);
  void finish(const Header& header, std::span<const int> world_ranks, int rank);
  bool poll();  // whether all requests have ended
  void wait_a_little() noexcept;
  MPI_Request* next();

  MpiEngine& engine_;
  Rounds rounds_;    // for send_receive and barrier
  Rounds meetings_;  // on meta
  const double timeout_s_;
  std::atomic<bool> interrupted_{false};
  Operation planned_;
  std::vector<int> counts_, begins_, receive_counts_, receive_begins_;
  std::vector<int> send_counts_, send_begins_;  // of an all_gather
  std::vector<MPI_Request> requests_;
  std::vector<std::byte> copy_;  // of the input of an all_to_all in place; grows once
};

}  // namespace ashlar::comm
