// How it works.  A round is a growing list of requests, polled until all have ended:
//
//   post      posts, for each partner, a receive of its announcement and a send of this rank's
//   arrived   compares an announcement that has arrived; only then posts the receives and sends of
//             the payload with that partner
//   meet      polls.  While partners are absent, the time-out runs from the start of the round, and
//             the thread sleeps between polls.  When all have arrived, it runs from the last
//             request that ended, and the thread only yields.
//   abandon   cancels open requests after an error
//
// Announcements and payload have different tags, so that the payload of one round cannot be taken
// for the announcement of the next.  mine_ and theirs_ keep their addresses: MPI reads and writes
// them until the requests end.
#include "ashlar/comm/mpi/transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "ashlar/core/clock.h"

namespace ashlar::comm {
namespace {

using std::chrono::microseconds;

constexpr microseconds kLeastSleep(50), kMostSleep(1000);
constexpr int64_t kMessageBytes = int64_t{1} << 30;  // MPI counts in int

}  // namespace

MpiTransport::MpiTransport(MpiEngine& engine, int tag, const Telling& telling)
    : engine_(engine), tag_(tag), watch_(engine.rank(), telling) {
  mine_.resize(size_t(engine.size()));
  theirs_.resize(size_t(engine.size()));
}

void MpiTransport::exchange(const Round& round) {
  find_partners(round);
  requests_.clear();
  parts_.clear();
  num_open_ = 0;
  try {
    post(round);
    meet(round);
  } catch (...) {
    abandon();
    throw;
  }
}

void MpiTransport::post(const Round& round) {
  const std::lock_guard turn(engine_.turn());
  constexpr int kBytes = sizeof(Announcement);
  for (const int partner : partners_)
    check_mpi(MPI_Irecv(&theirs_[size_t(partner)], kBytes, MPI_BYTE, partner, tag_, engine_.comm(),
                        add({.partner = partner, .announces = true})),
              "MPI_Irecv");
  for (const int partner : partners_) {
    mine_[size_t(partner)] = announcement_for(round, partner);
    check_mpi(MPI_Isend(&mine_[size_t(partner)], kBytes, MPI_BYTE, partner, tag_, engine_.comm(),
                        add({.partner = partner})),
              "MPI_Isend");
  }
}

void MpiTransport::find_partners(const Round& round) {
  partners_.clear();
  for (const auto messages : {round.sends, round.receives})
    for (const Message& message : messages) partners_.push_back(message.peer);
  std::sort(partners_.begin(), partners_.end());
  partners_.erase(std::unique(partners_.begin(), partners_.end()), partners_.end());
  absent_ = partners_;
}

void MpiTransport::meet(const Round& round) {
  start_ = Clock::now();
  watch_.begin(round);
  Clock::time_point last = start_;  // when the last request ended
  while (num_open_ > 0) {
    const int num_ended = poll(round);
    if (num_ended > 0) {
      last = Clock::now();
      if (absent_.empty()) start_ = last;
      continue;
    }
    const double waited_s = round.awaited.seconds_since(start_);
    if (waited_s > round.timeout_s) throw late(round);
    if (waited_s > watch_.due_s()) watch_.tell(round, waited_s, partners_, late(round).ranks());
    // Partners that arrive soon are served at once.  After 200 us without events the thread sleeps,
    // longer the longer it has waited, so that receives posted far ahead cost no core.
    const auto waited = Clock::now() - last;
    if (num_ended == 0 && !absent_.empty() && waited > microseconds(200))
      std::this_thread::sleep_for(
          std::clamp<Clock::duration>(waited / 32, kLeastSleep, kMostSleep));
    else
      sched_yield();
  }
  watch_.end(round);
}

int MpiTransport::poll(const Round& round) {
  const std::unique_lock turn(engine_.turn(), std::try_to_lock);
  if (!turn) return -1;  // the other lane's call moves this lane's messages too
  int num_done = 0;
  done_.resize(requests_.size());
  check_mpi(MPI_Testsome(int(requests_.size()), requests_.data(), &num_done, done_.data(),
                         MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  for (int i = 0; i < num_done; ++i) {
    --num_open_;
    const Part part = parts_[size_t(done_[size_t(i)])];
    if (part.announces) arrived(round, part.partner);  // adds requests behind the tested ones
  }
  // Checks for failures only if nothing has ended: messages that have arrived are taken first.
  if (num_done == 0)
    engine_.require_going_on(interrupted_, [&]() -> std::optional<LateError> {
      if (!round.is_held_up(round.awaited.seconds_since(start_))) return std::nullopt;
      return late(round);
    });
  return num_done;
}

// After all have arrived, names the ranks with which messages are still in flight.
LateError MpiTransport::late(const Round& round) const {
  std::vector<int> unfinished;
  for (const int partner : partners_)
    for (size_t i = 0; absent_.empty() && i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && parts_[i].partner == partner) {
        unfinished.push_back(partner);
        break;
      }
  return LateError(round.header, round.awaited.seconds_since(start_), absent_, unfinished);
}

void MpiTransport::arrived(const Round& round, int partner) {
  require_match(mine_[size_t(partner)], engine_.rank(), theirs_[size_t(partner)], partner);
  absent_.erase(std::find(absent_.begin(), absent_.end(), partner));
  add_payload(messages_of(round.receives, partner), false);
  add_payload(messages_of(round.sends, partner), true);
}

MPI_Request* MpiTransport::add(const Part& part) {
  requests_.push_back(MPI_REQUEST_NULL);
  parts_.push_back(part);
  ++num_open_;
  return &requests_.back();
}

void MpiTransport::add_payload(std::span<const Message> messages, bool is_send) {
  for (const Message& message : messages)
    for (int64_t begin = 0; message.data && begin < message.bytes; begin += kMessageBytes) {
      const int bytes = int(std::min(kMessageBytes, message.bytes - begin));
      std::byte* data = message.data + begin;
      MPI_Request* request = add({.partner = message.peer});
      if (is_send)
        check_mpi(MPI_Isend(data, bytes, MPI_BYTE, message.peer, tag_ + 1, engine_.comm(), request),
                  "MPI_Isend");
      else
        check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, message.peer, tag_ + 1, engine_.comm(), request),
                  "MPI_Irecv");
    }
}

// Receives of a failed round must not write into memory that its owner releases.
void MpiTransport::abandon() {
  const std::lock_guard turn(engine_.turn());
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  requests_.clear();
}

}  // namespace ashlar::comm
