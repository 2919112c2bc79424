// How it works.  Every call takes the lock, passes the event to the SaveTree, sends the messages
// that it has (flush), and wakes threads that wait.  These check again at every change, and ten
// times a second for time-outs.
//   To look for a child's file is a call of a file system, which may hang: the thread that waits
// for the attempt does it, without the lock (look).
//   The leader's waits are watched (Watch): after some seconds the slowest rank is logged, and if
// it makes no progress for the time-out, the wait ends with an error that names it.
#include "ashlar/checkpoint/writers/save_channel.h"

#include <fmt/core.h>

#include <chrono>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/writers/collect_parts.h"

namespace ashlar::checkpoint {

// Checks at every look which rank is slowest and how much has arrived.
class SaveChannel::Watch {
 public:
  // error: what to say before the name of the rank when the time is out.
  Watch(SaveChannel& channel, const Id& attempt, int64_t step, std::string error, double timeout_s)
      : channel_(channel),
        attempt_(attempt),
        step_(step),
        error_(std::move(error)),
        timeout_s_(timeout_s),
        start_(channel.now()),
        last_progress_(start_),
        next_(channel.options_.tell_after_s.at(0)) {}

  // With the lock held.  Throws kStorage when the time is out.
  void look() {
    const double now = channel_.now();
    const std::vector<RankStatus> slowest = channel_.tree_.slowest(attempt_, now);
    const int there = channel_.tree_.parts_there(attempt_);
    const RankStatus first = slowest.empty() ? RankStatus{} : slowest.front();
    const Seen seen{there, first.rank, first.phase, first.bytes};
    if (seen != seen_) {
      seen_ = seen;
      last_progress_ = now;
    }
    const std::string who = slowest.empty() ? "all parts are under way" : to_text(first, now);
    if (now - last_progress_ >= timeout_s_)
      raise(ErrorKind::kStorage, "step {} is not {}: {}; no progress for {:.4g} s", step_, error_,
            who, timeout_s_);
    if (now - start_ < next_) return;
    channel_.log_.warn("step {}: waiting for {}", step_, who);
    const auto& after = channel_.options_.tell_after_s;
    ++told_;
    next_ = told_ < after.size() ? after[told_] : next_ + after.back();
  }

