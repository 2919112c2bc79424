// The protocol of saves on the control links, as one rank runs it, without links, threads and
// clocks: messages come in, messages go out, and the caller passes the time.  save_channel.h runs
// it on links.
//
//   up     a part, when the parts of this rank and of all its children are there; a failure, at
//          once; the activity of the slowest ranks, every heartbeat_s; the result of reading back
//   down   the result of an attempt; the ranks whose boxes the leader lacks; the files that each
//          rank is to read back; that a part or a result did not arrive
//
// Every message may be lost, doubled or late.  A heartbeat lists the open attempts and the messages
// sent for each, so that a missing part, result or order is sent again; a new link has the same
// effect at once.  The first part that a child sends counts, and it covers its whole subtree.
//   When a link is lost for good, the tree is broken, for all ranks and for ever: ranks tell each
// other as far as links reach, and the others lose their links in time.  Open attempts then go
// through the directory of the attempt (parts.h).
//
// Errors   messages throw none: one that cannot be read breaks the tree, with a reason.
// Threads  one caller at a time.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/writers/phases.h"
#include "ashlar/control/tree.h"
#include "ashlar/control/wire.h"

namespace ashlar::checkpoint {

struct AttemptResult {
  Id attempt{};
  int64_t step = 0;
  bool committed = false;
  std::string why;  // not committed
};

// A file of a writer, which its parent looks for, to detect ranks that share no directory.
struct Witness {
  std::string path;  // in the attempt's directory; "": it has no file
  int64_t size_bytes = 0;
};

// Parts of a subtree: encoded WriterParts, how many, and the sum of their cover hashes.
struct GatheredParts {
  uint32_t count = 0;
  CoverHash cover;
  std::vector<std::byte> entries;
  void add(const GatheredParts& other);
};

// The result of reading back by the ranks of a subtree.
struct ReadBackResult {
  uint32_t count = 0;  // of ranks that have read
  int64_t bytes = 0;
  int bad_rank = -1;  // the lowest reader that found damage, or could not read; -1: all is well
  bool damaged = false;
  std::string why;
  std::vector<RankTimes> ranks = {};  // what each spent in Phase::kVerify
  void add(const ReadBackResult& other);
};

struct SaveTreeOptions {
  double heartbeat_s = 2;
  double silent_s = 9;  // without a word: a child is silent
};

class SaveTree {
 public:
  struct Outgoing {
    int to;
    uint16_t kind;
    std::vector<std::byte> body;
  };
  static constexpr int kSlowest = 4;  // ranks that a heartbeat names, of an attempt

  SaveTree(std::shared_ptr<const control::Tree> tree, int rank, std::string host,
           const SaveTreeOptions& options = {});

  // The links.
  void linked(int neighbour, double now);
  void lost(int neighbour, const std::string& why);  // "": it ended in good order
  void received(int from, uint16_t kind, std::span<const std::byte> body, double now);
  void tick(double now);
  std::vector<Outgoing> take_outgoing();

  // Events of this rank.  with_boxes is sent if the leader does not know `layout` yet.
  void begin(const Id& attempt, int64_t step, double now);
  void set_status(RankStatus status);  // its rank and host are filled in
  void part(const Id& attempt, const Id& layout, const CoverHash& cover, Witness witness,
            std::vector<std::byte> without_boxes, std::vector<std::byte> with_boxes);
  // A child's file that this rank is to look for; then it calls seen() or fail().  The child's part
  // counts from then on.
  struct ToSee {
    int child;
    Witness witness;
  };
  std::optional<ToSee> to_see(const Id& attempt) const;
  void seen(const Id& attempt, int child);
  void fail(const Id& attempt, int64_t step, const std::string& why, double now);
  std::optional<AttemptResult> result(const Id& attempt) const;
  bool broken() const { return broken_.has_value(); }
  const std::string& why_broken() const { return *broken_; }  // "": a rank ended in good order
  void break_off(const std::string& why);

