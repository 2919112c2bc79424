// A save by 1,024 and 10,240 writers: the real plans, files (in memory), messages, joining of parts
// and commit; only links, clock and the threads of the writers are simulated.
#include <gtest/gtest.h>
#include <malloc.h>

#include <ctime>

#include "ashlar/checkpoint/save/step_writer.h"
#include "ashlar/checkpoint/writers/collect_parts.h"
#include "ashlar/checkpoint/writers/read_back.h"
#include "ashlar/core/checksum.h"
#include "tests/checkpoint/save_tree_sim.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

// Counts calls by the rank that makes them, and samples the memory in use.
class CountedCallsFiles {
 public:
  CountedCallsFiles()
      : memory_(memory_files()),
        counted_(faulty_files(*memory_, [this](int64_t, std::string_view, const std::string&) {
          ++calls[rank];
          if (rank == 0) most_in_use = std::max(most_in_use, in_use());
          return Fault::kNone;
        })) {}
  static int64_t in_use() { return int64_t(mallinfo2().uordblks); }
  FileSystem& as(int of_rank) {
    rank = of_rank;
    return *counted_;
  }
  FileSystem& uncounted() { return *memory_; }

  std::map<int, int64_t> calls;
  int rank = 0;
  int64_t most_in_use = 0;

 private:
  std::unique_ptr<FileSystem> memory_, counted_;
};

// Processor time of this thread: what others do on the machine does not count.
double cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Writer r has two rows of each of four tensors, in model and optimizer.
constexpr int kTensors = 4;
std::vector<LogicalTensor> whole_of(int writers) {
  std::vector<LogicalTensor> whole;
  for (const char* prefix : {"", "optim.m."})
    for (int i = 0; i < kTensors; ++i)
      whole.push_back({prefix + ("w" + std::to_string(i)),
                       DType::kF32,
                       {2 * writers, 4},
                       *prefix ? Role::kOptimizerState : Role::kParameter});
  return whole;
}

struct Share {
  State model, optim;
  Share(int rank, int writers) {
    for (const LogicalTensor& tensor : whole_of(writers)) {
      State& state = tensor.role == Role::kParameter ? model : optim;
      state.add_box(tensor.name, tensor.dtype, tensor.global_shape, {{2 * rank, 0}, {2, 4}},
                    tensor.role);
    }
  }
};

class ScaleRun {
 public:
  explicit ScaleRun(int writers) : sim(nodes_of_eight(writers), 1), whole_(whole_of(writers)) {
    for (int rank = 0; rank < writers; ++rank) shares_.push_back({rank, writers});
    files.uncounted().make_directories("root/.lease");
    fence_.emplace(files.as(0), "root", std::string(32, 'a'), [] {});
    sim.around_leader = [this](const std::function<void()>& body) {
      const double begin = cpu_s();
      body();
      leader_s += cpu_s() - begin;
    };
  }
  int size() const { return sim.size(); }

  void begin(int64_t step) {
    step_ = step;
    attempt_ = random_id();
    plans_.clear();
    plans_.resize(size_t(size()));
    writers_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      sim[rank].begin(attempt_, step, sim.now());
      sim.pump(rank);
    }
  }
  // All that a writer does until its part is on its way.
  void write(int rank) {
    SaveRequest request;
    request.step = step_;
    request.attempt = attempt_;
    request.model = shares_[size_t(rank)].model.pieces();
    request.optim = shares_[size_t(rank)].optim.pieces();
    if (rank == 0) request.whole = whole_;
    SavePlan& plan = plans_[size_t(rank)];
    plan = make_save_plan(request, "run", attempt_, rank, size());
    FileSystem& mine = files.as(rank);
    const auto writer = std::make_shared<StepWriter>(
        mine, "root", plan, 0, log_,
        *(times_[rank] = std::make_unique<PhaseRecorder>(Clock::now())),
        fmt::format("node-{:05}", rank / 8));
    writers_[rank] = writer;
    writer->begin();
    std::vector<std::byte> bytes;
    for (size_t f = 0; f < plan.files.size(); ++f) {
      bytes.resize(size_t(plan.files[f].file.size_bytes));
      fill_from_plan(plan.files[f], 0, bytes);
      writer->write_chunk(f, 0, bytes, crc32c(bytes));
    }
    if (rank == 0) return;
    const WriterPart part = writer->make_part();
    sim[rank].part(attempt_, part.layout, cover_of(part.index),
                   {part.index.files[0].path, part.index.files[0].size_bytes}, encode(part, false),
                   encode(part, true));
    sim.pump(rank);
  }
  // The waiting thread's work on every rank: it looks at the files of children.
  void see_all() {
    for (int rank = 0; rank < size(); ++rank)
      while (const auto next = sim[rank].to_see(attempt_)) {
        files.as(rank);
        writers_.at(rank)->check_witness(next->witness.path, next->witness.size_bytes);
        sim[rank].seen(attempt_, next->child);
        sim.pump(rank);
      }
  }
  // Until the leader has all parts, for some simulated seconds.
  std::optional<AllParts> collect(double seconds) {
    std::optional<AllParts> all;
    for (double spent = 0; spent < seconds && !all; spent += 0.01) {
      sim.run(0.01);
      see_all();
      sim.around_leader([&] { all = collect_parts(sim[0], known_, attempt_, size(), sim.now()); });
      sim.pump(0);
    }
    return all;
  }
  std::string commit(AllParts all) {
    files.as(0);
    std::string directory;
    sim.around_leader([&] { directory = writers_.at(0)->publish(*fence_, std::move(all)); });
    sim[0].decide({attempt_, step_, true, ""});
    sim.pump(0);
    return directory;
  }
  void forget_boxes() { known_ = {}; }
  const Id& attempt() const { return attempt_; }

  Simulation sim;
  CountedCallsFiles files;
  double leader_s = 0;

 private:
  std::vector<LogicalTensor> whole_;
  std::vector<Share> shares_;
  std::vector<SavePlan> plans_;
  std::map<int, std::unique_ptr<PhaseRecorder>> times_;
  std::map<int, std::shared_ptr<StepWriter>> writers_;
  KnownBoxes known_;
  std::optional<Fence> fence_;
  int64_t step_ = 0;
  Id attempt_{};
  Log log_ = quiet_log();
};

