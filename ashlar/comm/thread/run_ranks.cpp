// How it works.  Every rank has a box on every lane.  A round of rank r with a partner p:
//
//   exchange   r puts its Round into p's box (posts[r]), and p puts its own into r's box (posts[p])
//   take       r finds posts[p], copies p's sends to its own receives, clears posts[p], and sets
//              taken[r] in p's box
//   meet       r leaves when it has taken from all partners and all have taken from it (taken[p])
//
// So a rank can be one round ahead of a partner, never two: its next post waits in the box until
// the owner has left the round before.  Copies are made without a lock, out of memory that the
// partner must keep while its post is `copying`; a round that fails waits for that (withdraw).
//
// Locks: a thread holds the mutex of one box at a time.  FailureState's mutex is taken before those
// of Shared, and lanes_mutex before a box's.  failed, ended and interrupted are checked under the
// mutex of the rank's own box; a thread that sets one of the first two locks and unlocks every
// box's mutex before it notifies.
#include "ashlar/comm/thread/run_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/core/copy_bytes.h"

namespace ashlar::comm {
namespace {

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, 1e9)));
}

// The Round of a partner, whose buffers this rank reads.
struct Post {
  const Round* round = nullptr;
  bool copying = false;  // the partner must not leave its round
};

// A rank's meeting point on a lane.  The mutex guards all members.
struct Box {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Post> posts;  // by partner
  std::vector<char> taken;  // by partner: it has copied this rank's sends
  bool interrupted = false;
};
using Boxes = std::deque<Box>;  // by rank; a Box cannot move

struct Shared {
  explicit Shared(int size) : size(size), ended(size_t(size)) {}

  Boxes& boxes_of(std::string_view lane) {
    const std::lock_guard lock(lanes_mutex);
    Boxes& boxes = lanes[std::string(lane)];
    if (boxes.empty()) {
      boxes.resize(size_t(size));
      for (Box& box : boxes) {
        box.posts.resize(size_t(size));
        box.taken.resize(size_t(size));
      }
    }
    return boxes;
  }

  // Keeps the first failure only.
  void fail(int rank, const std::exception_ptr& error) {
    {
      const std::lock_guard lock(failure_mutex);
      const Failure told = failure_of(rank, error);
      if (first && !told.awaits.empty()) others.push_back(told);
      if (first) return;
      first = error;
      failure = told;
      failed = true;
    }
    wake_all();
  }

  // A rank that waits records for whom when it hears of another rank's time-out.
  void add_waiting(const Failure& waiting) {
    const std::lock_guard lock(failure_mutex);
    others.push_back(waiting);
  }

  void end(int rank) {
    ended[size_t(rank)] = true;
    wake_all();
  }

  void wake_all() {
    const std::lock_guard all(lanes_mutex);
    for (auto& [lane, boxes] : lanes)
      for (Box& box : boxes) {
        { const std::lock_guard lock(box.mutex); }  // no thread is between its check and its wait
        box.changed.notify_all();
      }
  }

  const int size;
  std::mutex lanes_mutex;
  std::map<std::string, Boxes> lanes;
  std::deque<std::atomic<bool>> ended;  // by rank
  std::mutex failure_mutex;
  std::exception_ptr first;
  Failure failure;  // written once, before `failed` is set
  std::vector<Failure> others;
  std::atomic<bool> failed{false};
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(int rank, Shared& shared, std::string_view lane, const Telling& telling)
      : rank_(rank),
        shared_(shared),
        boxes_(shared.boxes_of(lane)),
        box_(box(rank)),
        watch_(rank, telling),
        look_s_(telling.line ? telling.after_s / 4 : 1e9) {}

  void exchange(const Round& round) override {
    find_partners(round);
    for (const int partner : partners_) {
      const std::lock_guard lock(box(partner).mutex);
      box(partner).posts[size_t(rank_)] = {&round, false};
      box(partner).changed.notify_all();
    }
    try {
      meet(round);
    } catch (...) {
      withdraw();
      throw;
    }
  }

  void interrupt() override {
    const std::lock_guard lock(box_.mutex);
    box_.interrupted = true;
    box_.changed.notify_all();
  }

 private:
  Box& box(int rank) { return boxes_[size_t(rank)]; }

