// Many processes that start on one root at once; leases of other hosts.
#include "ashlar/checkpoint/root/lease.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "ashlar/core/fields.h"
#include "ashlar/core/signals.h"
#include "tests/checkpoint/crash_files.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/checkpoint/two_hosts.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::checkpoint {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int which) { close(ends[which]); }
  void put(char byte) { EXPECT_EQ(write(ends[1], &byte, 1), 1); }
  char get() {
    char byte = '?';
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    return byte;
  }
  int ends[2];
};

// The answer to a process that wants the root: 'h' it holds it, 'u' in use, '!' anything else.
char start_on(FileSystem& files, const std::string& root, std::optional<Lease>& lease) {
  static Log log = quiet_log();
  try {
    lease.emplace(files, root, log);
    return 'h';
  } catch (const Error& error) {
    const bool in_use = error.kind() == ErrorKind::kConfig &&
                        std::string(error.what()).find(" is in use: process ") != std::string::npos;
    if (!in_use) fprintf(stderr, "%s\n", error.what());
    return in_use ? 'u' : '!';
  }
}

// Starts so many processes on the root at once; all stay until every one has said how it went.
std::string race(const std::string& root, int num_processes, bool gives_back) {
  Pipe go, said, end;
  for (int i = 0; i < num_processes; ++i) {
    const pid_t child = fork();
    if (child != 0) continue;
    const auto files = posix_files();
    std::optional<Lease> lease;
    go.get();
    said.put(start_on(*files, root, lease));
    end.get();
    if (gives_back) lease.reset();
    _exit(0);
  }
  for (int i = 0; i < num_processes; ++i) go.put('g');
  std::string words;
  for (int i = 0; i < num_processes; ++i) words += said.get();
  for (int i = 0; i < num_processes; ++i) end.put('e');
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  std::sort(words.begin(), words.end());
  return words;
}

TEST(LeaseRace, OfManyStartersExactlyOneHoldsTheRoot) {
  const testing_support::TemporaryDirectory directory;
  // A round that does not give the root back leaves a dead lease to the next.
  for (int round = 0; round < 200; ++round)
    ASSERT_EQ(race(directory.path(), 5, round % 4 == 3), "huuuu") << "round " << round;
  ASSERT_EQ(race(directory.path(), 1, true), "h");
  EXPECT_TRUE(posix_files()->list(directory.path() / ".lease").empty());
}

