// How it works.  All ranks are threads of one run_ranks.  Each has a Rank: its states in the two
// layouts, its Checkpointer, and a place in Shared for the time of its last action.  slowest()
// times everything: all ranks begin at a barrier, and when all have finished rank 0 takes the
// longest time.  One repeat writes raw, plain, and as Ashlar, and then reads each, in another order
// every time, so that a machine whose speed changes is equally fast for all of them.
#include "ashlar/bench/checkpoint.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>

#include "ashlar/bench/checkpoint_baseline.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/comm/launch_check.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/clock.h"
#include "ashlar/train/group_load_ranks.h"
#include "ashlar/train/save_links.h"

namespace ashlar::bench {
namespace {

double cpu_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// A field of /proc/self/status in bytes: VmRSS, VmHWM.
int64_t memory_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) << 10;
  return 0;
}

void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// Takes the place of forward and backward: multiplies and adds over data in the first-level cache.
class Loop {
 public:
  // The number of turns that take that long alone.
  explicit Loop(double seconds) {
    const auto start = Clock::now();
    for (; seconds_since(start) < seconds; ++turns_) turn();
  }
  double run() {
    const auto start = Clock::now();
    for (int64_t i = 0; i < turns_; ++i) turn();
    return seconds_since(start);
  }

 private:
  // Compiled once: two copies of the loop, alone and beside a save, were not equally fast.
  [[gnu::noinline]] void turn() {
    for (int i = 0; i < 64; ++i)
      for (float& value : values_) value = value * 0.999f + 0.5f;
  }
  std::vector<float> values_ = std::vector<float>(4096, 1.0f);
  int64_t turns_ = 0;
};

// The data that the ranks of a workload share and rank 0 collects.
struct Shared {
  explicit Shared(int ranks) : seconds(size_t(ranks)), wrong(size_t(ranks)) {}
  std::vector<double> seconds;
  std::vector<int64_t> wrong;
  std::vector<double> block, slowdown, save, load, other_load, plain_save, plain_load,
      plain_other_load, raw_write, raw_read, cpu;
  CheckpointRow row;
};

class Rank {
 public:
  Rank(const CheckpointWorkload& workload, const CheckpointBenchOptions& options, FileSystem& files,
       comm::Group& ranks, Shared& shared)
      : workload_(workload),
        options_(options),
        files_(files),
        ranks_(ranks),
        shared_(shared),
        saves_(ranks.rank() < workload.saved.ranks),
        loads_other_(ranks.rank() < workload.other.ranks),
        savers_(first(ranks, workload.saved.ranks, "savers")),
        others_(first(ranks, workload.other.ranks, "others")),
        log_([](std::string_view) {}) {
    if (saves_) state_ = std::make_unique<CheckpointState>(workload, workload.saved, ranks.rank());
    if (loads_other_)
      other_ = std::make_unique<CheckpointState>(workload, workload.other, ranks.rank());
    if (saves_) state_->fill();
    loop_ = std::make_unique<Loop>(options.step_s);
  }

