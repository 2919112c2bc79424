// The lines that ranks print, told apart although they come through one pipe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::launch {

struct OutputLine {
  int rank = -1;  // -1: the starter's own line
  std::string text;
};

// "[1,3]<stderr>:text", as mpirun --tag-output marks a line of a rank; other lines are its own.
OutputLine parse_tagged(std::string_view line);

// " 3: text", as srun --label marks a line of a rank; other lines are its own.
OutputLine parse_labelled(std::string_view line);

// The rank that a starter blames in this line of its own, and its end, if the line states it:
//   mpirun noticed that process rank 1 with PID 0 on node n07 exited on signal 9 (Killed).
//   Process name: [[25486,1],1]
//   srun: error: n07: task 1: Exited with exit code 24
//   srun: error: n07: tasks 1-3: Killed
struct BlamedRank {
  int rank = -1, exit_code = 0, signal = 0;
};
std::optional<BlamedRank> blamed_rank(std::string_view line);
// The node that Slurm has given up, with all processes of its job there, as this line of srun says:
//   srun: error: Node failure on n07
// "": it says nothing of the kind.
std::string failed_node(std::string_view line);
// The rank that an error begins with: "rank 2 computed wrong gradients".  nullopt: it does not.
std::optional<int> accused_rank(std::string_view error);

// Cuts a stream into lines.  A line of more than kLongestLine bytes is cut there.
class LineCutter {
 public:
  static constexpr size_t kLongestLine = 1 << 16;
  void add(std::string_view bytes, const std::function<void(std::string_view line)>& take);
  void finish(const std::function<void(std::string_view line)>& take);  // what lacks a newline

 private:
  std::string rest_;
};

}  // namespace ashlar::launch