 private:
  struct Seen {
    int there, rank;
    Phase phase;
    int64_t bytes;
    bool operator==(const Seen&) const = default;
  };
  SaveChannel& channel_;
  Id attempt_;
  int64_t step_;
  std::string error_;
  double timeout_s_, start_, last_progress_, next_;
  Seen seen_{-1, -1, Phase::kWait, -1};
  size_t told_ = 0;
};

SaveChannel::SaveChannel(std::shared_ptr<const control::Tree> tree, int rank, std::string host,
                         Log& log, const SaveChannelOptions& options)
    : tree_of_ranks_(tree),
      rank_(rank),
      host_(host),
      log_(log),
      options_(options),
      tree_(std::move(tree), rank, std::move(host), options.tree) {}

SaveChannel::~SaveChannel() {
  std::unique_ptr<control::Links> links;
  {
    const std::lock_guard lock(mutex_);
    links = std::move(links_);
  }
  links.reset();  // its thread may be waiting for the lock
}

void SaveChannel::start(const MakeLinks& make) {
  std::unique_ptr<control::Links> links;
  std::string error;
  try {
    links = make(*this);
  } catch (const Error& caught) {
    error = caught.what();
  }
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
  if (!error.empty()) tree_.break_off(error);
  flush();
}

bool SaveChannel::broken() const {
  const std::lock_guard lock(mutex_);
  return tree_.broken();
}

void SaveChannel::flush() {
  if (tree_.broken() && !told_broken_) {
    told_broken_ = true;
    if (rank_ == 0 && !tree_.why_broken().empty())
      log_.warn(
          "the control channel of checkpoints is broken: {}; from now on writers tell through the "
          "checkpoint's directory",
          tree_.why_broken());
  }
  changed_.notify_all();
  if (!links_) return;
  for (const SaveTree::Outgoing& message : tree_.take_outgoing()) {
    if (message.body.size() <= options_.max_message_bytes) {
      links_->send(message.to, message.kind, message.body);
    } else if (!tree_.broken()) {
      tree_.break_off(fmt::format("rank {} has a message of {} bytes; at most {} are sent", rank_,
                                  message.body.size(), options_.max_message_bytes));
      return flush();
    }
  }
}

void SaveChannel::linked(int rank) {
  const std::lock_guard lock(mutex_);
  tree_.linked(rank, now());
  flush();
}

void SaveChannel::received(int rank, uint16_t kind, std::span<const std::byte> body) {
  const std::lock_guard lock(mutex_);
  tree_.received(rank, kind, body, now());
  flush();
}

void SaveChannel::lost(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  tree_.lost(rank, why);
  flush();
}

void SaveChannel::tick() {
  const std::lock_guard lock(mutex_);
  tree_.tick(now());
  flush();
}

void SaveChannel::begin(const Id& attempt, int64_t step) {
  const std::lock_guard lock(mutex_);
  tree_.begin(attempt, step, now());
  flush();
}

void SaveChannel::status(const Id& attempt, Phase phase, int64_t bytes, int64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  RankStatus status;
  status.attempt = attempt;
  status.phase = phase;
  status.since = now();
  status.bytes = bytes;
  status.total_bytes = total_bytes;
  tree_.set_status(std::move(status));
}

void SaveChannel::fail(const Id& attempt, int64_t step, const std::string& why) {
  const std::lock_guard lock(mutex_);
  tree_.fail(attempt, step, why, now());
  flush();
}

void SaveChannel::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void SaveChannel::require_going_on() const {
  ASHLAR_REQUIRE(!stopped_, kStorage, "{}", kGivenUp);
}

void SaveChannel::send_part(const WriterPart& part) {
  std::vector<std::byte> without = encode(part, false), with = encode(part, true);
  const CoverHash cover = cover_of(part.index);
  Witness witness;
  if (!part.index.files.empty())
    witness = {part.index.files[0].path, part.index.files[0].size_bytes};
  const std::lock_guard lock(mutex_);
  tree_.part(part.index.attempt, part.layout, cover, std::move(witness), std::move(without),
             std::move(with));
  flush();
}

void SaveChannel::look(Lock& lock, const Id& attempt, const SeeFile& see) {
  while (const auto next = tree_.to_see(attempt)) {
    lock.unlock();
    std::string error;
    try {
      see(next->child, next->witness);
    } catch (const Error& caught) {
      error = caught.what();
    }
    lock.lock();
    if (!error.empty()) {
      tree_.fail(attempt, 0, error, now());
      return flush();
    }
    tree_.seen(attempt, next->child);
    flush();
  }
}

std::optional<AttemptResult> SaveChannel::await_result(const Id& attempt, const SeeFile& see) {
  Lock lock(mutex_);
  bool looks = true;
  for (;;) {
    if (const auto result = tree_.result(attempt)) return result;
    if (tree_.broken()) return std::nullopt;
    require_going_on();
    if (looks && tree_.to_see(attempt)) {
      look(lock, attempt, see);
      looks = !tree_.failure(attempt);
      continue;
    }
    changed_.wait(lock);
  }
}

std::optional<AllParts> SaveChannel::await_parts(const Id& attempt, int64_t step, double timeout_s,
                                                 const SeeFile& see) {
  Lock lock(mutex_);
  Watch watch(*this, attempt, step, "saved: waiting for parts", timeout_s);
  for (;;) {
    if (tree_.broken()) return std::nullopt;
    if (stopped_) raise(ErrorKind::kStorage, "step {} is not saved: {}", step, kGivenUp);
    if (const auto failure = tree_.failure(attempt))
      raise(ErrorKind::kStorage, "step {} is not saved: waiting for parts: writer {} of {}: {}",
            step, writer_number(failure->rank), tree_of_ranks_->size(), failure->why);
    try {
      auto all = collect_parts(tree_, known_, attempt, tree_of_ranks_->size(), now());
      if (all) return all;
    } catch (const Error& error) {
      raise(error.kind(), "step {} is not saved: joining parts: {}", step, error.what());
    }
    flush();
    if (tree_.to_see(attempt)) {
      look(lock, attempt, see);
      continue;
    }
    watch.look();
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

void SaveChannel::decide(const AttemptResult& result) {
  const std::lock_guard lock(mutex_);
  tree_.decide(result);
  flush();
}

bool SaveChannel::run_task(Lock& lock, const ReadBackWork& work) {
  const auto task = tree_.take_task();
  if (!task) return false;
  lock.unlock();
  const ReadBackResult result = work(*task);
  lock.lock();
  tree_.done(task->attempt, result);
  flush();
  return true;
}

void SaveChannel::serve(double seconds, const ReadBackWork& work) {
  Lock lock(mutex_);
  if (!run_task(lock, work)) changed_.wait_for(lock, std::chrono::duration<double>(seconds));
}

std::optional<ReadBackResult> SaveChannel::read_back(const Id& attempt, int64_t step,
                                                     std::map<int, std::vector<std::byte>> tasks,
                                                     double timeout_s, const ReadBackWork& work) {
  Lock lock(mutex_);
  if (tree_.broken()) return std::nullopt;
  tree_.order(attempt, step, std::move(tasks), now());
  flush();
  Watch watch(*this, attempt, step, "read back", timeout_s);
  for (;;) {
    if (const auto result = tree_.read_back(attempt)) return result;
    if (tree_.broken()) return std::nullopt;
    require_going_on();
    if (run_task(lock, work)) continue;
    watch.look();
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

}  // namespace ashlar::checkpoint
