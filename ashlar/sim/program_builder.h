// Builds programs event by event: texts, kernels, groups and places are kept once.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ashlar/sim/program.h"

namespace ashlar::sim {

class ProgramBuilder {
 public:
  explicit ProgramBuilder(int num_ranks);

  int lane(int rank, std::string_view name);  // -1 for ""
  int group(std::string_view name, std::span<const int> ranks);
  int text(std::string_view text);

  void kernel(int rank, const KernelWork& work, const ProgramPlace& place = {});
  // operation: without `member` and messages.  ticket: counts the operations of the lane, from any
  // number; operations between two steps may be missing.
  void post(int rank, RankOperation operation, int64_t ticket,
            std::span<const TraceMessage> messages = {}, const ProgramPlace& place = {});
  void wait(int rank, int lane, int64_t ticket, const ProgramPlace& place = {});
  void end_step(int rank);

  RankPrograms& programs() { return programs_; }
  // Finds the operations that are waited for.  A wait for one that was neither posted by the
  // program nor before it is left out: nobody knows of it.
  // Errors   kData: a member of a group does not take part where others do; no step has ended.
  RankPrograms finish();

 private:
  using WorkKey = std::tuple<std::string, DType, int32_t, int32_t, int32_t, int32_t, int64_t,
                             int64_t, TraceEvent::Varies, int64_t>;
  struct Wait {
    size_t event;
    int64_t ticket;
  };
  struct Pending {
    std::vector<std::map<int64_t, int32_t>> positions;  // by lane and ticket
    std::vector<Wait> waits;
  };

  void add(int rank, ProgramEvent event, const ProgramPlace& place);
  void resolve_waits(int rank);
  void check_groups() const;

  RankPrograms programs_;
  std::vector<Pending> pending_;
  std::map<std::string, int32_t, std::less<>> texts_;
  std::map<WorkKey, int32_t> kernels_;
  std::map<std::pair<std::string, std::vector<int>>, int32_t> groups_;
  std::map<ProgramPlace, int32_t> places_;
};

}  // namespace ashlar::sim
