#include "ashlar/launch/watch.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/process.h"
#include "ashlar/core/pulse_hang.h"
#include "ashlar/launch/suspect.h"

namespace ashlar::launch {
namespace {

constexpr double kFactor = 8, kMost_s = 300, kFirstStep_s = 120, kPlannedSteps = 20;
constexpr size_t kMostSuspects = 3;  // whose stacks are asked for
constexpr double kLongGap_s = 2;     // between two looks: the launcher did not run
constexpr double kAskShare = 0.1;    // of a limit: from then on threads are seen to starve

EvidenceKind kind_of(PulseHang::Kind kind) {
  switch (kind) {
    case PulseHang::Kind::kMissing:
      return EvidenceKind::kMissing;
    case PulseHang::Kind::kMismatch:
      return EvidenceKind::kDisagree;
    case PulseHang::Kind::kAllArrived:
      return EvidenceKind::kStuck;
    case PulseHang::Kind::kWorking:
      break;
  }
  return EvidenceKind::kSilent;
}

// The bytes that a process has read and written, through the cache or past it.
int64_t bytes_moved(int64_t pid) {
  std::ifstream counters(fmt::format("/proc/{}/io", pid));
  int64_t bytes = 0, count = 0;
  for (std::string name; counters >> name >> count;)
    if (name == "rchar:" || name == "wchar:" || name == "read_bytes:" || name == "write_bytes:")
      bytes += count;
  return bytes;
}

struct ProcessStatus {
  char state = '?';
  bool killed = false;  // somebody sent SIGKILL, and threads have yet to end
};
std::optional<ProcessStatus> status_of(pid_t pid) {
  std::ifstream lines(fmt::format("/proc/{}/status", pid));
  ProcessStatus status;
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kState = "State:\t", kPending = "ShdPnd:\t";  // for all threads
    if (line.starts_with(kState)) status.state = line[kState.size()];
    if (!line.starts_with(kPending)) continue;
    const uint64_t pending = std::stoull(line.substr(kPending.size()), nullptr, 16);
    status.killed = (pending >> (SIGKILL - 1) & 1) != 0;
    return status;
  }
  return std::nullopt;
}

// The ranks that hold up the run if their threads find no CPU: those that others wait for, or that
// work.  One that polls for an operation to which all have come runs seldom, but often enough.
std::vector<int> holding_ranks(const std::map<int, PulsePage>& pages) {
  std::vector<int> ranks = find_hang(pages).ranks;
  if (!ranks.empty()) return ranks;
  for (const auto& [rank, page] : pages)
    if (page.waits_for < 0) ranks.push_back(rank);
  return ranks;
}

}  // namespace

bool is_at_files(PulsePlace place) {
  return place == PulsePlace::kStart || place == PulsePlace::kLoad ||
         place == PulsePlace::kSaveCopy || place == PulsePlace::kSaveWait ||
         place == PulsePlace::kEnd;
}

void SilenceLimit::add(PulsePlace place, double silence_s) {
  std::vector<double>& ring = silences_[size_t(place)];
  size_t& next = next_[size_t(place)];
  if (ring.size() < kKept)
    ring.push_back(silence_s);
  else
    ring[next] = silence_s;
  next = (next + 1) % kKept;
}

double SilenceLimit::limit_s(PulsePlace place, bool stepped) const {
  if (is_at_files(place)) return std::max(hang_s_, kMost_s);
  const double least_s =
      stepped ? hang_s_ : std::max({hang_s_, kFirstStep_s, kPlannedSteps * step_s_});
  std::vector<double> sorted = silences_[size_t(place)];
  if (sorted.empty()) return least_s;
  const auto high = sorted.begin() + std::ptrdiff_t((sorted.size() - 1) * 99 / 100);
  std::ranges::nth_element(sorted, high);
  return std::clamp(kFactor * *high, least_s, std::max(least_s, kMost_s));
}

QueueTimes queue_times_of(int64_t process) {
  QueueTimes times;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    std::ifstream text(task.path() / "schedstat");
    if (int64_t ran = 0, queued = 0; text >> ran >> queued)
      times[std::atoll(task.path().filename().c_str())] = queued;
  }
  return times;
}

Watch::Watch(std::string run_directory, double hang_s, Log& log, double step_s,
             std::function<QueueTimes(int64_t process)> queue_times)
    : run_directory_(std::move(run_directory)),
      log_(log),
      queue_times_(std::move(queue_times)),
      limit_(hang_s, step_s) {}

void Watch::begin(double now) {
  heard_ = looked_ = asked_ = listed_ = now;
  moved_ns_ = 0;
  resumed_ns_ = pulse_now_ns();
  suspended_since_.clear();
  queued_.clear();
  bytes_of_.clear();
}

