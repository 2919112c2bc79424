// Kills training runs with SIGKILL, again and again, and holds what is left against an oracle.
//
//   kill_campaign [--kills N] [--seed N] [--dir DIR]       kills in all modes together
//
// How it works.  This process is the oracle: it starts the same program as a child that trains
// (`child`), reads what that announces, kills it, and then looks at the disk.
//
//   reference    for each mode a run that nobody kills, which keeps every step: the hash of the
//                state after each
//   a round      start; kill; every step that was announced is there or an even newer one is, and
//                the newest has the reference's hash; the next start goes on from it
//   the kill     at a moment by chance, before or after the first step of this start; or by the
//                child itself, at the K-th call of the file system below checkpoints/, K by chance
//                (variable ASHLAR_CAMPAIGN_CALL: "K RANK"); all ranks, or of processes any one
//
// A run that comes to its end is removed, and the next one begins.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/clock.h"
#include "ashlar/data/indexed.h"
#include "ashlar/train/start.h"

namespace ashlar {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 60;
constexpr double kRestart_s = 10;  // no start may take longer to go on

struct Mode {
  const char* name;
  int threads, processes;
  std::vector<std::string> overrides;
};
const std::vector<Mode> kModes = {
    {"1 rank", 1, 1, {}},
    {"4 threads", 4, 1, {"parallel.tp=2", "parallel.zero=1"}},
    {"4 processes", 1, 4, {"parallel.zero=3", "parallel.zero_layout=bucketed"}},
    {"4 writers, threads", 4, 1, {"parallel.zero=1", "checkpoint.gather_mib=0"}},
    {"4 writers, processes", 1, 4, {"parallel.tp=2", "checkpoint.gather_mib=0"}},
};

struct Totals {
  int64_t kills = 0, starts = 0, finished = 0, lost = 0, wrong = 0, from_zero = 0, loops = 0,
          slow = 0;
  double slowest_s = 0;
  bool good() const { return lost + wrong + from_zero + loops + slow == 0; }
};

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "kill_campaign: {}\n", text);
  std::exit(1);
}

// ---- the child