class Scale : public testing::TestWithParam<int> {};

TEST_P(Scale, CommitsOnceTheLastPartIsThere) {
  ScaleRun run(GetParam());
  int64_t with_boxes = 0;
  for (int64_t step = 1; step <= 3; ++step) {
    SCOPED_TRACE(step);
    if (step == 3) run.forget_boxes();  // the leader asks for them
    run.begin(step);
    for (int rank = 0; rank < run.size(); ++rank) run.write(rank);
    const int64_t before = run.sim.bytes_to_leader(), calls = run.files.calls[0];
    const int64_t memory = CountedCallsFiles::in_use();
    run.files.most_in_use = 0;
    run.leader_s = 0;
    auto all = run.collect(20);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->parts.size(), size_t(run.size() - 1));
    const std::string directory = run.commit(std::move(*all));
    EXPECT_LT(run.leader_s, 2.0);
    EXPECT_LT(run.files.most_in_use - memory, int64_t(1) << 30);
    EXPECT_LT(run.files.calls[0] - calls, 100);
    const int64_t sent = run.sim.bytes_to_leader() - before;
    if (step == 1) with_boxes = sent;
    if (step == 2) {
      EXPECT_LT(sent, with_boxes * 2 / 3);
    }
    RecordProperty("leader_ms_" + std::to_string(step), int(1e3 * run.leader_s));
    std::printf("%d writers, step %d: leader %.0f ms, %.1f MB more, %.2f MB of messages to it\n",
                run.size(), int(step), 1e3 * run.leader_s,
                1e-6 * double(run.files.most_in_use - memory), 1e-6 * double(sent));
    const StepReader reader(run.files.uncounted(), directory);
    EXPECT_EQ(reader.index().files.size(), size_t(2 * run.size() + 1));  // and timing.json
    EXPECT_EQ(reader.index().tensors[0].boxes.size(), size_t(run.size()));
    run.sim.run(1);
    for (int rank = 0; rank < run.size(); ++rank)  // and all are told
      EXPECT_TRUE(run.sim[rank].result(run.attempt()));
  }
  for (const auto& [rank, calls] : run.files.calls) EXPECT_LT(calls, 300) << rank;
}

INSTANTIATE_TEST_SUITE_P(Writers, Scale, testing::Values(1024, 10240));

TEST(SlowRank, IsNamedAfterTenSeconds) {
  ScaleRun run(1024);
  run.begin(20);
  for (int rank = 0; rank < run.size(); ++rank)
    if (rank != 613 && rank != 20) run.write(rank);
  RankStatus slow;
  slow.attempt = run.attempt();
  slow.phase = Phase::kWrite;
  slow.since = run.sim.now();
  slow.bytes = 1200 << 20;
  slow.total_bytes = int64_t(4000) << 20;
  run.sim[613].set_status(slow);
  slow.bytes = int64_t(3000) << 20;
  run.sim[20].set_status(slow);
  EXPECT_FALSE(run.collect(12));
  std::vector<RankStatus> slowest = run.sim[0].slowest(run.attempt(), run.sim.now());
  ASSERT_EQ(slowest.size(), 2u);
  EXPECT_EQ(to_text(slowest[0], run.sim.now()),
            "rank 613 on n76: writing, 12 s, 1.17 GiB of 3.91 GiB");
  EXPECT_EQ(slowest[1].rank, 20);
  run.write(20);
  run.sim.kill(613);  // stands still: its link is up, but it says nothing
  EXPECT_FALSE(run.collect(13));
  slowest = run.sim[0].slowest(run.attempt(), run.sim.now());
  ASSERT_EQ(slowest.size(), 1u);
  EXPECT_EQ(slowest[0].rank, 613);
  EXPECT_TRUE(slowest[0].silent);
}

}  // namespace
}  // namespace ashlar::checkpoint