// A starter that is killed at any moment of taking over a dead lease blocks nobody after it.
TEST(LeaseRace, AStarterKilledAtAnyCallLeavesTheRootToOneOther) {
  const testing_support::TemporaryDirectory directory;
  const std::string root = directory.path();
  bool survived = false;
  int crashes = 0;
  for (; !survived; ++crashes) {
    ASSERT_LT(crashes, 100);
    ASSERT_EQ(race(root, 1, false), "h");
    const pid_t child = fork();
    if (child == 0) {
      const auto posix = posix_files();
      const auto files =
          faulty_files(*posix, [&](int64_t call, std::string_view, const std::string&) {
            if (call == crashes) _exit(9);
            return Fault::kNone;
          });
      std::optional<Lease> lease;
      _exit(start_on(*files, root, lease) == 'h' ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_NE(WEXITSTATUS(status), 1);
    survived = WEXITSTATUS(status) == 0;
    ASSERT_EQ(race(root, 4, true), "huuu") << "killed at call " << crashes;
    EXPECT_LE(posix_files()->list(root + "/.lease").size(), 1u);
  }
  EXPECT_GT(crashes, 10);
}

// A link leads to somebody else's files: nothing is made or removed there.
TEST(Lease, ADirectoryThatIsALinkIsRefused) {
  const testing_support::TemporaryDirectory root;
  std::filesystem::create_directories(root / "elsewhere");
  std::filesystem::create_directories(root / "run");
  std::ofstream(root / "elsewhere/trainer.json.notes") << "precious";
  const auto files = posix_files();
  Log log([](std::string_view) {});
  for (const std::string target : {"elsewhere", "nowhere"}) {
    std::filesystem::create_symlink(root / target, root / "run/.lease");
    const std::string message =
        message_of(ErrorKind::kStorage, [&] { Lease(*files, root / "run", log); });
    EXPECT_NE(message.find("run/.lease: it is a link; expected a directory"), message.npos)
        << message;
    std::filesystem::remove(root / "run/.lease");
  }
  EXPECT_EQ(files->list(root / "elsewhere"), std::vector<std::string>{"trainer.json.notes"});
  EXPECT_FALSE(std::filesystem::exists(root / "nowhere"));
}

const std::string kLease = "root/.lease/trainer.json";

// A lease as programs wrote it that count no beats, and write it again every 60 s.
const std::string kOldText =
    R"({"format":"ashlar-lease","host":"far","boot":"5d1a","pid_namespace":"pid:[4026531836]",)"
    R"("pid":4711,"started":123456,"token":"0123456789abcdef0123456789abcdef"})"
    "\n";

// Files whose times are set by a clock that is wrong.
class SkewedFiles : public CrashFiles {
 public:
  std::optional<FileInfo> stat(const std::string& path,
                               LinkPolicy links = LinkPolicy::kRefuse) override {
    auto info = CrashFiles::stat(path, links);
    if (info) info->modified_s = time_s;
    return info;
  }
  int64_t time_s = 0;
};

class OtherHost : public testing::Test {
 protected:
  OtherHost() { files_.make_directories("root/.lease"); }
  // A lease of a process on another host, which counts the seconds that it watches.
  LeaseOptions starter(const std::function<void()>& every_second = [] {}) {
    LeaseOptions options;
    options.holder = process_on("b");
    options.sleep = [this, every_second](double seconds) {
      watched_s_ += seconds;
      every_second();
    };
    return options;
  }
  LeaseOptions holder() {
    LeaseOptions options;
    options.holder = process_on("a");
    return options;
  }
  std::string refusal(const LeaseOptions& options) {
    return message_of(ErrorKind::kConfig, [&] { Lease(files_, "root", log_, options); });
  }
  SkewedFiles files_;
  std::vector<std::string> lines_;
  Log log_{[this](std::string_view line) { lines_.emplace_back(line); }};
  double watched_s_ = 0;
  std::atomic<double> slept_s_ = 0;
};

TEST_F(OtherHost, ADeadHolderIsTakenOverAfterAMinuteWhateverTheClocksSay) {
  for (const int64_t time_s : {int64_t(0), int64_t(1) << 40}) {
    files_.time_s = time_s;
    watched_s_ = 0;
    lines_.clear();
    LeaseHolder killed = process_on("a");
    killed.refresh_s = 10;
    overwrite(files_, kLease, lease_text(killed, 12));
    Lease lease(files_, "root", log_, starter());
    EXPECT_TRUE(lease.taken_over());
    EXPECT_EQ(watched_s_, 60);
    ASSERT_EQ(lines_.size(), 6u);
    EXPECT_EQ(lines_[0],
              "waiting for the lease of root, held by process 7 on a: 0 s without a sign of life, "
              "taken over after 60");
    EXPECT_NE(lines_[5].find(": 50 s without"), std::string::npos);
    lease.check();
  }
}

// A rank on a node that is cut off lives on, and its launch has replaced it.
TEST_F(OtherHost, ALaterAttemptTakesOverFromALivingHolderAtOnce) {
  const auto of_attempt = [](LeaseOptions options, int64_t epoch, int64_t attempt) {
    options.holder->epoch = epoch;
    options.holder->attempt = attempt;
    return options;
  };
  for (const auto& [epoch, attempt] : {std::pair(1, 3), std::pair(2, 1)}) {
    Lease cut_off(files_, "root", log_, of_attempt(holder(), 1, 2));
    Lease lease(files_, "root", log_, of_attempt(starter(), epoch, attempt));
    EXPECT_EQ(watched_s_, 0);
    lease.check();
    const std::string message = message_of(ErrorKind::kConfig, [&] { cut_off.check(); });
    EXPECT_NE(message.find(fmt::format("attempt {} in place of attempt 2", attempt)), message.npos)
        << message;
    EXPECT_FALSE(cut_off.fence().open());
  }
  // An earlier leader's attempt has no such right, however high its number.
  Lease lease(files_, "root", log_, of_attempt(holder(), 3, 1));
  EXPECT_NE(refusal(of_attempt(starter([&] { lease.refresh(); }), 2, 9)).find("is in use"),
            std::string::npos);
}

TEST_F(OtherHost, ALivingHolderRefusesAtItsFirstSignOfLife) {
  Lease lease(files_, "root", log_, holder());
  int64_t seconds = 0;
  const LeaseOptions options = starter([&] {
    if (++seconds == 9) lease.refresh();
  });
  const std::string message = refusal(options);
  EXPECT_NE(message.find("root is in use: process 7 on a trains into it; stop that process"),
            message.npos)
      << message;
  EXPECT_EQ(watched_s_, 9);
  lease.check();
}

TEST_F(OtherHost, WhoEndsWhileItIsWatchedIsFollowedAtOnce) {
  std::optional<Lease> lease;
  lease.emplace(files_, "root", log_, holder());
  const Lease next(files_, "root", log_, starter([&] { lease.reset(); }));
  EXPECT_FALSE(next.taken_over());
  EXPECT_EQ(watched_s_, 1);
}

TEST_F(OtherHost, ALeaseOfAnOlderProgramIsGivenSixMinutes) {
  overwrite(files_, kLease, kOldText);
  const std::string message = refusal(starter([&] { files_.time_s += watched_s_ == 59; }));
  EXPECT_NE(message.find("process 4711 on far"), message.npos) << message;
  EXPECT_EQ(watched_s_, 59);
  watched_s_ = 0;
  const Lease lease(files_, "root", log_, starter());
  EXPECT_EQ(watched_s_, 360);
}

// That program's requirements of the text; it would not judge this holder dead.
TEST_F(OtherHost, AnOlderProgramReadsTheText) {
  const Lease lease(files_, "root", log_);
  const std::string text = read_all(files_, kLease);
  EXPECT_LE(text.size(), 4096u);
  const Json json = parse_json(text, kLease, ErrorKind::kCorrupt);
  const Fields fields(json, kLease);
  const LeaseHolder me = this_process();
  EXPECT_EQ(fields.text("host"), me.host);
  EXPECT_EQ(fields.text("boot"), me.boot);
  EXPECT_EQ(fields.text("pid_namespace"), me.pid_namespace);
  EXPECT_EQ(fields.count("pid"), me.pid);
  EXPECT_EQ(fields.count("started"), me.started);
}

TEST_F(OtherHost, ASignalEndsTheWait) {
  overwrite(files_, kLease, kOldText);
  const StopSignals signals;
  const std::string message = message_of(
      ErrorKind::kPreempted, [&] { Lease(files_, "root", log_, starter([] { raise(SIGTERM); })); });
  EXPECT_EQ(message,
            "TERM came while this process waited for the lease of root; nothing was changed");
  EXPECT_EQ(watched_s_, 1);
  EXPECT_EQ(read_all(files_, kLease), kOldText);
}

// Whatever the holder does meanwhile: a thread of the lease's own shows that it lives.
TEST(LeaseThread, RefreshesByItself) {
  const auto files = memory_files();
  files->make_directories("root");
  Log log = quiet_log();
  LeaseOptions options;
  options.refresh_s = 0.001;
  std::set<std::string> texts;
  const Lease lease(*files, "root", log, options);
  while (texts.size() < 5) texts.insert(read_all(*files, kLease));
}

TEST_F(OtherHost, ALostLeaseIsAnErrorOfTheSave) {
  CheckpointOptions options = direct();
  options.lease = holder();
  options.lease.now = [this] { return slept_s_.load(); };
  std::optional<Checkpointer> first, second;
  first.emplace(files_, "root", options, log_);
  TinyRun run;
  run.fill(1);
  first->save(run.request(1));
  options.lease = starter();
  second.emplace(files_, "root", options, log_);
  slept_s_ = 60;  // the first, meanwhile
  run.fill(2);
  EXPECT_EQ(
      message_of(ErrorKind::kConfig, [&] { first->save(run.request(2)); }),
      "step 2 is not saved: before its commit: root was taken over by process 7 on b, because "
      "this process did not renew its lease for 60 s; stop one of the two");
  second->save(run.request(2));
  first.reset();
  expect_holds(files_, "root/" + step_name(2), 2);
  second.reset();
  EXPECT_EQ(files_.list("root/.lease").size(), 2u);  // the guards of both steps
}

// Damage that people do to the directories of a live run is reported as such, with the remedy.
struct Meddled {
  const char* name;
  void (*meddle)(FileSystem& files, const std::string& fence);
  const char* gone;  // what is said to be; "": the run goes on
  bool other_came = false;
};

TEST(Lease, DirectoriesThatWereRemovedOrMovedAreNamed) {
  const std::string why = " was removed or moved while this process trains into run/root";
  const Meddled cases[] = {
      {"nothing", [](FileSystem&, const std::string&) {}, ""},
      {"the lease's file",
       [](FileSystem& files, const std::string&) { files.remove("run/root/.lease/trainer.json"); },
       ""},
      {"the fence", [](FileSystem& files, const std::string& fence) { files.remove_all(fence); },
       "run/root/.lease/fence-"},
      {"the directory of leases",
       [](FileSystem& files, const std::string&) { files.remove_all("run/root/.lease"); },
       "run/root/.lease"},
      {"the root", [](FileSystem& files, const std::string&) { files.remove_all("run/root"); },
       "run/root"},
      {"the run", [](FileSystem& files, const std::string&) { files.remove_all("run"); },
       "run/root"},
      {"the root, moved",
       [](FileSystem& files, const std::string&) { files.rename_new("run/root", "run/other"); },
       "run/root"},
      {"the root, moved, and another made",
       [](FileSystem& files, const std::string&) {
         files.rename_new("run/root", "run/other");
         files.make_directories("run/root/.lease");
       },
       "run/root/.lease/fence-"},
      {"the directory of leases, and another came",
       [](FileSystem& files, const std::string&) {
         files.remove_all("run/root/.lease");
         files.make_directories("run/root/.lease");
         write_text(files, "run/root/.lease/trainer.json", lease_text(process_on("b"), 0));
       },
       "run/root/.lease/fence-", true},
  };
  for (const Meddled& c : cases) {
    SCOPED_TRACE(c.name);
    const auto files = memory_files();
    files->make_directories("run/root");
    std::string said;
    Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
    double now_s = 0;
    LeaseOptions options;
    options.now = [&] { return now_s; };
    {
      Lease lease(*files, "run/root", log, options);
      c.meddle(*files, fences_in(*files, "run/root").at(0));
      now_s = 59;
      if (*c.gone == '\0') {
        lease.check();
        lease.refresh();
      } else {
        const std::string message = message_of(ErrorKind::kConfig, [&] { lease.check(); });
        EXPECT_TRUE(message.starts_with(c.gone)) << message;
        EXPECT_NE(message.find(why), message.npos) << message;
        EXPECT_NE(message.find(c.other_came ? "process 7 on b has taken it since; stop one"
                                            : "put back what was moved, and start again"),
                  message.npos)
            << message;
        // After a minute of silence it is another that may have come and gone.
        now_s = 61;
        EXPECT_NE(message_of(ErrorKind::kConfig, [&] { lease.check(); })
                      .find("did not renew its lease for 60 s; stop one of the two"),
                  message.npos);
      }
    }
    EXPECT_EQ(said, "");
  }
}

// Whatever call of a save fails first, it is the loss of the root that is told.
TEST(Lease, ASaveIntoARootThatWasRemovedOrMovedSaysSo) {
  for (const bool moved : {false, true}) {
    const testing_support::TemporaryDirectory directory;
    const std::string root = directory.path() / "root";
    const auto files = posix_files();
    Log log = quiet_log();
    Checkpointer checkpoints(*files, root, direct(), log);
    TinyRun run;
    run.fill(1);
    checkpoints.save(run.request(1));
    moved ? files->rename_new(root, root + "-moved") : files->remove_all(root);
    run.fill(2);
    const std::string message =
        message_of(ErrorKind::kConfig, [&] { checkpoints.save(run.request(2)); });
    EXPECT_EQ(message,
              fmt::format("step 2 is not saved: {0} was removed or moved while this process trains "
                          "into {0}: put back what was moved, and start again, which goes on from "
                          "the newest step that is there",
                          root));
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
