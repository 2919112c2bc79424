// The ranks as processes: starts comm_program under mpirun and reads what it leaves.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace {

struct Result {
  int code = -1;
  std::string output;  // stdout and stderr
  double seconds = 0;
};

Result shell(const std::string& command) {
  const auto start = std::chrono::steady_clock::now();
  Result result;
  // Open MPI keeps memory at exit.
  FILE* pipe = popen(("ASAN_OPTIONS=detect_leaks=0 " + command + " 2>&1").c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> block;
  while (const size_t size = fread(block.data(), 1, block.size(), pipe))
    result.output.append(block.data(), size);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

// Unbound: bound to one core, the lanes of a rank would poll in turn with whatever else runs there.
Result mpirun(int num_ranks, const std::string& mode) {
  return shell("timeout 100 " ASHLAR_MPIEXEC
               " --oversubscribe --bind-to none --allow-run-as-root -n " +
               std::to_string(num_ranks) + " " ASHLAR_COMM_PROGRAM " " + mode);
}

Result threads(int num_ranks, const std::string& mode) {
  return shell(ASHLAR_COMM_PROGRAM " " + mode + " --ranks " + std::to_string(num_ranks));
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (access(ASHLAR_MPIEXEC, X_OK) != 0)
      GTEST_SKIP() << ASHLAR_MPIEXEC " is missing: install Debian's openmpi-bin";
  }
};

// MPI's own operations are exact where nothing rounds, and send the same bytes.
TEST_F(Mpi, EveryOperationIsExact) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    const Result exact = mpirun(num_ranks, "operations"),
                 native = mpirun(num_ranks, "operations --native");
    for (const Result& result : {exact, native}) {
      EXPECT_EQ(result.code, 0) << result.output;
      EXPECT_EQ(count(result.output, "ranks: every operation is exact"), 1) << result.output;
    }
    const auto line = [](const Result& r) { return r.output.substr(r.output.find(" ranks: ")); };
    EXPECT_EQ(line(native), line(exact));  // with the bytes sent
  }
}

TEST_F(Mpi, ThreadsAndProcessesGiveTheSameBits) {
  for (const int num_ranks : {1, 3, 4}) {
    const Result processes = mpirun(num_ranks, "bits"), here = threads(num_ranks, "bits");
    EXPECT_EQ(processes.code, 0) << processes.output;
    EXPECT_EQ(here.code, 0) << here.output;
    // Before it Open MPI may complain, as where /sys is not mounted.
    EXPECT_TRUE(processes.output.ends_with(here.output)) << processes.output << here.output;
    EXPECT_EQ(here.output.size(), size_t(17 * num_ranks + 1)) << here.output;
  }
}

// The same faults, the same line once and the same exit code, from threads and from processes.
TEST_F(Mpi, OneFailingRankEndsAllAndIsToldOnce) {
  for (const bool processes : {false, true}) {
    const auto run = [&](const char* mode) {
      return processes ? mpirun(4, mode) : threads(4, mode);
    };
    const Result broken = run("throw");
    EXPECT_EQ(broken.code, 23) << broken.output;
    EXPECT_EQ(count(broken.output, "comm_program: loss is nan [rank 2 of 4"), 1) << broken.output;
    EXPECT_EQ(count(broken.output, "comm_program: "), 1) << broken.output;
    EXPECT_LT(broken.seconds, 10);

    const Result odd = run("shape");
    EXPECT_EQ(odd.code, 30) << odd.output;
    EXPECT_EQ(count(odd.output, "comm_program: "), 1) << odd.output;
    EXPECT_EQ(count(odd.output,
                    "rank 2 calls all_reduce 'grads' (number 2 of group world) with "
                    "999 elements of F32"),
              1)
        << odd.output;
    EXPECT_LT(odd.seconds, 10);

    const Result lane = run("lane");
    EXPECT_EQ(lane.code, 30) << lane.output;
    EXPECT_EQ(count(lane.output, "comm_program: "), 1) << lane.output;
    EXPECT_EQ(count(lane.output, "calls all_reduce 'bulk' (number 0 of group bulk) with 999"), 1)
        << lane.output;
    EXPECT_LT(lane.seconds, 10);
  }
}

// MPI's own collectives: the same operations, forms and counters; sums that round, within rounding.
TEST_F(Mpi, NativeSumsAreWithinRounding) {
  for (const int num_ranks : {2, 3, 4})
    for (const char* mode : {"near", "near --native"}) {
      const Result result = mpirun(num_ranks, mode);
      EXPECT_EQ(result.code, 0) << result.output;
      EXPECT_EQ(count(result.output, "ranks: sums are within rounding"), 1) << result.output;
    }
}

TEST_F(Mpi, NativeFaultsAreThoseOfRounds) {
  const Result broken = mpirun(4, "throw --native");
  EXPECT_EQ(broken.code, 23) << broken.output;
  EXPECT_EQ(count(broken.output, "comm_program: loss is nan [rank 2 of 4"), 1) << broken.output;
  EXPECT_EQ(count(broken.output, "comm_program: "), 1) << broken.output;
  const Result odd = mpirun(4, "shape --native");
  EXPECT_EQ(odd.code, 30) << odd.output;
  EXPECT_EQ(count(odd.output, "rank 2 calls all_reduce 'grads'"), 1) << odd.output;
  const Result lane = mpirun(4, "lane --native");
  EXPECT_EQ(lane.code, 30) << lane.output;
  EXPECT_EQ(count(lane.output, "of group bulk) with 999 elements"), 1) << lane.output;
  const Result late = mpirun(4, "late --native");
  EXPECT_EQ(late.code, 30) << late.output;
  EXPECT_EQ(count(late.output, " s; not arrived: rank 2;"), 1) << late.output;
  const Result killed = mpirun(4, "kill --native");
  EXPECT_EQ(killed.code, 128 + 9) << killed.output;
  for (const Result& result : {broken, odd, lane, late, killed}) EXPECT_LT(result.seconds, 10);
}

