#include "ashlar/bench/machine/row_watch.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/bench/machine/part.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

constexpr double kMostCost = 0.01;    // of the time that is watched
constexpr double kResolution = 0.01;  // of the part's share, by ticks

// Words 3 and on of /proc/ID/stat: "S 1 4711 ...", after the name in parentheses.
std::vector<std::string> stat_of(pid_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  std::getline(file, line);
  std::vector<std::string> words;
  const size_t close = line.rfind(')');
  if (close == line.npos) return words;
  std::istringstream rest(line.substr(close + 1));
  for (std::string word; rest >> word;) words.push_back(word);
  return words;
}

bool is_of_kernel(pid_t id) {
  constexpr uint64_t kThread = 0x00200000;  // PF_KTHREAD
  constexpr size_t kFlags = 6;
  const auto words = stat_of(id);
  return words.size() <= kFlags || (std::stoull(words[kFlags]) & kThread) != 0;
}

// The CPU on which a process ran last; -1 if it has ended.
int last_cpu(pid_t id) {
  constexpr size_t kProcessor = 36;
  const auto words = stat_of(id);
  return words.size() <= kProcessor ? -1 : std::stoi(words[kProcessor]);
}

std::set<pid_t> own_processes(comm::Group& ranks, bool& is_first) {
  std::set<pid_t> own;
  const std::string host = train::host_name();
  const auto all =
      comm::all_said(ranks, one_line(Ordered{{"host", host}, {"process", getpid()}}), "processes");
  is_first = true;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Ordered said = Ordered::parse(all[rank]);
    if (said["host"] != host) continue;
    is_first &= int(rank) >= ranks.rank();
    own.insert(pid_t(said["process"]));
  }
  return own;
}

}  // namespace

RowWatch::RowWatch(comm::Group& ranks) : ranks_(ranks) {
  const auto start = Clock::now();
  own_ = own_processes(ranks, looks_);
  num_cpus_ = std::max<double>(1, double(own_cpus().size()));
  if (looks_) {
    before_ = look();  // learns the processes
    before_ = look();
  }
  looked_ = Clock::now();
  spent_s_ = seconds_since(start);
}

RowWatch::Times RowWatch::look() {
  // Processor time: on a busy machine a look lasts longer, but costs no more.
  const double start = thread_seconds();
  Times times;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir("/proc"), closedir);
  for (const dirent* entry = nullptr; list && (entry = readdir(list.get()));) {
    const std::string_view name = entry->d_name;
    pid_t id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ptr !=
        name.data() + name.size())
      continue;
    auto known = processes_.find(id);
    if (known == processes_.end()) {
      Process process{};
      process.counts =
          !own_.contains(id) && !is_of_kernel(id) && clock_getcpuclockid(id, &process.clock) == 0;
      known = processes_.emplace(id, process).first;
    }
    timespec t{};
    if (known->second.counts && clock_gettime(known->second.clock, &t) == 0)
      times[id] = double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }
  look_s_ = thread_seconds() - start;
  return times;
}

bool RowWatch::is_due() const {
  return looks_ && seconds_since(looked_) * kMostCost >= look_s_;
}

void RowWatch::close() {
  const auto cpus = own_cpus();
  Times now = look();
  const double seconds = std::max(seconds_since(looked_), 1e-9);
  double took = 0;
  for (const auto& [id, time] : now) {
    const auto found = before_.find(id);
    const double theirs = time - (found == before_.end() ? 0 : found->second);
    const bool elsewhere =
        theirs > 0.001 * seconds && std::find(cpus.begin(), cpus.end(), last_cpu(id)) == cpus.end();
    if (!elsewhere) took += std::max(0.0, theirs);
  }
  before_ = std::move(now);
  looked_ = Clock::now();
  windows_.back().share = took / (num_cpus_ * seconds);
  windows_.back().seconds = seconds;
  is_open_ = false;
}

void RowWatch::begin() {
  const auto start = Clock::now();
  if (is_due()) {
    if (is_open_) {
      close();
    } else {
      before_ = look();
      looked_ = Clock::now();
    }
  }
  if (!is_open_) windows_.emplace_back();
  is_open_ = true;
  ++windows_.back().rows;
  windows_of_rows_.push_back(windows_.size() - 1);
  spent_s_ += seconds_since(start);
}

bool RowWatch::again() {
  ranks_.barrier("foreign").wait();  // waiting for slower ranks costs nothing of what is measured
  const auto start = Clock::now();
  double share = 0;
  if (is_open_ && windows_.back().rows == 1 && is_due()) {
    close();
    share = windows_.back().share;
  }
  const auto shares = of_ranks(ranks_, share);
  const bool repeats =
      *std::max_element(shares.begin(), shares.end()) > machine::kMaxForeignShare &&
      repeated_row_ != row() && num_repeated_ <= 1 + row() / 8;
  if (repeats) {
    repeated_row_ = row();
    ++num_repeated_;
    is_open_ = true;  // the second time counts
  }
  spent_s_ += seconds_since(start);
  return repeats;
}

std::vector<RowShare> RowWatch::end() {
  const auto start = Clock::now();
  if (looks_ && is_open_) close();
  Ordered mine = Ordered::array();
  for (const size_t window : windows_of_rows_)
    if (looks_)
      mine.push_back({windows_[window].share, windows_[window].rows, windows_[window].seconds});
  std::vector<RowShare> result(windows_of_rows_.size());
  for (const std::string& text : comm::all_said(ranks_, one_line(mine), "foreign")) {
    const Ordered machine = Ordered::parse(text);
    for (size_t row = 0; row < machine.size(); ++row) {
      const double share = machine[row][0];
      if (result[row].share && *result[row].share >= share) continue;
      result[row] = {share, machine[row][1], machine[row][2]};
    }
  }
  spent_s_ += seconds_since(start);
  return result;
}

void spread(const ForeignShare& part, std::vector<RowShare>& rows) {
  double took = 0, seconds = 0;
  for (const RowShare& row : rows) {
    took += row.share.value_or(0) * row.seconds / double(row.rows);
    seconds += row.seconds / double(row.rows);
  }
  const double hidden = part.share && seconds > 0 ? *part.share - took / seconds : 0;
  for (RowShare& row : rows) {
    if (!row.share)
      row.share = part.share;
    else if (hidden > kResolution)
      *row.share += hidden;
  }
}

}  // namespace ashlar::bench