  void find_partners(const Round& round) {
    partners_.clear();
    for (const auto messages : {round.sends, round.receives})
      for (const Message& message : messages) partners_.push_back(message.peer);
    std::sort(partners_.begin(), partners_.end());
    partners_.erase(std::unique(partners_.begin(), partners_.end()), partners_.end());
    to_copy_ = partners_;
  }

  // Copies from partners as they arrive, until all have arrived and have copied from here.
  void meet(const Round& round) {
    Clock::time_point start = Clock::now();  // the start of the time-out
    watch_.begin(round);
    std::unique_lock lock(box_.mutex);
    while (true) {
      const auto ready = std::find_if(to_copy_.begin(), to_copy_.end(), [&](int partner) {
        return box_.posts[size_t(partner)].round != nullptr;
      });
      if (ready != to_copy_.end()) {
        const int partner = *ready;
        to_copy_.erase(ready);
        take(round, partner, lock);
        if (to_copy_.empty()) start = Clock::now();
        continue;
      }
      if (to_copy_.empty() && num_untaken() == 0) break;
      const double waited_s = round.awaited.seconds_since(start);
      require_going_on(round, waited_s);
      if (waited_s >= round.timeout_s)
        throw LateError(round.header, waited_s, to_copy_, unfinished());
      if (waited_s >= watch_.due_s()) {
        const std::vector<int> late = to_copy_.empty() ? unfinished() : to_copy_;
        lock.unlock();  // the receiver of the line may be slow
        watch_.tell(round, waited_s, partners_, late);
        lock.lock();
        continue;
      }
      // A caller that begins to wait meanwhile waits for the whole time-out: nothing is missed.
      box_.changed.wait_until(lock, after(std::min(round.timeout_s - waited_s, look_s_)));
    }
    // No partner sets them for the next round before this rank posts it.
    for (const int partner : partners_) box_.taken[size_t(partner)] = false;
    lock.unlock();
    watch_.end(round);
  }

  int64_t num_untaken() const {
    return std::count_if(partners_.begin(), partners_.end(),
                         [&](int partner) { return !box_.taken[size_t(partner)]; });
  }

  // The partners that arrived and have not taken this rank's sends.
  std::vector<int> unfinished() const {
    std::vector<int> ranks;
    for (const int partner : partners_)
      if (!box_.taken[size_t(partner)] &&
          std::find(to_copy_.begin(), to_copy_.end(), partner) == to_copy_.end())
        ranks.push_back(partner);
    return ranks;
  }

  void require_going_on(const Round& round, double waited_s) const {
    if (shared_.failed) {
      if (!shared_.failure.awaits.empty() && round.is_held_up(waited_s))
        shared_.add_waiting(waiting(round, waited_s));
      fail_because(shared_.failure);
    }
    ASHLAR_REQUIRE(!box_.interrupted, kComm, "rank {}: cancelled while it leaves", rank_);
    for (const int partner : to_copy_)
      ASHLAR_REQUIRE(!shared_.ended[size_t(partner)], kComm,
                     "rank {} waits for rank {}, which has ended", rank_, partner);
  }

  Failure waiting(const Round& round, double waited_s) const {
    return failure_of(
        rank_, std::make_exception_ptr(LateError(round.header, waited_s, to_copy_, unfinished())));
  }

  // Holds the lock of the rank's own box at its beginning and end, not while it copies.
  void take(const Round& round, int partner, std::unique_lock<std::mutex>& lock) {
    Post& post = box_.posts[size_t(partner)];
    post.copying = true;
    lock.unlock();
    std::exception_ptr mismatch;
    try {
      require_match(announcement_for(round, partner), rank_, announcement_for(*post.round, rank_),
                    partner);
      const auto from = messages_of(post.round->sends, rank_);
      const auto to = messages_of(round.receives, partner);
      for (size_t i = 0; i < to.size(); ++i)
        if (to[i].bytes > 0 && to[i].data)
          copy_bytes(to[i].data, from[i].data, size_t(to[i].bytes));
    } catch (...) {
      mismatch = std::current_exception();
    }
    lock.lock();
    post = {};
    box_.changed.notify_all();  // the partner may be waiting to withdraw
    if (mismatch) std::rethrow_exception(mismatch);
    lock.unlock();
    {
      const std::lock_guard theirs(box(partner).mutex);
      box(partner).taken[size_t(rank_)] = true;
      box(partner).changed.notify_all();
    }
    lock.lock();
  }

