// Drives the program as a user does: a scratch directory, processes, and what they leave.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace ashlar::integration {

inline const std::string kData = ASHLAR_FIXTURES;

using Scratch = testing_support::TemporaryDirectory;

struct Result {
  int code = -1;   // exit code; -1 if a signal ended it
  int signal = 0;  // the signal that ended it
  std::string out, err;
};

// One `LAUNCHER... ashlar ARGS...`, started in `directory`.
class Program {
 public:
  // before_exec runs in the child (limits); system calls only.  launcher: such as mpirun -n 2.
  Program(std::filesystem::path directory, const std::vector<std::string>& args,
          const std::function<void()>& before_exec = {},
          const std::vector<std::string>& launcher = {});
  ~Program();  // kills and reaps what still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  void send(int signal) const;
  bool running();
  pid_t pid() const { return pid_; }
  Result wait();

 private:
  void reap(int options);
  std::filesystem::path out_, err_;
  pid_t pid_;
  int status_ = 0;
  bool ended_ = false;
};

Result run(const Scratch& scratch, const std::vector<std::string>& args,
           const std::function<void()>& before_exec = {},
           const std::vector<std::string>& launcher = {});
// As run; fails the test with stderr unless the exit code is 0.  Returns stdout.
std::string run_ok(const Scratch& scratch, const std::vector<std::string>& args);

// The test corpus as dataset "text" of byte tokens.
void prepare_text(const Scratch& scratch);
// `train tiny.toml OVERRIDES...`
std::vector<std::string> train_args(const std::vector<std::string>& overrides = {});

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& text);
// Path below `directory` -> content, of every regular file.
std::map<std::string, std::string> read_tree(const std::filesystem::path& directory);

// The numbers of a step as metrics.jsonl prints them: enough digits for every bit.
struct StepLine {
  std::string loss, gradient_norm, load_entropy;
  bool operator==(const StepLine&) const = default;
};
void PrintTo(const StepLine& line, std::ostream* out);
// Every line of each step, in file order: a step that was done again after a kill has several.
using Steps = std::map<int64_t, std::vector<StepLine>>;
Steps read_steps(const std::filesystem::path& run_directory);
std::filesystem::path step_directory(const std::filesystem::path& run_directory, int64_t step);

// As train_args, in fp32 with 8 rows a step, into `directory`, on so many ranks that are threads.
std::vector<std::string> run_args(const std::string& directory, int num_ranks,
                                  std::vector<std::string> more = {});
// The launcher of so many ranks that are processes.
std::vector<std::string> mpirun(int num_ranks);
// The process of a rank that this mpirun started; 0: none.
pid_t process_of_rank(pid_t launcher, int rank);
// Losses of the same steps, the last line of each, within 1e-4.
void expect_close(const Steps& want, const Steps& got);
// A step is being written.
bool is_saving(const std::filesystem::path& checkpoints);
bool contains(const std::string& text, const std::string& part);
int count_of(const std::string& text, const std::string& part);

}  // namespace ashlar::integration