  void run() {
    open();
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      remove_written();
      write(repeat);
      read(repeat);
    }
    settle();
    checkpoints_.reset();
  }

 private:
  // A group of the first `num` ranks; null for the others.
  static std::unique_ptr<comm::Group> first(comm::Group& ranks, int num, const char* name) {
    return ranks.split(name, [&](int rank) { return comm::SplitKey{rank < num ? 0 : -1, rank}; });
  }
  bool leads() const { return ranks_.rank() == 0; }
  void settle() { ranks_.barrier("settle").wait(); }
  // A disk with a budget for bursts regains it after a while.
  void rest() {
    settle();
    if (leads()) files_.pause(options_.rest_s);
    settle();
  }
  std::string below(const char* name) const { return join(options_.directory, name); }

  // Runs body on the ranks where `takes_part`, all at once; rank 0 keeps the longest time.
  void slowest(std::vector<double>& times, bool takes_part, function_ref<void()> body) {
    rest();
    const auto start = Clock::now();
    if (takes_part) body();
    shared_.seconds[size_t(ranks_.rank())] = takes_part ? seconds_since(start) : 0;
    settle();
    if (leads()) times.push_back(*std::ranges::max_element(shared_.seconds));
  }
  void fresh_directory(const std::string& path) {
    settle();
    if (leads()) {
      files_.remove_all(path);
      files_.make_directories(path);
    }
    settle();
  }
  void drop(const std::string& path) {
    settle();
    if (leads()) {
      if (!options_.sync) ::sync();
      drop_cached(path);
    }
    settle();
  }

  int64_t bytes_to_write() const {
    int64_t bytes = 0;
    for (const Piece& piece : state_->pieces(true)) bytes += piece.data.bytes();
    return bytes;
  }

  // The files of one repeat are removed before the next, so that all write over used space.
  void remove_written() {
    if (options_.baselines)
      for (const char* name : {"raw", "plain"}) fresh_directory(below(name));
    if (leads())
      for (const std::string& name : files_.list(below("root")))
        if (checkpoint::parse_step_name(name)) files_.remove_all(join(below("root"), name));
    settle();
  }

  // Each part finds the machine as the part before left it, for example with memory that was just
  // freed, so every repeat has another order.
  static void in_turn(int repeat, std::vector<std::function<void()>> all) {
    std::ranges::rotate(all, all.begin() + repeat / 2 % int(all.size()));
    if (repeat % 2 == 1) std::ranges::reverse(all);
    for (const auto& one : all) one();
  }

  void write(int repeat) {
    std::vector<std::function<void()>> writings;
    if (options_.baselines) {
      raw_bytes_ = saves_ ? bytes_to_write() : 0;
      writings.push_back([&] {
        slowest(shared_.raw_write, saves_,
                [&] { raw_write(files_, below("raw"), ranks_.rank(), raw_bytes_); });
      });
      writings.push_back([&] {
        slowest(shared_.plain_save, saves_,
                [&] { plain_save(files_, below("plain"), *savers_, state_->pieces(false)); });
      });
    }
    writings.push_back([&] { save(repeat + 1); });
    in_turn(repeat, std::move(writings));
  }

  void open() {
    fresh_directory(below("root"));
    if (!saves_) return settle();
    checkpoint::CheckpointOptions options;
    options.keep = options_.repeats + 1;
    options.run_id = std::string(32, 'b');
    options.writer_rank = ranks_.rank();
    options.num_writers = workload_.saved.ranks;
    options.local_writers = workload_.saved.ranks;
    std::vector<int> writers(size_t(savers_->size()));
    std::iota(writers.begin(), writers.end(), 0);
    channel_ = train::make_save_channel(*savers_, writers, "", log_);
    options.channel = channel_.get();
    if (!leads()) savers_->barrier("leader is first").wait();
    checkpoints_ = std::make_unique<checkpoint::Checkpointer>(files_, below("root"), options, log_);
    if (leads()) savers_->barrier("leader is first").wait();
    to_write_ = state_->pieces(true);
    checkpoints_->prepare(request(0));
    settle();
  }

  checkpoint::SaveRequest request(int64_t step) const {
    checkpoint::SaveRequest request;
    request.step = step;
    request.attempt[0] = uint8_t(step);
    request.model = to_write_;
    if (leads()) request.whole = workload_.tensors;
    return request;
  }

  void save(int64_t step) {
    std::vector<double> alone;
    slowest(alone, saves_, [&] { loop_->run(); });  // meanwhile the arena's pages are touched
    if (leads()) reset_peak();
    const int64_t held = memory_field("VmRSS");
    settle();
    const double cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    double block_s = 0, loop_s = 0;
    if (saves_) {
      const auto start = Clock::now();
      checkpoints_->save(request(step));
      block_s = seconds_since(start);
      loop_s = loop_->run();
      const auto end = Clock::now();
      checkpoints_->before_update();
      block_s += seconds_since(end);
      checkpoints_->wait();
    }
    settle();
    const double all_cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    std::vector<double> block, loop;
    keep_slowest(block, block_s);
    keep_slowest(loop, loop_s);
    if (!leads()) return;
    shared_.cpu.push_back(std::max(0.0, all_cpu - workload_.saved.ranks * alone[0]));
    shared_.block.push_back(block[0]);
    shared_.slowdown.push_back(loop[0] / alone[0]);
    shared_.row.memory_bytes = std::max(shared_.row.memory_bytes,
                                        memory_field("VmHWM") - held + checkpoints_->arena_bytes());
    for (const checkpoint::SaveStats& stats : checkpoints_->take_stats())
      shared_.save.push_back(stats.total_s);
  }
  void keep_slowest(std::vector<double>& times, double seconds) {
    shared_.seconds[size_t(ranks_.rank())] = seconds;
    settle();
    if (leads()) times.push_back(*std::ranges::max_element(shared_.seconds));
    settle();
  }

  void read(int repeat) {
    const std::string step = join(below("root"), files_.list(below("root")).back());
    const bool check = repeat == 0;
    std::vector<std::function<void()>> readings{
        [&] {
          load_into(shared_.load, step, state_.get(), check,
                    [&](const std::vector<Piece>& pieces) { load(*savers_, step, pieces); });
        },
        [&] {
          load_into(shared_.other_load, step, other_.get(), check,
                    [&](const std::vector<Piece>& pieces) { load(*others_, step, pieces); });
        }};
    // The readings refer to it and run after the block below.
    const auto plain = [&](const std::vector<Piece>& pieces) {
      plain_load(files_, below("plain"), pieces);
    };
    if (options_.baselines) {
      readings.push_back([&] {
        drop(below("raw"));
        slowest(shared_.raw_read, saves_,
                [&] { raw_read(files_, below("raw"), ranks_.rank(), raw_bytes_); });
      });
      readings.push_back(
          [&] { load_into(shared_.plain_load, below("plain"), state_.get(), false, plain); });
      readings.push_back(
          [&] { load_into(shared_.plain_other_load, below("plain"), other_.get(), false, plain); });
    }
    in_turn(repeat, std::move(readings));
    describe(step);
  }

  void load(comm::Group& group, const std::string& step, const std::vector<Piece>& pieces) {
    train::GroupLoadRanks load_ranks(group);
    checkpoint::LoadOptions options;
    options.allow_unexpected = {"*"};
    checkpoint::StepReader reader(files_, step, &load_ranks);
    reader.set_reads(checkpoint::Reads::kDirect);  // as a run that resumes
    reader.load(pieces, options);
  }

  void describe(const std::string& step) {
    if (!leads()) return;
    const checkpoint::StepReader reader(files_, step);
    CheckpointRow& row = shared_.row;
    row.bytes = reader.commit().bytes;
    row.files = reader.commit().files;
    row.index_bytes = reader.commit().index.size_bytes;
    std::vector<int64_t> by_writer(size_t(workload_.saved.ranks) + 1);
    for (const checkpoint::IndexFile& file : reader.index().files)
      by_writer[file.writer] += file.size_bytes;
    row.rank_bytes = *std::ranges::max_element(by_writer);
  }

  // Cold: no part of the files is cached.
  void load_into(std::vector<double>& times, const std::string& path, CheckpointState* state,
                 bool check, function_ref<void(const std::vector<Piece>&)> read) {
    if (state) state->clear();
    drop(path);
    slowest(times, state != nullptr, [&] { read(state->pieces(false)); });
    shared_.wrong[size_t(ranks_.rank())] = state && check ? state->wrong_elements() : 0;
    settle();
    if (leads())
      for (const int64_t wrong : shared_.wrong) shared_.row.wrong_elements += wrong;
    settle();
  }

  const CheckpointWorkload& workload_;
  const CheckpointBenchOptions& options_;
  FileSystem& files_;
  comm::Group& ranks_;
  Shared& shared_;
  const bool saves_, loads_other_;
  std::unique_ptr<comm::Group> savers_, others_;
  Log log_;
  std::unique_ptr<CheckpointState> state_, other_;
  std::unique_ptr<Loop> loop_;
  int64_t raw_bytes_ = 0;        // of this rank
  std::vector<Piece> to_write_;  // made once, as a run does
  std::unique_ptr<checkpoint::SaveChannel> channel_;
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;
};