Watch::Sight Watch::look(const std::map<int, pid_t>& ranks, double now) {
  return judge(find_heads(ranks, now, now - asked_ >= kAskEvery_s), now);
}

Watch::Finds Watch::find(const std::map<int, pid_t>& ranks, double now) {
  Finds finds = find_heads(ranks, now, true);
  finds.pages = whole_pages();
  return finds;
}

// A launcher that was suspended itself begins to watch anew.
void Watch::note_pause(double now) {
  if (now - std::exchange(looked_, now) <= kLongGap_s) return;
  resumed_ns_ = pulse_now_ns();
  suspended_since_.clear();
}

Watch::Finds Watch::find_heads(const std::map<int, pid_t>& ranks, double now, bool ask) {
  note_pause(now);
  find_readers(ranks, now);
  Finds finds{.local = true};
  for (const auto& [rank, reader] : readers_) finds.pages.emplace(rank, reader.head());
  if (ask) ask_kernel(ranks, now, finds);
  for (const auto& [rank, bytes] : bytes_of_) finds.bytes += bytes;
  return finds;
}

// Maps the pages of these processes, and lets go of others.  Ranks that are threads of one process
// have more pages than processes, and an agent's ranks fewer than the run.
void Watch::find_readers(const std::map<int, pid_t>& ranks, double now) {
  const auto is_known = [&](int64_t process) {
    return std::ranges::any_of(ranks, [&](const auto& rank) { return rank.second == process; });
  };
  std::erase_if(readers_, [&](const auto& reader) {
    return reader.second.has_ended() || !is_known(reader.second.process());
  });
  const bool lacks_some = readers_.size() < ranks.size();
  const bool lacks_none =
      !readers_.empty() && readers_.size() >= size_t(readers_.begin()->second.head().num_ranks);
  if (lacks_none || ranks.empty() || (!lacks_some && now - listed_ < kAskEvery_s)) return;
  listed_ = now;
  try {
    for (const PulseFile& file : pulse_files(run_directory_)) try {
        if (!is_known(file.process) || readers_.contains(file.rank)) continue;
        PulseReader reader(file.path);
        if (is_alive(reader.head())) readers_.emplace(file.rank, std::move(reader));
      } catch (const Error&) {  // it is being made, was removed meanwhile, or is no page
      }
  } catch (const Error& error) {
    if (!std::exchange(warned_, true))
      log_.warn("the pulse of the ranks is not seen: {}", error.what());
  }
}

std::map<int, PulsePage> Watch::whole_pages() const {
  std::map<int, PulsePage> pages;
  for (const auto& [rank, reader] : readers_) pages.emplace(rank, reader.page());
  return pages;
}

// A rank that changes its page is neither suspended nor killed, nor does it wait for a disk.
void Watch::ask_kernel(const std::map<int, pid_t>& ranks, double now, Finds& finds) {
  asked_ = now;
  const int64_t stands_ns = pulse_now_ns() - int64_t(kStands_s * 1e9);
  std::erase_if(suspended_since_, [&](const auto& rank) { return !ranks.contains(rank.first); });
  for (const auto& [rank, pid] : ranks) {
    const auto page = finds.pages.find(rank);
    if (page != finds.pages.end() && page->second.moved_ns() > stands_ns)
      suspended_since_.erase(rank);
    else
      see_process(rank, pid, now, finds);
  }
  for (const auto& [rank, page] : finds.pages)
    if (is_at_files(page.place) && page.changed_ns <= stands_ns)
      bytes_of_[rank] = bytes_moved(page.process);
}

void Watch::see_process(int rank, pid_t pid, double now, Finds& finds) {
  const std::optional<ProcessStatus> status = status_of(pid);
  if (!status) return;
  finds.states[rank] = status->state;
  if (status->killed)
    finds.killed = {
        EvidenceKind::kSignal, rank, SIGKILL,
        fmt::format("SIGKILL was sent to process {}, whose threads find no processor to "
                    "end on",
                    pid)};
  if (status->state != 'T') {
    suspended_since_.erase(rank);
    return;
  }
  const double since = suspended_since_.emplace(rank, now).first->second;
  if (now - since >= kSuspended_s && !finds.suspended)
    finds.suspended = {EvidenceKind::kSuspended, rank, 0,
                       fmt::format("process {} of rank {} is suspended (state T) for {:.0f} s", pid,
                                   rank, now - since)};
}

Watch::Sight Watch::judge(Finds finds, double now) {
  note_pause(now);
  const std::optional<Evidence> silence = find_silence(finds, now);
  Sight sight{.pages = std::move(finds.pages), .fault = std::move(finds.killed)};
  sight.silence_s = double(pulse_now_ns() - std::max(moved_ns_, resumed_ns_)) * 1e-9;
  if (!sight.fault) sight.fault = std::move(finds.suspended);
  if (!sight.fault) sight.fault = silence;
  return sight;
}

