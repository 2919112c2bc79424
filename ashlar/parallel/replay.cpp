#include "ashlar/parallel/replay.h"

#include <fmt/ranges.h>

#include <array>
#include <numeric>
#include <set>

#include "ashlar/comm/agree.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/text.h"

namespace ashlar::parallel {
namespace {

constexpr const char* kReplayLabel = "replay";
constexpr size_t kDigits = 8;      // of a checksum, in hexadecimal
constexpr int64_t kNumFields = 5;  // of a segment

std::vector<int64_t> fields_of(std::span<const Segment> segments) {
  std::vector<int64_t> fields;
  for (const Segment& s : segments)
    fields.insert(fields.end(), {s.row, s.length, s.position, s.document, s.padding});
  return fields;
}

std::vector<Segment> segments_of(std::span<const int64_t> fields) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < fields.size(); i += kNumFields)
    segments.push_back(
        {fields[i], fields[i + 1], fields[i + 2], fields[i + 3], fields[i + 4] != 0});
  return segments;
}

template <typename T>
int32_t checksum_of(const std::vector<T>& values) {
  return int32_t(crc32c(std::as_bytes(std::span(values))));
}

}  // namespace

Replay::Replay(int64_t every, const nn::ModelWeights& weights, const Groups& groups,
               const ParallelSpec& resolved)
    : every_(every),
      weights_(weights),
      groups_(groups),
      dp_of_replica_(resolved.ep / std::gcd(resolved.ep, resolved.sequence_ranks())),
      num_replicas_(int(resolved.dp / dp_of_replica_)) {}

// The rank in the same place of the replica so many after that of `rank`.
int Replay::other(int rank, int distance) const {
  const Mesh& mesh = groups_.mesh();
  const int dp = mesh.size(Axis::kDp), here = mesh.coordinate(rank, Axis::kDp);
  const int stride = mesh.size(Axis::kCp) * mesh.size(Axis::kTsp) * mesh.size(Axis::kTp);
  const int there = (here + distance * int(dp_of_replica_) + dp) % dp;
  return rank + (there - here) * stride;
}

template <typename T>
std::vector<T> Replay::received(int distance, std::vector<T> own, size_t size) {
  std::vector<T> values(size);
  comm::Group& all = groups_.all();
  const std::array sends{comm::Transfer{other(all.rank(), -distance), tensor_over(std::span(own))}};
  const std::array receives{
      comm::Transfer{other(all.rank(), distance), tensor_over(std::span(values))}};
  all.send_receive(sends, receives, kReplayLabel).wait();
  return values;
}

MicroBatch Replay::inputs_of(int distance, const MicroBatch& own) {
  const size_t num_tokens = own.ids.size();
  ids_ = received(distance, std::vector(own.ids.begin(), own.ids.end()), num_tokens);
  targets_ = received(distance, std::vector(own.targets.begin(), own.targets.end()), num_tokens);
  const std::vector<int64_t> fields = fields_of(own.segments);
  const auto size = received(distance, std::vector{int64_t(fields.size())}, 1);
  segments_ = segments_of(received(distance, fields, size_t(size[0])));
  return {ids_, targets_, segments_};
}

void Replay::begin_pass(bool drops) {
  passes_.emplace_back(weights_.tensors.size());
  in_pass_ = true, drops_ = drops;
}

void Replay::end_pass() {
  take(kRoot);
  in_pass_ = drops_ = false;
}

bool Replay::take(int64_t block) {
  if (!in_pass_) return false;
  for (size_t i = 0; i < weights_.tensors.size(); ++i) {
    const nn::Stored& stored = weights_.tensors[i];
    if (!stored.is_trained() || (stored.is_product() ? stored.block : kRoot) != block) continue;
    const Tensor& gradient = stored.weight->gradient;
    passes_.back()[i] = crc32c({gradient.data, size_t(gradient.bytes())});
  }
  return drops_;
}

bool Replay::agrees() {
  comm::Group& all = groups_.all();
  std::vector here{checksum_of(passes_[1]), checksum_of(passes_[0])};  // own, the other's
  std::vector<int32_t> sums(here.size() * size_t(all.size()));
  all.all_gather(tensor_over(std::span(here)), tensor_over(std::span(sums)), kReplayLabel).wait();
  bool agree = true;
  for (int rank = 0; rank < all.size(); ++rank)
    agree &= sums[2 * size_t(rank) + 1] == sums[2 * size_t(other(rank, 1))];
  if (agree) passes_.clear();
  return agree;
}

std::vector<int> Replay::deciding_distances() const {
  return num_replicas_ > 2 ? std::vector{2} : std::vector{0, 1};
}

void Replay::fail() {
  std::string sums;  // of every pass: the other's, the own, then those that decide
  for (const Sums& pass : passes_)
    for (const uint32_t sum : pass) sums += fmt::format("{:08x}", sum);
  const std::vector<std::string> said = comm::all_said(groups_.all(), sums, kReplayLabel);
  const size_t length = sums.size() / passes_.size();
  const auto pass_of = [&](int rank, size_t pass) {
    return std::string_view(said[size_t(rank)]).substr(pass * length, length);
  };
  std::set<int> wrong, either;
  size_t tensor = 0;  // the first of backward, which is the last of the list
  for (int owner = 0; owner < groups_.all().size(); ++owner) {
    const int repeater = other(owner, -1);
    const std::string_view own = pass_of(owner, 1), repeated = pass_of(repeater, 0);
    if (own == repeated) continue;
    for (size_t i = 0; i < length; ++i)
      if (own[i] != repeated[i]) tensor = std::max(tensor, i / kDigits);
    const bool two = num_replicas_ == 2;
    const std::string_view third = two ? own : pass_of(other(owner, -2), 2);
    const bool owner_is_wrong = two ? pass_of(owner, 2) != own : third == repeated;
    const bool repeater_is_wrong = two ? pass_of(repeater, 3) != repeated : third == own;
    if (owner_is_wrong) wrong.insert(owner);
    if (repeater_is_wrong) wrong.insert(repeater);
    if (!owner_is_wrong && !repeater_is_wrong) either.insert({owner, repeater});
  }
  const std::string name = weights_.tensors[tensor].logical[0].name;
  const auto ranks = [](const std::set<int>& set) {
    return fmt::format("rank{} {}", set.size() > 1 ? "s" : "", fmt::join(set, ", "));
  };
  if (!wrong.empty())
    ASHLAR_FAIL(kDevice,
                "{} computed wrong gradients, of {} first, as a repetition on {} shows: its "
                "processor or memory changes bits; continue without that machine, from a step "
                "before the last {} (health.replay_every)",
                ranks(wrong), name, num_replicas_ > 2 ? "two other ranks" : "the same rank",
                every_);
  ASHLAR_FAIL(kDevice,
              "{} compute different gradients from the same inputs, of {} first, and each the same "
              "again: the processor or memory of one changes bits; continue without it, from a "
              "step before the last {} (health.replay_every)",
              ranks(either), name, every_);
}

}  // namespace ashlar::parallel
