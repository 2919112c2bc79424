// The lead of a launch on several machines: who may take it, how long it lasts, and that no two
// processes that have it write at a time.
#include "ashlar/launch/epochs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <set>

#include "ashlar/checkpoint/root/lease.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::error_of;
using testing_support::TemporaryDirectory;

TEST(Candidacy, WaitsForACounterThatStands) {
  Candidacy candidacy;
  EXPECT_TRUE(candidacy.may_lead({.epoch = 0}, 100));
  EXPECT_TRUE(candidacy.may_lead({.epoch = 3, .ended = true}, 100));
  EXPECT_FALSE(candidacy.may_lead({4, "0", false, 200, 2}, 199));
  EXPECT_FALSE(candidacy.has_seen_life()) << "its counter may stand for good";
  double now = 200;
  for (int beat = 0; beat < 30; ++beat, now += 1)
    EXPECT_FALSE(candidacy.may_lead({4, std::to_string(beat), false, 200, 2}, now))
        << "this agent is cut off, and the leader lives";
  EXPECT_TRUE(candidacy.has_seen_life());
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, 200, 2}, now + 8));
  EXPECT_TRUE(candidacy.may_lead({4, "29", false, 200, 2}, now + 9.1));
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, now + 8, 2}, now + 9.1)) << "it was heard";
  candidacy.resigned();
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, 200, 2}, now + 15));
  EXPECT_TRUE(candidacy.may_lead({4, "29", false, 200, 2}, now + 19.1));
}

TEST(Tenure, EndsOnTheWrongSideOfABrokenNetwork) {
  const Tenure tenure(3);
  EXPECT_TRUE(tenure.holds({3, 100, 2, 4}, 110));
  EXPECT_FALSE(tenure.holds({4, 100, 4, 4}, 110)) << "a newer epoch";
  EXPECT_FALSE(tenure.holds({3, 100, 4, 4}, 121)) << "it cannot write its counter";
  EXPECT_FALSE(tenure.holds({3, 100, 1, 4}, 110)) << "it hears fewer than half";
}

// It has never heard the agents that it was cut off from, but those were there.
TEST(Tenure, EndsIfTheLeaderWasCutOffBeforeItLed) {
  const Tenure tenure(3, 5, 100);
  EXPECT_TRUE(tenure.holds({3, 109, 1, 1}, 109)) << "agents have yet to come";
  EXPECT_FALSE(tenure.holds({3, 110, 1, 1}, 110)) << "nobody has";
  EXPECT_TRUE(tenure.holds({3, 119, 2, 2}, 119)) << "some have yet to come";
  EXPECT_FALSE(tenure.holds({3, 120, 2, 2}, 120));
  EXPECT_TRUE(tenure.holds({3, 120, 3, 3}, 120));
  EXPECT_TRUE(tenure.holds({3, 200, 1, 1}, 200)) << "the others were lost since";
}

TEST(EpochFiles, HaveOneLeaderEach) {
  const auto files = memory_files();
  files->make_directories("launch");
  EpochFiles one(*files, "launch"), two(*files, "launch");
  EXPECT_EQ(one.newest(), 0);
  EXPECT_TRUE(one.claim(1, "17"));
  EXPECT_FALSE(two.claim(1, "17"));
  EXPECT_EQ(two.newest(), 1);
  EXPECT_EQ(two.job_of(1), "17");
  EXPECT_EQ(two.beat_of(1), "");
  one.beat(1);
  const std::string first = two.beat_of(1);
  one.beat(1);
  EXPECT_NE(two.beat_of(1), first);
  EXPECT_FALSE(two.address_of(1));
  one.publish(1, "n07 4711 10.0.0.7");
  EXPECT_EQ(two.address_of(1), "n07 4711 10.0.0.7");
  EXPECT_FALSE(two.end_of(1));
  one.end(1, 27);
  EXPECT_EQ(two.end_of(1), 27);
}

// Launchers that nothing but the directory numbers.
TEST(EpochFiles, NumberNodesAndKnowTheLastEnd) {
  const auto files = memory_files();
  files->make_directories("launch");
  EpochFiles epochs(*files, "launch");
  EXPECT_EQ(epochs.number_of("n07"), 1);
  EXPECT_EQ(epochs.number_of("n03"), 2);
  EXPECT_EQ(epochs.number_of("n07"), 1);
  EXPECT_EQ(epochs.last_ended(), 0);
  for (const int epoch : {1, 2, 3}) epochs.claim(epoch, "one");
  EXPECT_EQ(epochs.last_ended(), 0);
  epochs.end(2, 0);
  EXPECT_EQ(epochs.last_ended(), 2) << "epoch 3 has begun since";
}

