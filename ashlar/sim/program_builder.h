// Builds programs event by event: texts, kernels, groups and places are kept once.  A program may
// also be made from another's (like_rank.h).
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
  // ranks_for_each: above 1, only one of so many ranks is given a program.
  explicit ProgramBuilder(int num_ranks, int ranks_for_each = 1);

  int lane(int rank, std::string_view name);  // -1 for ""
  int group(std::string_view name, std::span<const int> ranks);
  int text(std::string_view text);
  int place(const ProgramPlace& place);

  void kernel(int rank, const KernelWork& work, const ProgramPlace& place = {});
  // operation: without `member` and messages.  ticket: tells the operations of a lane apart; the
  // first has the least.  Operations between two steps may be missing.
  void post(int rank, RankOperation operation, int64_t ticket,
            std::span<const TraceMessage> messages = {}, const ProgramPlace& place = {});
  void wait(int rank, int lane, int64_t ticket, const ProgramPlace& place = {}) {
    wait_at(rank, lane, ticket, this->place(place));
  }
  void end_step(int rank);
  // The same with `member` known, and numbers of places.
  void post_as_member(int rank, RankOperation operation, int64_t ticket,
                      std::span<const TraceMessage> messages, int place);
  void wait_at(int rank, int lane, int64_t ticket, int place);
  void repeat_kernel(int rank, const ProgramEvent& kernel) {
    programs_.ranks[size_t(rank)].events.push_back(kernel);
  }

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
    std::vector<std::vector<int64_t>> tickets;  // of the operations of each lane
    std::vector<Wait> waits;
  };

  void add(int rank, const ProgramEvent& event) {
    programs_.ranks[size_t(rank)].events.push_back(event);
  }
  void resolve_waits(int rank);
  void check_groups() const;
  void number_simulated();

  RankPrograms programs_;
  std::vector<Pending> pending_;
  std::map<std::string, int32_t, std::less<>> texts_;
  std::map<WorkKey, int32_t> kernels_;
  std::map<std::pair<std::string, std::vector<int>>, int32_t> groups_;
  std::map<ProgramPlace, int32_t> places_;
};

}  // namespace ashlar::sim
