#include "tests/integration/support.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

std::atomic<int> num_programs{0};

}  // namespace

Program::Program(fs::path directory, const std::vector<std::string>& args,
                 const std::function<void()>& before_exec,
                 const std::vector<std::string>& launcher) {
  const std::string base = fmt::format("{}.output{}", directory.string(), num_programs++);
  out_ = base + ".out";
  err_ = base + ".err";
  std::vector<std::string> words = launcher;
  words.push_back(ASHLAR_BINARY);
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (out < 0 || err < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
  if (chdir(directory.c_str()) != 0) _exit(126);
  signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
  if (before_exec) before_exec();
  execv(argv[0], argv.data());
  _exit(127);
}

Program::~Program() {
  if (!ended_) {
    send(SIGKILL);
    reap(0);
  }
  std::error_code ignored;
  fs::remove(out_, ignored);
  fs::remove(err_, ignored);
}

void Program::send(int signal) const {
  kill(pid_, signal);
}

void Program::reap(int options) {
  if (!ended_ && waitpid(pid_, &status_, options) == pid_) ended_ = true;
}

bool Program::running() {
  reap(WNOHANG);
  return !ended_;
}

Result Program::wait() {
  reap(0);
  Result result;
  if (WIFEXITED(status_)) result.code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
  result.out = read_file(out_);
  result.err = read_file(err_);
  return result;
}

Result run(const Scratch& scratch, const std::vector<std::string>& args,
           const std::function<void()>& before_exec, const std::vector<std::string>& launcher) {
  return Program(scratch.path(), args, before_exec, launcher).wait();
}

std::string run_ok(const Scratch& scratch, const std::vector<std::string>& args) {
  const Result result = run(scratch, args);
  EXPECT_EQ(result.code, 0) << fmt::format("ashlar {}\n", fmt::join(args, " ")) << result.err;
  return result.out;
}

void prepare_text(const Scratch& scratch) {
  run_ok(scratch, {"data", "prepare", "--input", kData + "/vectors/stones.txt", "--documents",
                   "blank-line", "--tokenizer", "byte", "--out", "text"});
}

std::vector<std::string> train_args(const std::vector<std::string>& overrides) {
  std::vector<std::string> args{"train", kData + "/recipes/tiny.toml"};
  args.insert(args.end(), overrides.begin(), overrides.end());
  return args;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  EXPECT_TRUE(out.good()) << path;
}

std::map<std::string, std::string> read_tree(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), directory).string()] = read_file(entry.path());
  return files;
}

void PrintTo(const StepLine& line, std::ostream* out) {
  *out << "loss " << line.loss << " norm " << line.gradient_norm << " entropy "
       << line.load_entropy;
}

Steps read_steps(const fs::path& run_directory) {
  Steps steps;
  std::istringstream text(read_file(run_directory / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    EXPECT_FALSE(row.is_discarded()) << "no JSON: " << line;
    if (row.is_discarded() || row.contains("event") || !row.contains("samples")) continue;
    // A model without experts has no load_entropy.
    const auto text = [&](const char* key) { return row.contains(key) ? row[key].dump() : ""; };
    steps[row["step"].get<int64_t>()].push_back(
        {text("loss"), text("gradient_norm"), text("load_entropy")});
  }
  return steps;
}

fs::path step_directory(const fs::path& run_directory, int64_t step) {
  return run_directory / "checkpoints" / fmt::format("step-{:012}", step);
}

std::vector<std::string> run_args(const std::string& directory, int num_ranks,
                                  std::vector<std::string> more) {
  more.insert(more.end(), {"train.micro_batch=1", "train.global_batch=8", "train.precision=fp32",
                           "train.run_dir=" + directory});
  std::vector<std::string> args = train_args(more);
  if (num_ranks > 1) args.insert(args.end(), {"--ranks", std::to_string(num_ranks)});
  return args;
}

std::vector<std::string> mpirun(int num_ranks) {
  return {ASHLAR_MPIEXEC, "--allow-run-as-root",    "--oversubscribe", "--bind-to", "none",
          "-n",           std::to_string(num_ranks)};
}

void expect_close(const Steps& want, const Steps& got) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [step, lines] : want)
    EXPECT_NEAR(std::stod(lines[0].loss), std::stod(got.at(step).back().loss), 1e-4) << step;
}

bool is_saving(const fs::path& checkpoints) {
  std::error_code error;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(".tmp-step-")) return true;
  return false;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

pid_t process_of_rank(pid_t launcher, int rank) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream stat(entry.path() / "stat"), environment(entry.path() / "environ");
    std::string text;
    std::getline(stat, text);
    const size_t end = text.rfind(')');  // of the name; state and parent follow
    if (end == text.npos || text.size() < end + 4 || std::stol(text.substr(end + 4)) != launcher)
      continue;
    for (std::string word; std::getline(environment, word, '\0');)
      if (word == "OMPI_COMM_WORLD_RANK=" + std::to_string(rank)) return std::stoi(name);
  }
  return 0;
}

}  // namespace ashlar::integration