TEST(EpochFiles, KeysComeFromATokenOfTheOwner) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  const std::string path = directory.path();
  EpochFiles one(*files, path), two(*files, path);
  EXPECT_EQ(one.key_of(1, "17"), two.key_of(1, "17"));
  EXPECT_NE(one.key_of(1, "17"), one.key_of(1, "18")) << "another job is a stranger";
  EXPECT_NE(one.key_of(1, "17"), one.key_of(2, "17"));
  const std::string token = join(path, "token");
  struct stat info {};
  ASSERT_EQ(stat(token.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(files->list(path).size(), 1u);
  chmod(token.c_str(), 0644);
  EXPECT_NE(error_of(ErrorKind::kLaunch, [&] { two.key_of(1, "17"); }).find("owner alone"),
            std::string::npos);
}

// --- two or more candidates, in any order of their steps ---

// A process that stands for the lead and, once it has it, starts ranks that take the lease.
struct Contender {
  explicit Contender(FileSystem& files) : epochs(files, "launch") {}
  EpochFiles epochs;
  Candidacy candidacy;
  std::optional<Tenure> tenure;
  int64_t epoch = 0, attempt = 0;
  double written_s = 0, heard_s = 0, asleep_until_s = 0;
};

struct Contest {
  explicit Contest(uint64_t seed) : random(seed) {
    files->make_directories("launch");
    files->make_directories("root");
    for (int i = 0; i < 2; ++i) contenders.emplace_back(*files);
  }
  int below(int bound) { return int(random() % uint64_t(bound)); }

  void turn(size_t which) {
    Contender& one = contenders[which];
    if (now < one.asleep_until_s) return;
    if (below(200) == 0) one.asleep_until_s = now + below(60);  // suspended, anywhere below
    const int64_t newest = one.epochs.newest();
    if (!one.tenure) {
      const bool hears = newest > 0 && below(3) > 0 && leads(newest);
      if (hears) one.heard_s = now;
      const Candidacy::View view{newest, newest > 0 ? one.epochs.beat_of(newest) : "", false,
                                 one.heard_s, int(which)};
      if (!one.candidacy.may_lead(view, now) || !one.epochs.claim(newest + 1, "17")) return;
      EXPECT_TRUE(winners.insert(newest + 1).second) << "two leaders of one epoch";
      one.tenure.emplace(newest + 1);
      one.epoch = newest + 1;
      one.written_s = now;
      return;
    }
    if (!one.tenure->holds({newest, one.written_s, 1, 1}, now)) {
      one.tenure.reset();
      return;
    }
    if (below(4) > 0) beat(one);
    if (below(8) == 0) start(one);
  }

  bool leads(int64_t epoch) const {
    return std::ranges::any_of(contenders, [&](const Contender& one) {
      return one.tenure && one.epoch == epoch && now >= one.asleep_until_s;
    });
  }
  void beat(Contender& one) {
    one.epochs.beat(one.epoch);
    one.written_s = now;
  }
  // The ranks come to the lease later: `pending`.
  void start(Contender& one) {
    checkpoint::LeaseHolder rank;  // on a machine of its own, from where no other is judged
    rank.host = rank.boot = fmt::format("host {}", ++num_ranks);
    rank.pid = 7;
    rank.epoch = one.epoch;
    rank.attempt = ++one.attempt;
    pending.push_back(rank);
  }
  // The ranks of an attempt come to the checkpoints; a holder that lives renews its lease.
  void take_lease() {
    if (pending.empty()) return;
    const size_t which = random() % pending.size();
    checkpoint::LeaseOptions options;
    options.holder = pending[which];
    options.sleep = [&](double) { leases.back()->refresh(); };
    pending.erase(pending.begin() + std::ptrdiff_t(which));
    try {
      leases.push_back(std::make_unique<checkpoint::Lease>(*files, "root", log, options));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
      return;
    }
    const checkpoint::LeaseHolder& me = leases.back()->holder();
    EXPECT_TRUE(writers.empty() || std::pair(me.epoch, me.attempt) > *writers.rbegin())
        << "a rank that was replaced writes again";
    writers.emplace(me.epoch, me.attempt);
    for (size_t i = 0; i + 1 < leases.size(); ++i) {
      EXPECT_FALSE(leases[i]->fence().open()) << "two writers";
      EXPECT_THROW(leases[i]->check(), Error);
    }
    if (leases.size() > 3) leases.erase(leases.begin());
  }

  std::mt19937_64 random;
  std::unique_ptr<FileSystem> files = memory_files();
  std::vector<Contender> contenders;
  std::vector<checkpoint::LeaseHolder> pending;
  Log log{[](std::string_view) {}};
  std::vector<std::unique_ptr<checkpoint::Lease>> leases;  // the last one is held
  std::set<int64_t> winners;                               // epochs
  std::set<std::pair<int64_t, int64_t>> writers;           // that have held the lease
  int64_t num_ranks = 0;
  double now = 0;
};

// Steps of the contenders and of the ranks come in any order, with any pauses between them.
void hold_contests(int num_contests) {
  int64_t num_epochs = 0;
  for (int seed = 0; seed < num_contests && !testing::Test::HasFailure(); ++seed) {
    Contest contest(uint64_t(seed) + 1);
    for (int step = 0; step < 400; ++step) {
      if (contest.below(3) == 0)
        contest.take_lease();
      else
        contest.turn(size_t(contest.below(2)));
      contest.now += 0.5 * contest.below(4);
    }
    EXPECT_FALSE(contest.winners.empty());
    num_epochs += int64_t(contest.winners.size());
  }
  EXPECT_GT(num_epochs, num_contests * 3 / 2) << "the lead changes hands";
}

TEST(Contest, NeverHasTwoWriters) {
  hold_contests(8);
}

TEST(Contest, NeverHasTwoWritersInTenThousand) {
  hold_contests(10'000);
}

}  // namespace
}  // namespace ashlar::launch