// When any rank last gave a sign of life that counts at its place.
int64_t Watch::last_sign_ns(const Finds& finds) {
  int64_t sign_ns = 0;
  bool at_files = false;
  for (const auto& [rank, page] : finds.pages) {
    const bool files = is_at_files(page.place);
    sign_ns = std::max(sign_ns, files ? page.changed_ns : page.moved_ns());
    at_files = at_files || files;
  }
  if (at_files && finds.bytes != std::exchange(moved_bytes_, finds.bytes)) sign_ns = pulse_now_ns();
  return sign_ns;
}

// How long the thread that waited longest for a CPU has done so since the first call in a silence.
double Watch::starved_s() {
  const std::map<int, PulsePage> pages = whole_pages();
  int64_t most_ns = 0;
  for (const int rank : holding_ranks(pages)) {
    const PulsePage& page = pages.at(rank);
    if (!is_alive(page)) continue;
    QueueTimes now = queue_times_(page.process);
    const auto [before, first] = queued_.try_emplace(rank, now);
    if (first) continue;
    for (const auto& [thread, queued_ns] : now)
      if (const auto then = before->second.find(thread); then != before->second.end())
        most_ns = std::max(most_ns, queued_ns - then->second);
  }
  return double(most_ns) * 1e-9;
}

std::optional<Evidence> Watch::find_silence(const Finds& finds, double now) {
  if (finds.pages.empty()) {
    if (now - heard_ < kMost_s) return std::nullopt;
    return Evidence{
        EvidenceKind::kSilent, -1, 0,
        fmt::format("no rank has a pulse, nor has printed a line for {:.0f} s", now - heard_)};
  }
  const int64_t sign_ns = last_sign_ns(finds);
  if (sign_ns > moved_ns_) {
    if (moved_ns_ > 0) limit_.add(place_, double(sign_ns - moved_ns_) * 1e-9);
    moved_ns_ = sign_ns;
    queued_.clear();
    const auto latest = std::ranges::max_element(
        finds.pages, {}, [](const auto& page) { return page.second.changed_ns; });
    place_ = latest->second.place;
    return std::nullopt;
  }
  const bool stepped =
      std::ranges::all_of(finds.pages, [](const auto& page) { return page.second.steps_here > 0; });
  const int64_t now_ns = pulse_now_ns();
  const double silence_s = double(now_ns - std::max(moved_ns_, resumed_ns_)) * 1e-9;
  const auto at_files = std::ranges::find_if(
      finds.pages, [](const auto& page) { return is_at_files(page.second.place); });
  const PulsePlace place = at_files == finds.pages.end() ? place_ : at_files->second.place;
  const double limit_s = limit_.limit_s(place, stepped);
  const bool asks = silence_s >= limit_s || (queued_.empty() && silence_s >= kAskShare * limit_s);
  if (!asks) return std::nullopt;
  const double starved = finds.local ? starved_s() : 0;
  if (silence_s - (silence_s < kMost_s ? starved : 0) < limit_s) return std::nullopt;
  return describe_silence(finds, now_ns);
}

Evidence Watch::describe_silence(const Finds& finds, int64_t now_ns) const {
  const std::map<int, PulsePage> pages = finds.local ? whole_pages() : finds.pages;
  const PulseHang hang = find_hang(pages);
  const int rank = hang.ranks.empty() ? -1 : hang.ranks.front();
  std::string text = describe(hang, pages, now_ns);
  for (size_t i = 0; i < std::min(hang.ranks.size(), kMostSuspects); ++i)
    if (finds.local)
      text += "; " + describe_suspect(pages.at(hang.ranks[i]), run_directory_);
    else if (const auto state = finds.states.find(hang.ranks[i]); state != finds.states.end())
      text += fmt::format("; rank {} is in state {}", hang.ranks[i], state->second);
  return {kind_of(hang.kind), rank, 0, text};
}

// A line of the list of groups is "0::/path" (version 2) or "4:memory:/path" (version 1).
int64_t memory_kills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t kind = line.find(':') + 1, path = line.find(':', kind) + 1;
    const std::string controllers = line.substr(kind, path - kind - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    std::ifstream events(controllers.empty()
                             ? "/sys/fs/cgroup" + line.substr(path) + "/memory.events"
                             : "/sys/fs/cgroup/memory" + line.substr(path) + "/memory.oom_control");
    std::string name;
    for (int64_t count; events >> name >> count;)
      if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace ashlar::launch
