// How it works.  Every call goes over the channel, or to `when_broken_` if the channel is broken or
// breaks while the call waits.  Both sides of a save then turn to the directory: a follower writes
// its part there, and the leader, which may have had that part from the channel, waits for all
// parts anew.
#include <algorithm>
#include <utility>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/writers/coordination.h"
#include "ashlar/checkpoint/writers/read_back.h"

namespace ashlar::checkpoint {
namespace {

class ByChannel final : public Coordination {
 public:
  ByChannel(SaveChannel& channel, int writer_rank, double timeout_s,
            std::unique_ptr<Coordination> when_broken)
      : channel_(channel),
        writer_rank_(writer_rank),
        timeout_s_(timeout_s),
        when_broken_(std::move(when_broken)) {}

  std::string host() const override { return channel_.host(); }
  void begin(const Id& attempt, int64_t step) override {
    if (channel_.broken()) return when_broken_->begin(attempt, step);
    channel_.begin(attempt, step);
  }
  void status(const Id& attempt, Phase phase, int64_t bytes, int64_t total_bytes) override {
    if (channel_.broken()) return when_broken_->status(attempt, phase, bytes, total_bytes);
    channel_.status(attempt, phase, bytes, total_bytes);
  }
  void give_up() override {
    Coordination::give_up();
    when_broken_->give_up();
    channel_.stop();
  }

  std::optional<std::string> publish(AttemptFiles& own) override {
    const std::optional<AttemptResult> result = send_part(own);
    if (!result) return publish_unless_ended(own);
    if (result->committed) return std::nullopt;
    return result->why;
  }
  void fail(FailedPart& part) override {
    part.in_flight = !channel_.broken();
    if (!part.in_flight) return when_broken_->fail(part);
    channel_.fail(part.attempt, part.step, part.why);
  }
  void await_heard(const FailedPart& part) override {
    if (!part.in_flight || given_up()) return;
    try {
      const auto unseen = [](int, const Witness&) {};
      if (channel_.await_result(part.attempt, unseen)) return;
    } catch (const Error&) {  // given up meanwhile
      return;
    }
    FailedPart again = part;
    when_broken_->fail(again);
  }

  std::optional<AllParts> collect(AttemptFiles& own) override {
    auto parts = channel_.await_parts(own.attempt(), own.step(), timeout_s_, seen_by(own));
    return parts ? std::move(parts) : when_broken_->collect(own);
  }
  void decide(const AttemptResult& result) override {
    if (channel_.broken()) return when_broken_->decide(result);
    channel_.decide(result);
  }

  std::optional<ReadBackResult> read_back(const Id& attempt, int64_t step,
                                          std::vector<IndexFile> written,
                                          const ReadBackWork& work) override {
    auto result = channel_.read_back(attempt, step, tasks_of(attempt, written), timeout_s_, work);
    if (!result) return when_broken_->read_back(attempt, step, std::move(written), work);
    std::sort(result->ranks.begin(), result->ranks.end(),
              [](const RankTimes& a, const RankTimes& b) { return a.rank < b.rank; });
    return result;
  }
  bool serves() const override { return true; }
  void serve(double seconds, const ReadBackWork& work) override { channel_.serve(seconds, work); }

 private:
  // nullopt: the channel broke.
  std::optional<AttemptResult> send_part(AttemptFiles& own) {
    if (channel_.broken()) return std::nullopt;
    channel_.status(own.attempt(), Phase::kSync);
    channel_.send_part(own.make_part());
    return channel_.await_result(own.attempt(), seen_by(own));
  }

  // The leader may have ended the attempt already, or do so meanwhile: then the attempt's directory
  // is gone, or a step.
  std::optional<std::string> publish_unless_ended(AttemptFiles& own) {
    if (!own.is_there()) return std::nullopt;
    try {
      return when_broken_->publish(own);
    } catch (const Error&) {
      if (own.is_there()) throw;
      return std::nullopt;
    }
  }

  // A writer that shares no directory with its parent in the tree is detected by the parent.
  SeeFile seen_by(AttemptFiles& own) const {
    return [this, &own](int child, const Witness& witness) {
      try {
        own.check_witness(witness.path, witness.size_bytes);
      } catch (const Error& error) {
        raise(error.kind(), "what writer {} wrote is not seen by writer {}: {}",
              writer_number(child), writer_number(writer_rank_), error.what());
      }
    };
  }

  // For each rank, the files of its partner.
  std::map<int, std::vector<std::byte>> tasks_of(const Id& attempt,
                                                 const std::vector<IndexFile>& written) const {
    const control::Tree& tree = channel_.tree();
    std::vector<std::vector<IndexFile>> of_writer(size_t(tree.size()));
    for (const IndexFile& file : written) of_writer.at(file.writer_rank()).push_back(file);
    const std::vector<int> partners = read_back_partners(tree);
    std::map<int, std::vector<std::byte>> tasks;
    for (int rank = 0; rank < tree.size(); ++rank)
      tasks[rank] = encode_files(attempt, std::move(of_writer[size_t(partners[size_t(rank)])]));
    return tasks;
  }

  SaveChannel& channel_;
  const int writer_rank_;
  const double timeout_s_;
  const std::unique_ptr<Coordination> when_broken_;
};

}  // namespace

std::unique_ptr<Coordination> by_channel(SaveChannel& channel, int writer_rank, double timeout_s,
                                         std::unique_ptr<Coordination> when_broken) {
  return std::make_unique<ByChannel>(channel, writer_rank, timeout_s, std::move(when_broken));
}

}  // namespace ashlar::checkpoint