  // The leader's.
  struct Failure {
    int rank;
    std::string why;
  };
  std::optional<Failure> failure(const Id& attempt) const;
  const GatheredParts* gathered(const Id& attempt);  // null until the parts of all others are there
  // Asks ranks for their boxes, and asks again only after some seconds.
  void ask(const Id& attempt, const std::vector<int>& ranks, double now);
  // The boxes that were asked for and have arrived, as encoded WriterParts, by rank.
  std::map<int, std::vector<std::byte>> boxes(const Id& attempt) const;
  void decide(const AttemptResult& result);
  // Unfinished ranks of the attempt, or of its reading back, slowest first.
  std::vector<RankStatus> slowest(const Id& attempt, double now) const;
  int parts_there(const Id& attempt) const;  // of children

  // Reading back: the leader's order, every rank's task, the sum at the leader.  `tasks` by rank.
  struct Task {
    Id attempt{};
    int64_t step = 0;
    std::vector<std::byte> what;
  };
  void order(const Id& attempt, int64_t step, std::map<int, std::vector<std::byte>> tasks,
             double now);
  std::optional<Task> take_task();
  void done(const Id& attempt, const ReadBackResult& result);
  std::optional<ReadBackResult> read_back(const Id& attempt) const;  // the leader's, when all is in

 private:
  struct ChildParts {
    GatheredParts parts;
    Witness witness;
    bool seen = false;
  };
  struct Open {  // an attempt without a result
    int64_t step = 0;
    double since = 0;
    Id layout{};
    std::optional<GatheredParts> own;
    std::vector<std::byte> with_boxes;
    std::map<int, ChildParts> children;
    Witness witness;
    std::optional<Failure> failure;
    std::map<int, std::vector<std::byte>> boxes;
    std::vector<int> asked;
    double asked_at = 0;
    bool has_begun = false, sent = false;
  };
  struct Reading {  // an order that this rank takes part in
    int64_t step = 0;
    double since = 0;
    std::map<int, std::vector<std::byte>> tasks;  // of the ranks below
    std::optional<ReadBackResult> own;
    std::map<int, ReadBackResult> children;
    std::optional<ReadBackResult> all;  // sent up, or the leader's answer
  };
  struct Heard {  // of a child
    double at = 0;
    std::string host;
    std::vector<RankStatus> slowest;
  };

  int parent() const { return tree_->parent[size_t(rank_)]; }
  const std::vector<int>& children() const { return tree_->children[size_t(rank_)]; }
  bool leads() const { return rank_ == 0; }
  void send(int to, uint16_t kind, control::WireWriter body);
  void send_down(uint16_t kind, const std::vector<std::byte>& body);
  void send_broken(int to);
  Open& open(const Id& attempt, int64_t step, double now);
  bool has_all_children(const Open& open) const;
  void pass_up(const Id& attempt);
  void send_part(const Id& attempt, Open& open);
  void send_failure(const Id& attempt, const Open& open);
  void send_attempt_result(int to, const AttemptResult& result);
  void send_boxes(const Id& attempt, int rank, std::span<const std::byte> boxes);
  void send_order(int child, const Id& attempt, const Reading& reading);
  void pass_result(const Id& attempt);
  void send_result(const Id& attempt, const Reading& reading);
  void heartbeat(double now);
  void settle(const AttemptResult& result);
  std::vector<RankStatus> pending(const Id& attempt, std::optional<RankStatus> own, double since,
                                  const std::vector<int>& missing, Phase phase, double now) const;

  void take_status(int from, control::WireReader& in, double now);
  void take_part(int from, control::WireReader& in, double now);
  void take_failure(control::WireReader& in, double now);
  void take_boxes(control::WireReader& in);
  void take_result(int from, control::WireReader& in);
  void take_attempt_result(control::WireReader& in);
  void take_ask(control::WireReader& in);
  void take_resend(control::WireReader& in);
  void take_order(control::WireReader& in, double now);

  std::shared_ptr<const control::Tree> tree_;
  int rank_;
  std::string host_;
  SaveTreeOptions options_;
  std::vector<Outgoing> outgoing_;
  std::map<Id, Open> open_;
  std::map<Id, Reading> readings_;
  std::deque<Id> order_of_readings_;           // oldest first
  std::deque<AttemptResult> attempt_results_;  // newest last
  std::deque<Task> tasks_;
  std::map<int, Heard> heard_;
  std::map<Id, RankStatus> status_;  // this rank's, by attempt
  Id known_layout_{};                // of the last part that was committed
  std::optional<std::string> broken_;
  double last_heartbeat_ = -1e9;
};

}  // namespace ashlar::checkpoint
