#include "ashlar/comm/mpi/transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace ashlar::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kAnnouncementTag = 1, kPayloadTag = 2, kFailureTag = 3;
constexpr int64_t kMessageBytes = int64_t{1} << 30;  // MPI counts in int

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  ASHLAR_FAIL(kComm, "{} failed: {}", call, std::string_view(text, size_t(length)));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Which of two failures at once is told: the cause rather than who waited for it.
bool before(const Failure& a, const Failure& b) {
  const auto rank_of = [](const Failure& f) {
    return std::pair(f.exit_code == int(ErrorKind::kComm), f.rank);
  };
  return rank_of(a) < rank_of(b);
}

}  // namespace

MpiTransport::MpiTransport() {
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  mine_.resize(size_t(size_));
  theirs_.resize(size_t(size_));
  listen();
}

MpiTransport::~MpiTransport() {
  MPI_Cancel(&listening_);
  MPI_Wait(&listening_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm_);
}

void MpiTransport::exchange(const Round& round) {
  find_partners(round);
  requests_.clear();
  announcers_.clear();
  num_open_ = 0;
  const auto add = [&](int announcer) -> MPI_Request* {
    requests_.push_back(MPI_REQUEST_NULL);
    announcers_.push_back(announcer);
    ++num_open_;
    return &requests_.back();
  };
  constexpr int kBytes = sizeof(Announcement);
  try {
    for (const int partner : partners_)
      check(MPI_Irecv(&theirs_[size_t(partner)], kBytes, MPI_BYTE, partner, kAnnouncementTag, comm_,
                      add(partner)),
            "MPI_Irecv");
    for (const int partner : partners_) {
      mine_[size_t(partner)] = announcement_for(round, partner);
      check(MPI_Isend(&mine_[size_t(partner)], kBytes, MPI_BYTE, partner, kAnnouncementTag, comm_,
                      add(-1)),
            "MPI_Isend");
    }
    meet(round);
  } catch (...) {
    abandon();
    throw;
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
  Clock::time_point start = Clock::now(), last = start;  // of the wait; of anything done
  while (num_open_ > 0) {
    int num_done = 0;
    done_.resize(requests_.size());
    check(MPI_Testsome(int(requests_.size()), requests_.data(), &num_done, done_.data(),
                       MPI_STATUSES_IGNORE),
          "MPI_Testsome");
    for (int i = 0; i < num_done; ++i) {
      --num_open_;
      const int announcer = announcers_[size_t(done_[size_t(i)])];
      if (announcer >= 0) arrived(round, announcer);
    }
    if (num_done > 0) {
      last = Clock::now();
      if (absent_.empty()) start = last;
      continue;
    }
    require_going_on();
    if (seconds_since(start) > round.timeout_s)
      fail_late(round, absent_,
                absent_.empty() ? std::span<const int>(partners_) : std::span<const int>());
    if (!absent_.empty() && Clock::now() - last > microseconds(200))
      std::this_thread::sleep_for(microseconds(50));
    else
      sched_yield();
  }
}

void MpiTransport::arrived(const Round& round, int partner) {
  require_match(mine_[size_t(partner)], rank_, theirs_[size_t(partner)], partner);
  absent_.erase(std::find(absent_.begin(), absent_.end(), partner));
  add_payload(messages_of(round.receives, partner), false);
  add_payload(messages_of(round.sends, partner), true);
}

void MpiTransport::add_payload(std::span<const Message> messages, bool is_send) {
  for (const Message& message : messages)
    for (int64_t begin = 0; begin < message.bytes; begin += kMessageBytes) {
      const int bytes = int(std::min(kMessageBytes, message.bytes - begin));
      requests_.push_back(MPI_REQUEST_NULL);
      announcers_.push_back(-1);
      ++num_open_;
      std::byte* data = message.data + begin;
      if (is_send)
        check(MPI_Isend(data, bytes, MPI_BYTE, message.peer, kPayloadTag, comm_, &requests_.back()),
              "MPI_Isend");
      else
        check(MPI_Irecv(data, bytes, MPI_BYTE, message.peer, kPayloadTag, comm_, &requests_.back()),
              "MPI_Irecv");
    }
}

void MpiTransport::require_going_on() {
  if (hear() && !announced_) fail_because(failure_);
  ASHLAR_REQUIRE(!interrupted_, kComm, "rank {}: cancelled while it leaves", rank_);
}

void MpiTransport::listen() {
  check(
      MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, kFailureTag, comm_, &listening_),
      "MPI_Irecv");
}

bool MpiTransport::hear() {
  int some = 0;
  check(MPI_Test(&listening_, &some, MPI_STATUS_IGNORE), "MPI_Test");
  if (!some) return failure_.rank >= 0;
  const Failure heard{heard_.rank, heard_.exit_code, heard_.message};
  if (failure_.rank < 0 || before(heard, failure_)) failure_ = heard;
  listen();
  return true;
}

void MpiTransport::fail(const std::exception_ptr& error) {
  try {
    if (hear()) return;  // also if this rank has announced before
    failure_ = failure_of(rank_, error);
    announced_ = true;
    told_.rank = rank_;
    told_.exit_code = failure_.exit_code;
    std::strncpy(told_.message, failure_.message.c_str(), sizeof told_.message - 1);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      MPI_Request request;  // its end is not awaited: the world ends first
      check(MPI_Isend(&told_, sizeof told_, MPI_BYTE, other, kFailureTag, comm_, &request),
            "MPI_Isend");
      check(MPI_Request_free(&request), "MPI_Request_free");
    }
  } catch (const Error&) {
    // MPI itself is broken: the others learn of it by their own errors and deadlines.
    if (failure_.rank < 0) failure_ = failure_of(rank_, error);
    announced_ = true;
  }
}

// Receives of a failed round must not write into memory that its owner gives away.
void MpiTransport::abandon() {
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  requests_.clear();
}

void MpiTransport::end_world(const std::exception_ptr& error,
                             function_ref<void(std::string_view message, int exit_code)> report) {
  fail(error);
  // Others may have failed at the same moment; then the word of one of them counts.
  const auto until = Clock::now() + milliseconds(150);
  try {
    while (Clock::now() < until) {
      hear();
      std::this_thread::sleep_for(milliseconds(1));
    }
  } catch (const Error&) {
    // MPI is broken: this rank tells what it knows.
  }
  // If whoever should report cannot, this rank does.
  if (failure_.rank != rank_) std::this_thread::sleep_for(std::chrono::seconds(3));
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(host, &length);
  const std::string where = failure_.rank == rank_ ? fmt::format(", host {}", host)
                                                   : fmt::format(", told by rank {}", rank_);
  report(size_ == 1
             ? failure_.message
             : fmt::format("{} [rank {} of {}{}]", failure_.message, failure_.rank, size_, where),
         failure_.exit_code);
  MPI_Abort(MPI_COMM_WORLD, failure_.exit_code);
  std::abort();
}

}  // namespace ashlar::comm
