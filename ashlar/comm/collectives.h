// The collectives as sequences of rounds.  The formulas of group.h are the bytes of these rounds.
#pragma once

#include <cstdint>
#include <span>

#include "ashlar/comm/rounds.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::comm {

// One operation of a group of more than one rank; used on the thread that runs operations.  On meta
// nothing is read or written, and all slices of a sum go in one round.
class Collective {
 public:
  Collective(Rounds& lane, const Operation& operation, const Header& header,
             std::span<const int> world_ranks, int rank);
  Moved run();

 private:
  void all_reduce();
  void reduce_scatter();
  void all_gather();
  void broadcast();
  void reduce();
  void all_to_all();
  void all_to_all_in_place();
  void send_receive();
  void barrier();

  // Sums this rank's chunk of `in` in slices.  The slice at element `begin` of the chunk is written
  // to target(begin), then after(begin) is called, equally often on every rank.
  void sum_chunk(function_ref<std::byte*(int64_t begin)> target,
                 function_ref<void(int64_t begin)> after);
  void gather_chunks();  // receives the other chunks of out, each from its rank
  void count_alone(int64_t sent, int64_t received);

  bool in_place() const { return op_.in.data && op_.in.data == op_.out.data; }
  int64_t longest_chunk() const;
  int64_t count_rounds() const;
  int64_t chunk(int rank) const { return begins_[size_t(rank) + 1] - begins_[size_t(rank)]; }
  // The number of elements of a chunk from `begin` on, at most a slice.
  int64_t left(int64_t elements, int64_t begin) const;
  std::byte* part(int index) const;  // of the staging memory, which has size_ parts of a slice each
  void send(int rank, std::byte* data, int64_t bytes);
  void receive(int rank, std::byte* data, int64_t bytes);
  void exchange();
  void copy(std::byte* to, const std::byte* from, int64_t bytes) const;

  Rounds& lane_;
  const Operation& op_;
  Header header_;
  std::span<const int> world_ranks_;
  const int rank_, size_;
  const bool meta_;
  const bool counts_alone_;  // on meta, without partners
  const int64_t width_;      // bytes of an element
  const int64_t staging_bytes_, part_bytes_, slice_;
  std::vector<int64_t>& begins_;  // borders of the chunks, in elements
  Moved moved_;
};

}  // namespace ashlar::comm
