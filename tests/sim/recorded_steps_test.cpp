// Recorded runs of 17 layouts, simulated: how far forecasts are from what was measured.
//
// tests/fixtures/recorded_steps has one step of each: llama-nano, 4 x 512 tokens a step, AdamW,
// bf16, ranks of one thread as threads, on 2 virtual cores of an Intel Xeon with AMX, and the
// median time of its eight recorded steps.  Nothing of these runs is in the machine's numbers:
// kernels are medians of seven runs of one rank at other shapes, times what two layouts without
// overlap showed that ranks slow each other down; the curves are fitted to the same two layouts.
//
//   layout    its name, ranks, measured ms        kernel, group   numbered in their order
//   rank      begins a rank                       k   kernels in order
//   p         a post: lane, ticket, collective, label, group, number, type, bytes, received bytes,
//             rounds; of messages also the other rank, bytes sent, bytes received
//   w         a wait: lane, ticket
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/core/checksum.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/sim/machine_costs.h"
#include "ashlar/sim/program_builder.h"
#include "ashlar/sim/replay.h"

namespace ashlar::sim {
namespace {

const std::string kRecorded = ASHLAR_FIXTURES "/recorded_steps/";

DType recorded_type(const std::string& name) {
  for (int i = 0; i <= int(DType::kU64); ++i)
    if (name_of(DType(i)) == name) return DType(i);
  ADD_FAILURE() << name;
  return DType::kU8;
}

struct RecordedStep {
  RankPrograms programs;
  double measured_ms = 0;
};

class RecordedReader {
 public:
  explicit RecordedReader(const std::vector<std::string>& lines) : lines_(lines) {}

  RecordedStep read() {
    const auto head = split(lines_[0], '\t');
    ProgramBuilder builder(std::stoi(head[2]));
    int rank = -1;
    for (const std::string& line : lines_) {
      const auto cells = split(line, '\t');
      if (cells[0] == "kernel")
        works_.push_back({.op = cells[1],
                          .dtype = recorded_type(cells[2]),
                          .flop = std::stoll(cells[3]),
                          .bytes = std::stoll(cells[4])});
      if (cells[0] == "group") {
        std::vector<int> ranks;
        for (const std::string& r : split(cells[2], ' ')) ranks.push_back(std::stoi(r));
        groups_.push_back(builder.group(cells[1], ranks));
      }
      if (cells[0] == "rank") {
        if (rank >= 0) builder.end_step(rank);
        ++rank;
      }
      if (cells[0] == "k")
        for (const std::string& work : split(cells[1], ' '))
          builder.kernel(rank, works_[size_t(std::stoi(work))]);
      if (cells[0] == "w") builder.wait(rank, builder.lane(rank, cells[1]), std::stoll(cells[2]));
      if (cells[0] == "p") add_post(builder, rank, cells);
    }
    builder.end_step(rank);
    return {builder.finish(), std::stod(head[3])};
  }

 private:
  void add_post(ProgramBuilder& builder, int rank, const std::vector<std::string>& cells) {
    std::vector<TraceMessage> messages;
    if (cells.size() > 11)
      for (const bool sends : {true, false})
        if (const int64_t bytes = std::stoll(cells[sends ? 12 : 13]); bytes > 0)
          messages.push_back({std::stoi(cells[11]), sends, bytes});
    builder.post(rank,
                 {.op = machine::collective_of(cells[3]),
                  .dtype = recorded_type(cells[7]),
                  .lane = int16_t(builder.lane(rank, cells[1])),
                  .label = builder.text(cells[4]),
                  .group = groups_[size_t(std::stoi(cells[5]))],
                  .number = std::stoll(cells[6]),
                  .rounds = std::stoi(cells[10]),
                  .bytes = std::stoll(cells[8]),
                  .received_bytes = std::stoll(cells[9])},
                 std::stoll(cells[2]), messages);
  }

  const std::vector<std::string>& lines_;
  std::vector<KernelWork> works_;
  std::vector<int> groups_;
};

struct RecordedCase {
  const char* name;
  double error;  // (simulated / measured - 1) in %, of this version
};

// Changes of the simulator show here: a better one may change the numbers, with its reason.
constexpr RecordedCase kTwoRanks[] = {
    {"zero0-2", 4.30}, {"zero1-2", -0.94}, {"zero2-2", 8.12},    {"zero3-2", -1.36},
    {"tp-2", 3.12},    {"cp-2", -4.93},    {"cp-ring-2", -1.11}, {"cp-heads-2", -6.60},
    {"pp-2", 5.19},    {"pp-zb-2", 8.14},  {"tsp-2", -7.40}};
constexpr RecordedCase kFourRanks[] = {{"zero1-4", -2.27},  {"zero3-4", -0.53}, {"tp2dp2-4", -0.85},
                                       {"cp2dp2-4", -5.17}, {"pp2dp2-4", 6.08}, {"pp-4", 0.41}};

double simulated_error(const std::string& name) {
  const auto files = posix_files();
  const machine::Profile profile =
      machine::parse_profile(read_text(*files, kRecorded + "machine.toml"), "machine.toml");
  const std::string table = read_text(*files, kRecorded + "machine.kernels.tsv");
  const WorkTimes kernels(
      profile, machine::parse_kernel_table(table, {"", xxh3_64(std::as_bytes(std::span(table)))},
                                           "machine.kernels.tsv"));
  const RecordedStep step =
      RecordedReader(split(read_text(*files, kRecorded + name + ".steps"), '\n')).read();
  const Imbalance imbalance(step.programs, {});
  MachineCosts costs(profile, step.programs, kernels, imbalance, {});
  const Replayed replayed = replay(step.programs, costs, {.repeats = 4, .keep_spans = false});
  EXPECT_EQ(replayed.problem, "") << name;
  return 100 * (1e3 * replayed.step_s.back() / step.measured_ms - 1);
}

void expect_errors(std::span<const RecordedCase> cases, double mean_bar, double largest_bar) {
  double sum = 0, largest = 0;
  for (const RecordedCase& c : cases) {
    const double error = simulated_error(c.name);
    EXPECT_NEAR(error, c.error, 0.05) << c.name;
    sum += std::abs(error);
    largest = std::max(largest, std::abs(error));
  }
  EXPECT_LE(sum / double(cases.size()), mean_bar);
  EXPECT_LE(largest, largest_bar);
}

TEST(RecordedSteps, OfTwoRanksWithACoreEach) {
  expect_errors(kTwoRanks, 5, 10);
}

TEST(RecordedSteps, OfFourRanksOnTwoCores) {
  expect_errors(kFourRanks, 7, 14);
}

}  // namespace
}  // namespace ashlar::sim