TEST_F(Mpi, NativeIsRefusedOnThreads) {
  const Result here = threads(2, "operations --native");
  EXPECT_EQ(here.code, 2) << here.output;
  EXPECT_EQ(count(here.output,
                  "comm_program: parallel.collectives is native but ranks are threads of one "
                  "process; use mpirun, or exact"),
            1)
      << here.output;
}

TEST_F(Mpi, ALateRankIsNamed) {
  const Result late = mpirun(4, "late");
  EXPECT_EQ(late.code, 30) << late.output;
  EXPECT_EQ(count(late.output, "comm_program: "), 1) << late.output;
  EXPECT_EQ(
      count(late.output, "comm_program: all_reduce 'grads' (number 2 of group world): waited "), 1)
      << late.output;
  EXPECT_EQ(count(late.output, " s; not arrived: rank 2;"), 1) << late.output;
  EXPECT_LT(late.seconds, 10);  // the rank itself sleeps for 20
}

// The others have all come, and wait for messages of that rank alone.
TEST_F(Mpi, ARankThatStopsWithinAMessageIsNamed) {
  const Result stopped = mpirun(4, "stop");
  EXPECT_EQ(stopped.code, 30) << stopped.output;
  EXPECT_EQ(count(stopped.output, "comm_program: all_reduce 'grads' "), 1) << stopped.output;
  EXPECT_EQ(count(stopped.output, "not arrived: rank 2; ") +
                count(stopped.output, "arrived but did not finish: rank 2; "),
            1)
      << stopped.output;
  EXPECT_LT(stopped.seconds, 10);
}

TEST_F(Mpi, ARankThatStandsStillIsToldOfOnce) {
  for (const char* mode : {"pause", "pause --native"}) {
    const Result paused = mpirun(3, mode);
    EXPECT_EQ(paused.code, 0) << paused.output;
    EXPECT_EQ(count(paused.output, "told: "), 2) << paused.output;
    EXPECT_EQ(count(paused.output, "told: rank 0 waits for rank 2: all_reduce 'grads' (number "), 1)
        << paused.output;
    EXPECT_EQ(count(paused.output, "told: rank 2 came after 2 s, and rank 0 goes on"), 1)
        << paused.output;
  }
}

// The reason is told at once and once; ranks then have a moment for what is not to be lost.
TEST_F(Mpi, ARankThatHasToFinishSomethingTellsOfTheFailureFirst) {
  const Result result = mpirun(4, "grace");
  EXPECT_EQ(result.code, 23) << result.output;
  EXPECT_EQ(count(result.output, "comm_program: "), 1) << result.output;
  const size_t told = result.output.find("comm_program: loss is nan [rank 2 of 4");
  ASSERT_NE(told, std::string::npos) << result.output;
  EXPECT_LT(told, result.output.find("rank 2 has done what it had to")) << result.output;
  EXPECT_LT(result.seconds, 10);
}

TEST_F(Mpi, AKilledRankEndsAll) {
  const Result killed = mpirun(4, "kill");
  EXPECT_EQ(killed.code, 128 + 9) << killed.output;
  EXPECT_GE(count(killed.output, "rank 2 "), 1) << killed.output;  // mpirun's words
  EXPECT_EQ(count(killed.output, "not reached"), 0) << killed.output;
  EXPECT_LT(killed.seconds, 10);
}

TEST_F(Mpi, FaultsOnChannelsAreNamed) {
  const Result broken = mpirun(4, "channel-throw"), odd = mpirun(4, "channel-shape"),
               late = mpirun(4, "channel-late"), native = mpirun(4, "channel-shape --native"),
               killed = mpirun(4, "channel-kill");
  EXPECT_EQ(broken.code, 23) << broken.output;
  EXPECT_EQ(count(broken.output, "comm_program: loss is nan [rank 2 of 4"), 1) << broken.output;
  for (const Result& result : {odd, native}) {
    EXPECT_EQ(result.code, 30) << result.output;
    EXPECT_EQ(count(result.output, "rank 2 calls send_receive 'up' (number 0 of group 2>3"), 1)
        << result.output;
    EXPECT_EQ(count(result.output, "sends 3996 bytes in 1"), 1) << result.output;
  }
  // Rank 0 waits for ranks 1 and 3 too, which wait for rank 2.
  EXPECT_EQ(late.code, 30) << late.output;
  EXPECT_EQ(count(late.output, " s; not arrived: rank 2;"), 1) << late.output;
  EXPECT_EQ(killed.code, 128 + 9) << killed.output;
  EXPECT_EQ(count(killed.output, "not reached"), 0) << killed.output;
  for (const Result& result : {broken, odd, late, native, killed}) {
    EXPECT_LE(count(result.output, "comm_program: "), 1) << result.output;
    EXPECT_LT(result.seconds, 10);
  }
}

TEST_F(Mpi, CopiesThatDoNotKnowOfEachOtherAreRefused) {
  const Result alone = mpirun(2, "alone");
  EXPECT_EQ(alone.code, 64) << alone.output;
  EXPECT_GE(count(alone.output, "OMPI_COMM_WORLD_SIZE is 2, so a launcher started at least 2"), 1)
      << alone.output;
}

}  // namespace
