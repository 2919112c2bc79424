// ashlar ckpt show STEP --timeline
#include <algorithm>
#include <set>

#include "ashlar/checkpoint/writers/timing.h"
#include "ashlar/cli/ckpt.h"
#include "ashlar/core/text.h"

namespace ashlar::cli {
namespace {

using checkpoint::Outlier;
using checkpoint::Phase;
using checkpoint::PhaseSummary;
using checkpoint::RankTimes;
using checkpoint::Timing;

constexpr size_t kMostRows = 40;  // else the slow ranks only
constexpr size_t kSlowestRanks = 16;
constexpr size_t kMostOutliers = 24;

struct Column {
  Phase phase;
  PhaseSummary summary;
};

// Two cells of shade, relative to the slowest rank, and seconds; blank where there are none.
std::string cell(double seconds, double max_s) {
  constexpr const char* kShades[] = {"░░", "▒▒", "▓▓", "██"};
  if (seconds == 0) return std::string(12, ' ');
  return fmt::format("  {} {:7.3f}", kShades[std::clamp(int(4 * seconds / max_s), 0, 3)], seconds);
}

void print_row(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  print_result(line);
}

// A table of ranks and phases, without empty columns.
class Table {
 public:
  explicit Table(const Timing& timing) {
    for (int p = 0; p < checkpoint::kNumPhases; ++p)
      if (const auto summary = summarize(timing.ranks, Phase(p)))
        columns_.push_back({Phase(p), *summary});
    for (const RankTimes& times : timing.ranks) {
      host_width_ = std::max(host_width_, std::min<size_t>(24, times.host.size()));
      for (const checkpoint::PhaseTime& time : times.phases) has_retries_ |= time.retries > 0;
    }
  }
  void print_head() const {
    std::string line = start("rank", "host");
    for (const Column& column : columns_) line += fmt::format("  {:>10}", key_of(column.phase));
    print_result(line + fmt::format("  {:>11}", "bytes") + (has_retries_ ? "  retries" : ""));
  }
  void print(const RankTimes& times) const {
    std::string line = start(std::to_string(times.rank), times.host);
    int64_t retries = 0;
    for (const Column& column : columns_)
      line += cell(times.phases[size_t(column.phase)].seconds, column.summary.max_s);
    for (const checkpoint::PhaseTime& time : times.phases) retries += time.retries;
    const int64_t bytes = times.phases[size_t(Phase::kWrite)].bytes;
    line += fmt::format("  {:>11}", bytes > 0 ? format_bytes(bytes) : "");
    if (retries > 0) line += fmt::format("  {:>7}", retries);
    print_row(line);
  }
  void print_summary(const char* name, double PhaseSummary::*of) const {
    std::string line = start(name, "");
    for (const Column& column : columns_) line += cell(column.summary.*of, column.summary.max_s);
    print_row(line);
  }

 private:
  std::string start(std::string_view rank, std::string_view host) const {
    return fmt::format("{:>6}  {:<{}}", rank, printable(host).substr(0, host_width_), host_width_);
  }
  std::vector<Column> columns_;
  size_t host_width_ = 4;
  bool has_retries_ = false;
};

// The ranks that are shown, ascending: all if they are few, else outliers and the slowest.
std::set<int> shown_ranks(const Timing& timing, const std::vector<Outlier>& outliers) {
  std::set<int> shown;
  std::vector<const RankTimes*> order;
  for (const RankTimes& times : timing.ranks) order.push_back(&times);
  std::stable_sort(order.begin(), order.end(), [](const RankTimes* a, const RankTimes* b) {
    return store_seconds(*a) > store_seconds(*b);
  });
  if (order.size() > kMostRows) order.resize(kSlowestRanks);
  for (const RankTimes* times : order) shown.insert(times->rank);
  for (size_t i = 0; i < std::min(outliers.size(), kMostOutliers); ++i)
    shown.insert(outliers[i].rank);
  return shown;
}

// The files of a writer are timed in the order of the index; small ones do not show speed.
void print_slowest_file(const Timing& timing, const checkpoint::Index& index) {
  constexpr int64_t kLeastBytes = int64_t(1) << 20;
  std::vector<size_t> next(timing.ranks.size(), 0);
  std::vector<std::pair<double, const checkpoint::IndexFile*>> speeds;  // bytes/s
  for (const checkpoint::IndexFile& file : index.files) {
    if (file.writer_rank() >= timing.ranks.size()) continue;
    const std::vector<float>& file_s = timing.ranks[file.writer_rank()].file_s;
    const size_t number = next[file.writer_rank()]++;
    if (number < file_s.size() && file_s[number] > 0 && file.size_bytes >= kLeastBytes)
      speeds.emplace_back(double(file.size_bytes) / double(file_s[number]), &file);
  }
  if (speeds.empty()) return;
  std::sort(speeds.begin(), speeds.end());
  print_result(fmt::format("files: median {:.0f} MB/s, slowest {} of rank {}: {:.0f} MB/s",
                           1e-6 * speeds[(speeds.size() - 1) / 2].first, speeds[0].second->path,
                           speeds[0].second->writer - 1, 1e-6 * speeds[0].first));
}

void print_timing(const Timing& timing, const checkpoint::Index& index) {
  const std::vector<Outlier> outliers = find_outliers(timing.ranks);
  const Table table(timing);
  table.print_head();
  const std::set<int> shown = shown_ranks(timing, outliers);
  for (const int rank : shown) table.print(timing.ranks[size_t(rank)]);
  if (timing.ranks.size() > 1) {
    table.print_summary("min", &PhaseSummary::min_s);
    table.print_summary("median", &PhaseSummary::median_s);
    table.print_summary("max", &PhaseSummary::max_s);
  }
  if (shown.size() < timing.ranks.size())
    print_result(
        fmt::format("{} of {} ranks are shown: the slow ones", shown.size(), timing.ranks.size()));
  for (size_t i = 0; i < std::min(outliers.size(), kMostOutliers); ++i)
    print_result(to_text(outliers[i]));
  if (outliers.size() > kMostOutliers)
    print_result(fmt::format("and {} more", outliers.size() - kMostOutliers));
  print_slowest_file(timing, index);
}

}  // namespace

void print_timeline(const checkpoint::StepReader& reader, bool json) {
  const std::string name(checkpoint::kTimingFile);
  ASHLAR_REQUIRE(reader.has_blob(name), kConfig,
                 "{} has no extra/{}; it was saved by an older program, which kept no times",
                 reader.directory(), name);
  const Timing timing =
      checkpoint::parse_timing(reader.read_blob(name), join(reader.directory(), "extra/" + name));
  if (json) return print_json(build_timing(timing));
  print_result(fmt::format("{}: {} writer{}, seconds by rank and phase", reader.directory(),
                           timing.num_writers, timing.num_writers == 1 ? "" : "s"));
  if (int(timing.ranks.size()) < timing.num_writers)
    print_result("only rank 0 is known: the others had no control links to tell their times by");
  print_timing(timing, reader.index());
}

}  // namespace ashlar::cli