  // Withdraws the posts of a failed round, whose Round is about to be destroyed.
  void withdraw() {
    for (const int partner : partners_) {
      Box& theirs = box(partner);
      std::unique_lock lock(theirs.mutex);
      Post& post = theirs.posts[size_t(rank_)];
      theirs.changed.wait(lock, [&] { return !post.copying; });
      post = {};
    }
  }

  const int rank_;
  Shared& shared_;
  Boxes& boxes_;
  Box& box_;
  LateWatch watch_;
  const double look_s_;  // between two checks of how long a round has waited
  std::vector<int> partners_, to_copy_;
};

class ThreadEngine final : public Engine {
 public:
  ThreadEngine(int rank, Shared& shared, const Telling& telling)
      : rank_(rank), shared_(shared), telling_(telling) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_.size; }
  bool immediate() const override { return size() == 1; }
  bool shares_memory() const override { return true; }
  std::unique_ptr<Transport> transport(std::string_view lane) override {
    return std::make_unique<ThreadTransport>(rank_, shared_, lane, telling_);
  }
  void fail(const std::exception_ptr& error) override { shared_.fail(rank_, error); }

 private:
  const int rank_;
  Shared& shared_;
  const Telling& telling_;
};

void run_rank(int rank, Shared& shared, const Options& options,
              function_ref<Allocator&(int rank)> allocator_of,
              function_ref<void(Group& world)> body) {
  try {
    ThreadEngine engine(rank, shared, options.telling);
    World world(engine, options, allocator_of(rank));
    try {  // Others hear of a failure before this world ends, whose queues may wait for them.
      body(world.group);
      world.failure_state.rethrow_failure();
    } catch (...) {
      shared.fail(rank, std::current_exception());
    }
  } catch (...) {
    shared.fail(rank, std::current_exception());
  }
  shared.end(rank);
}

// Adds the rank to an Error; other exceptions stay as they are.
[[noreturn]] void rethrow_from(int rank, int size, const std::exception_ptr& first) {
  try {
    std::rethrow_exception(first);
  } catch (const Error& error) {
    if (size == 1) throw;
    throw Error(error.kind(), fmt::format("{} [rank {} of {}]", error.first_line(), rank, size),
                error.further_lines());
  }
}

}  // namespace

void run_ranks(int num_ranks, const Options& options, Allocator& allocator,
               function_ref<void(Group& world)> body) {
  run_ranks(
      num_ranks, options, [&](int) -> Allocator& { return allocator; }, body);
}

void run_ranks(int num_ranks, const Options& options,
               function_ref<Allocator&(int rank)> allocator_of,
               function_ref<void(Group& world)> body) {
  ASHLAR_REQUIRE(num_ranks >= 1, kConfig, "the number of ranks is {} but must be at least 1",
                 num_ranks);
  ASHLAR_REQUIRE(options.collectives == Collectives::kExact, kConfig,
                 "parallel.collectives is native but ranks are threads of one process; use mpirun, "
                 "or exact");
  Shared shared(num_ranks);
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < num_ranks; ++rank)
      threads.emplace_back([&, rank] { run_rank(rank, shared, options, allocator_of, body); });
  } catch (const std::system_error& error) {
    // Recorded as a failure of the rank that did not start, so that the others do not wait for it.
    const int started = int(threads.size());
    shared.fail(started, std::make_exception_ptr(Error(
                             ErrorKind::kDevice, fmt::format("starting {} ranks: {}; ask for fewer",
                                                             num_ranks, error.what()))));
  }
  for (std::thread& thread : threads) thread.join();
  if (!shared.first) return;
  const Failure& cause = cause_of(shared.failure, shared.others);
  if (cause.awaits.empty()) rethrow_from(cause.rank, num_ranks, shared.first);
  rethrow_from(cause.rank, num_ranks, std::make_exception_ptr(Error(options.late, cause.message)));
}

}  // namespace ashlar::comm