Summary summary_of(const std::vector<double>& times) {
  return times.empty() ? Summary{} : summarize(times);
}

// Removes the directory, which did not exist before, even if the measurement fails.
class Removal {
 public:
  Removal(FileSystem& files, const std::string& directory) : files_(files), directory_(directory) {}
  ~Removal() {
    try {
      files_.remove_all(directory_);
    } catch (const Error&) {  // the measurement is valid; the directory can be removed by hand
    }
  }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

 private:
  FileSystem& files_;
  const std::string& directory_;
};

CheckpointRow measure(const CheckpointWorkload& workload, const CheckpointBenchOptions& options,
                      FileSystem& files) {
  const int ranks = std::max(workload.saved.ranks, workload.other.ranks);
  Shared shared(ranks);
  Allocator allocator(Device::kCpu);
  const Removal removal(files, options.directory);
  comm::run_ranks(ranks, {}, allocator,
                  [&](comm::Group& group) { Rank(workload, options, files, group, shared).run(); });
  CheckpointRow row = shared.row;
  row.workload = workload;
  row.first_block_s = shared.block.front();
  row.block = summary_of(shared.block);
  row.slowdown = summary_of(shared.slowdown);
  row.ashlar = {summary_of(shared.save), summary_of(shared.load), summary_of(shared.other_load)};
  row.plain = {summary_of(shared.plain_save), summary_of(shared.plain_load),
               summary_of(shared.plain_other_load)};
  row.raw_write = summary_of(shared.raw_write);
  row.raw_read = summary_of(shared.raw_read);
  row.cpu_s = summary_of(shared.cpu).median;
  return row;
}

}  // namespace

void measure_checkpoints(const CheckpointBenchOptions& options,
                         const std::function<void(const CheckpointRow&)>& done) {
  const auto posix = posix_files();
  const auto unsynced = without_sync(*posix);
  std::vector<CheckpointWorkload> all = checkpoint_workloads(options.bytes, options.ranks);
  for (const std::string& name : options.workloads)
    ASHLAR_REQUIRE(
        std::ranges::any_of(all, [&](const auto& workload) { return workload.name == name; }),
        kConfig, "--workload is {}; expected small, large, copies, flat, experts, grid or gather",
        name);
  ASHLAR_REQUIRE(!posix->stat(options.directory), kConfig,
                 "{} exists; expected a directory to make, and to remove at the end",
                 options.directory);
  for (const CheckpointWorkload& workload : all)
    if (options.workloads.empty() || std::ranges::count(options.workloads, workload.name))
      done(measure(workload, options, options.sync ? *posix : *unsynced));
}

}  // namespace ashlar::bench