Recipe recipe_of(const Mode& mode, const std::string& directory, int64_t keep) {
  std::vector<std::string> overrides = {
      "train.micro_batch=1",
      "train.global_batch=8",
      "train.precision=fp32",
      "train.eval_every=0",
      "train.log_every=1000",
      "health.max_norm_ratio=1e9",
      "health.max_loss_rise=1e9",
      "checkpoint.every=2",
      fmt::format("checkpoint.keep={}", keep),
      fmt::format("train.steps={}", kSteps),
      "data.tokenizer=byte",
      "data.train=" + fs::path(directory).parent_path().string() + "/text",
      "train.run_dir=" + directory};
  overrides.insert(overrides.end(), mode.overrides.begin(), mode.overrides.end());
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

int train_as_child(const Mode& mode, const std::string& directory, int64_t keep) {
  int64_t fatal_call = -1;
  int fatal_rank = 0;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (const char* text = std::getenv("ASHLAR_CAMPAIGN_CALL"))
    std::sscanf(text, "%ld %d", &fatal_call, &fatal_rank);
  if (rank && std::atoi(rank) != fatal_rank) fatal_call = -1;
  std::atomic<int64_t> calls{0};
  const auto posix = posix_files();
  const auto files = faulty_files(*posix, [&](int64_t, std::string_view, const std::string& path) {
    if (path.find("/checkpoints") != path.npos && calls++ == fatal_call) raise(SIGKILL);
    return Fault::kNone;
  });
  Log log([](std::string_view line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  });
  train::start_run(recipe_of(mode, directory, keep), *files, log,
                   {mode.threads, [](std::string_view message) { fmt::print("{}\n", message); }});
  return 0;
}

// ---- the oracle

// Bytes of every tensor of a step, in the order of its index.
uint64_t hash_of(FileSystem& files, const std::string& step) {
  const checkpoint::StepReader reader(files, step);
  std::vector<std::vector<std::byte>> data;
  std::vector<Piece> pieces;
  for (const checkpoint::IndexTensor& tensor : reader.index().tensors) {
    if (tensor.alias) continue;
    const LogicalTensor& logical = tensor.logical;
    data.emplace_back(size_t(logical.global_shape.numel() * size_of(logical.dtype)));
    pieces.push_back({logical,
                      Box::whole(logical.global_shape),
                      {data.back().data(), logical.dtype, Device::kCpu, logical.global_shape}});
  }
  reader.load(pieces);
  std::map<std::string, uint64_t> hashes;  // by name: other layouts list tensors in another order
  for (size_t i = 0; i < pieces.size(); ++i) hashes[pieces[i].logical.name] = xxh3_64(data[i]);
  std::string text;
  for (const auto& [name, hash] : hashes) text += fmt::format("{} {:016x}\n", name, hash);
  return xxh3_64(std::as_bytes(std::span(text)));
}

// A start of the program on a run: its processes are a group of their own.
class Start {
 public:
  Start(const Mode& mode, const std::string& directory, int64_t keep,
        const std::string& fatal_call = "") {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
    const std::string self = fs::read_symlink("/proc/self/exe");
    std::vector<std::string> words;
    if (mode.processes > 1)
      words = {
          ASHLAR_MPIEXEC, "--allow-run-as-root",         "--oversubscribe", "--bind-to", "none",
          "-n",           std::to_string(mode.processes)};
    words.insert(words.end(), {self, "child", mode.name, directory, std::to_string(keep)});
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      if (!fatal_call.empty()) setenv("ASHLAR_CAMPAIGN_CALL", fatal_call.c_str(), 1);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    setpgid(pid_, pid_);
    close(ends[1]);
    out_ = ends[0];
  }
  ~Start() {
    kill_all();
    while (!wait_for(1, [] { return false; })) {
    }
    close(out_);
  }

  // Reads what the program prints until it ends (true), or so long, or until `enough` says so.
  template <typename F>
  bool wait_for(double seconds, F&& enough) {
    const auto begin = Clock::now();
    while (!ended_ && seconds_since(begin) < seconds && !enough()) read_some();
    return ended_;
  }
  void kill_all() {
    if (!ended_) kill(-pid_, SIGKILL);
  }
  // Picks one of mpirun's processes at random; false if there is none yet.
  bool kill_one(const std::string& directory, std::mt19937_64& random) {
    const std::vector<pid_t> ranks = processes_of(directory);
    if (ranks.empty()) return false;
    return kill(ranks[random() % ranks.size()], SIGKILL) == 0;
  }
  // Processes that train into the directory, except the launcher.
  static std::vector<pid_t> processes_of(const std::string& directory) {
    std::vector<pid_t> found;
    std::error_code none;
    for (fs::directory_iterator at("/proc", none), end; at != end; at.increment(none)) {
      const std::string name = at->path().filename();
      if (name.find_first_not_of("0123456789") != name.npos) continue;
      const int file = open((at->path() / "cmdline").c_str(), O_RDONLY | O_CLOEXEC);
      char text[4096];
      const ssize_t length = file < 0 ? 0 : read(file, text, sizeof text);
      if (file >= 0) close(file);
      const std::string_view line(text, size_t(std::max<ssize_t>(0, length)));
      const size_t child = line.find(std::string_view("\0child\0", 7));
      if (child != line.npos && line.substr(0, child).find('\0') == line.npos &&
          line.find(directory) != line.npos)
        found.push_back(pid_t(std::stol(name)));
    }
    return found;
  }

  double age_s() const { return seconds_since(begin_); }
  const std::string& said() const { return said_; }
  bool succeeded() const { return ended_ && WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  std::string ending() const {
    return WIFSIGNALED(status_) ? fmt::format("signal {}", WTERMSIG(status_))
                                : fmt::format("exit code {}", WEXITSTATUS(status_));
  }
  // The last step in "... saved DIRECTORY ..."; -1: none was announced.
  int64_t announced() const {
    int64_t step = -1;
    for (size_t at = said_.find(" saved "); at != said_.npos; at = said_.find(" saved ", at + 1)) {
      const size_t name = said_.find("/step-", at), end = said_.find('\n', at);
      if (name < end && end != said_.npos) step = std::max(step, std::stol(said_.substr(name + 6)));
    }
    return step;
  }
  // The step that this start went on from; -1: it has not said so.
  int64_t continued() const {
    constexpr std::string_view kWords = "continuing after step ";
    const size_t at = said_.find(kWords);
    return at == said_.npos ? -1 : std::stol(said_.substr(at + kWords.size()));
  }
  // It finds a step that was committed and not announced to be the last of the run.
  bool found_the_end() const { return said_.find("the run is finished") != said_.npos; }
  bool trains() const { return said_.find("first step finished") != said_.npos || found_the_end(); }

 private:
  void read_some() {
    pollfd ready{out_, POLLIN, 0};
    char text[4096];
    if (open_ && poll(&ready, 1, 5) > 0) {
      const ssize_t count = read(out_, text, sizeof text);
      if (count > 0) said_.append(text, size_t(count));
      open_ = count > 0;
    }
    if (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (waitpid(pid_, &status_, WNOHANG) == pid_) {
      ended_ = true;
      for (ssize_t count;
           open_ && poll(&ready, 1, 0) > 0 && (count = read(out_, text, sizeof text)) > 0;)
        said_.append(text, size_t(count));
    }
  }

  pid_t pid_;
  int out_ = -1, status_ = 0;
  bool ended_ = false, open_ = true;
  std::string said_;
  Clock::time_point begin_ = Clock::now();
};

class Campaign {
 public:
  Campaign(const Mode& mode, const fs::path& directory, uint64_t seed)
      : mode_(mode), directory_((directory / "run").string()), random_(seed) {}

  Totals run(int64_t kills) {
    make_reference();
    bool begins = true;
    while (totals_.kills < kills) begins = round(begins);
    remove_all();
    return totals_;
  }

 private:
  std::string root() const { return directory_ + "/checkpoints"; }
  void remove_all() const { fs::remove_all(directory_); }

  void make_reference() {
    remove_all();
    Start start(mode_, directory_, 1000);
    start.wait_for(300, [] { return false; });
    if (!start.succeeded()) fail("the reference run failed: " + start.said());
    for (const auto& ref : checkpoint::committed_steps(*files_, root()))
      reference_[ref.step] = hash_of(*files_, ref.directory);
    if (int64_t(reference_.size()) != kSteps / 2) fail("the reference run lacks steps");
    remove_all();
  }

  std::string chance_of_call() {
    if (random_() % 2) return "";
    return fmt::format("{} {}", random_() % 900, random_() % uint64_t(mode_.processes));
  }

  // One start and its end.  True: the run is done, and the next round begins another.
  bool round(bool begins) {
    if (begins) {
      remove_all();
      announced_ = -1;
    }
    const std::string call = chance_of_call();
    ++totals_.starts;
    Start start(mode_, directory_, 3, call);
    // Half of the kills come before the first step, where a start takes over what another left.
    const bool early = random_() % 2;
    const auto trains = [&] { return start.trains(); };
    if (!early && !start.wait_for(kRestart_s, trains) && !start.trains()) {
      ++totals_.slow;
      fmt::print("SLOW: after {:.1f} s this start has not trained: {}\n", start.age_s(),
                 start.said());
    }
    if (!early && start.trains()) totals_.slowest_s = std::max(totals_.slowest_s, start.age_s());
    const bool ended = start.wait_for(double(random_() % 1000) / 1000 * 0.8, [] { return false; });
    if (!ended) {
      const bool one = mode_.processes > 1 && random_() % 2;
      if (!one || !start.kill_one(directory_, random_)) start.kill_all();
    }
    if (!start.wait_for(60, [] { return false; })) fail("a killed run does not end");
    await_death();
    look(start);
    if (start.succeeded()) {
      ++totals_.finished;
      return true;
    }
    ++totals_.kills;
    // Ended by itself, though nobody killed it: the next start would end likewise.
    if (ended && call.empty()) {
      ++totals_.loops;
      fmt::print("LOOP: a start that nobody killed ended with {}: {}\n", start.ending(),
                 start.said());
    }
    return false;
  }

  void await_death() {
    for (int i = 0; i < 3000 && !Start::processes_of(directory_).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (const pid_t left : Start::processes_of(directory_)) kill(left, SIGKILL);
  }

  void look(const Start& start) {
    const int64_t continued = start.continued();
    if (announced_ >= 0 && start.trains() && continued < 0 && !start.found_the_end()) {
      ++totals_.from_zero;
      fmt::print("FROM 0: step {} was announced\n", announced_);
    }
    if (continued >= 0 && continued < announced_) {
      ++totals_.lost;
      fmt::print("LOST: continued from {} though {} was announced\n", continued, announced_);
    }
    announced_ = std::max(announced_, start.announced());
    std::optional<checkpoint::StepRef> newest;
    try {
      newest =
          checkpoint::find_newest(*files_, root(), checkpoint::VerifyLevel::kDeep, quiet_).newest;
    } catch (const Error& error) {
      fmt::print("LOST: {}\n", error.what());
    }
    if (announced_ >= 0 && (!newest || newest->step < announced_)) {
      ++totals_.lost;
      fmt::print("LOST: step {} was announced; the newest is {}\n", announced_,
                 newest ? newest->step : -1);
    }
    if (newest && hash_of(*files_, newest->directory) != reference_[newest->step]) {
      ++totals_.wrong;
      fmt::print("WRONG: step {} holds other bytes than the straight run's\n", newest->step);
    }
  }

  const Mode& mode_;
  const std::string directory_;
  std::mt19937_64 random_;
  std::unique_ptr<FileSystem> files_ = posix_files();
  Log quiet_{[](std::string_view) {}};
  std::map<int64_t, uint64_t> reference_;
  int64_t announced_ = -1;
  Totals totals_;
};

void make_dataset(const fs::path& directory) {
  const auto files = posix_files();
  fs::create_directories(directory);
  const std::string prefix = directory / "text";
  Outputs outputs(*files, {prefix + ".bin", prefix + ".idx"}, {});
  data::IndexedWriter writer(outputs, prefix, data::token_type_for(256));
  for (int document = 0; document < 200; ++document) {
    std::vector<int32_t> tokens(30);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t((document * 31 + i * i) % 251);
    writer.add(tokens);
  }
  writer.seal();
  outputs.publish();
}

int run_campaign(int64_t kills, uint64_t seed, const fs::path& directory) {
  fs::remove_all(directory);
  make_dataset(directory);
  Totals all;
  for (const Mode& mode : kModes) {
    const Totals t = Campaign(mode, directory, seed++).run(kills);
    fmt::print(
        "kill: {:<12} {} kills in {} starts, {} runs to their end; announced steps lost {}, wrong "
        "bytes {}, starts from 0 {}, restart loops {}, starts over {:.0f} s {} (slowest {:.1f} "
        "s)\n",
        mode.name, t.kills, t.starts, t.finished, t.lost, t.wrong, t.from_zero, t.loops, kRestart_s,
        t.slow, t.slowest_s);
    std::fflush(stdout);
    all.kills += t.kills;
    all.lost += t.lost + t.wrong + t.from_zero + t.loops + t.slow;
  }
  fs::remove_all(directory);
  fmt::print("kill: {} kills, {}\n", all.kills, all.lost == 0 ? "nothing lost" : "FAILED");
  return all.lost == 0 ? 0 : 1;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[0] == "child") {
    for (const Mode& mode : kModes)
      if (mode.name == arguments[1])
        return train_as_child(mode, arguments[2], std::stoll(arguments[3]));
  }
  int64_t kills = 20;
  uint64_t seed = 20260101;
  std::string directory = (fs::temp_directory_path() / fmt::format("kills-{}", getpid())).string();
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--kills") kills = std::stoll(arguments[i + 1]);
    if (arguments[i] == "--seed") seed = std::stoull(arguments[i + 1]);
    if (arguments[i] == "--dir") directory = arguments[i + 1];
  }
  return run_campaign(kills, seed, fs::absolute(directory));
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  try {
    return ashlar::run({argv + 1, argv + argc});
  } catch (const ashlar::Error& error) {
    fmt::print("{}\n", error.what());
    return error.exit_code();
  }
}
