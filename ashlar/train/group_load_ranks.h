// The ranks of a group that load a checkpoint together (checkpoint/load/load_ranks.h).  It uses the
// group's own lane, since nothing else is sent while a run loads.  No time-out of collectives runs
// meanwhile, since a rank that reads may be as late as its disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ashlar/checkpoint/load/load_ranks.h"
#include "ashlar/comm/group.h"

namespace ashlar::train {

class GroupLoadRanks final : public checkpoint::LoadRanks {
 public:
  explicit GroupLoadRanks(comm::Group& ranks);  // every rank calls it
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::string from_leader(std::string bytes) override;
  std::vector<std::string> all_gather(std::string_view bytes) override;
  void post(std::vector<Message> sends, std::vector<Message> receives) override;
  bool shares_memory() const override { return ranks_.shares_memory(); }
  checkpoint::LoadCommons& commons() override { return *commons_; }
  void wait() override;

 private:
  // Kept until its work is done.
  struct Posted {
    std::vector<comm::Transfer> sends, receives;
    comm::Work work;
  };
  comm::Group& ranks_;
  std::shared_ptr<checkpoint::LoadCommons> commons_;
  std::vector<std::unique_ptr<Posted>> posted_;
};

}  // namespace ashlar::train
