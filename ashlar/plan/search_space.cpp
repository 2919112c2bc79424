#include "ashlar/plan/search_space.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::plan {
namespace {

// The keys of a search.  Degrees come first: a choice whose degrees do not divide the ranks is left
// at once.
enum SearchedKey : size_t {
  kPpKey,
  kCpKey,
  kTspKey,
  kTpKey,
  kEpKey,
  kZeroKey,
  kMicroBatchKey,
  kRecomputeKey,
  kScheduleKey,
  kVirtualStagesKey,
  kCpExchangeKey,
  kSequenceParallelKey,
  kSequenceLengthKey,
  kZeroLayoutKey,
  kBucketKey,
  kMuonKey,
  kNumSearchKeys,
};
constexpr std::array<const char*, kNumSearchKeys> kSearchKeyNames = {
    "parallel.pp",           "parallel.cp",
    "parallel.tsp",          "parallel.tp",
    "parallel.ep",           "parallel.zero",
    "train.micro_batch",     "train.recompute",
    "parallel.schedule",     "parallel.virtual_stages",
    "parallel.cp_exchange",  "parallel.sequence_parallel",
    "data.sequence_length",  "parallel.zero_layout",
    "parallel.bucket_bytes", "parallel.muon",
};

const Key& key_named(std::string_view name) {
  for (const Key& key : recipe_keys())
    if (key.name == name) return key;
  ASHLAR_ASSERT(false && "a key of the table");
}

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

template <typename T>
void add_values(SearchKey& key, std::initializer_list<T> values) {
  for (const T& value : values) key.values.emplace_back(value);
}
void add_values(SearchKey& key, std::span<const int64_t> values) {
  for (const int64_t value : values) key.values.emplace_back(value);
}

// Lengths from the recipe's on: four in each doubling, as far as 64 times as long.
std::vector<int64_t> lengths(int64_t from) {
  std::vector<int64_t> all;
  for (int64_t octave = from; octave <= 64 * from && octave <= int64_t{1} << 23; octave *= 2)
    for (int64_t quarter = 4; quarter < 8; ++quarter)
      if (octave * quarter % 4 == 0) all.push_back(octave * quarter / 4);
  return all;
}

void add_degrees(const Recipe& base, int num_ranks, std::vector<SearchKey>& keys) {
  const ModelKeys& m = base.model;
  constexpr int64_t kMostShared = 64;  // ranks that share a sequence
  add_values(keys[kPpKey], divisors(num_ranks, m.num_hidden_layers));
  add_values(keys[kCpKey], divisors(num_ranks, kMostShared));
  add_values(keys[kTspKey], divisors(num_ranks, kMostShared));
  add_values(keys[kTpKey], divisors(num_ranks, m.num_attention_heads));
  if (m.has_feed_forward(MoeSpec::kKind))
    add_values(keys[kEpKey], divisors(m.num_experts, num_ranks));
}

void add_choices(const Recipe& base, Goal goal, std::span<const int64_t> buckets,
                 std::vector<SearchKey>& keys) {
  add_values<int64_t>(keys[kZeroKey], {0, 1, 2, 3});
  add_values(keys[kRecomputeKey], {false, true});
  add_values<std::string>(keys[kScheduleKey], {"1f1b", "zb", "interleaved"});
  add_values<int64_t>(keys[kVirtualStagesKey], {1, 2});
  add_values(keys[kSequenceParallelKey], {false, true});
  // One sequence at a time leaves room for the longest one.
  if (goal == Goal::kMaxSequence) {
    add_values<int64_t>(keys[kMicroBatchKey], {1});
    add_values(keys[kSequenceLengthKey], lengths(base.data.sequence_length));
  } else {
    constexpr int64_t kMostSequences = 256;
    add_values(keys[kMicroBatchKey], divisors(base.train.global_batch, kMostSequences));
  }
  for (const char* exchange : kCpExchangeNames)
    keys[kCpExchangeKey].values.emplace_back(std::string(exchange));
  add_values<std::string>(keys[kZeroLayoutKey], {"contiguous", "bucketed"});
  add_values(keys[kBucketKey], buckets);
  if (base.optim.matrices == MatrixOptimizer::kMuon)
    add_values<std::string>(keys[kMuonKey], {"auto", "replicate", "owner"});
}

}  // namespace

SearchSpace::SearchSpace(const Recipe& base, int num_ranks, Goal goal,
                         std::span<const std::string> fixed, std::span<const int64_t> buckets)
    : base_(base), num_ranks_(num_ranks), keys_(kNumSearchKeys) {
  base_.parallel.dp = 0;
  for (size_t k = 0; k < keys_.size(); ++k) {
    keys_[k].key = &key_named(kSearchKeyNames[k]);
    keys_[k].values.push_back(keys_[k].key->get(base_));
  }
  add_degrees(base_, num_ranks, keys_);
  add_choices(base_, goal, buckets, keys_);
  for (SearchKey& key : keys_) {
    std::vector<KeyValue> once;
    for (const KeyValue& value : key.values)
      if (std::find(once.begin(), once.end(), value) == once.end()) once.push_back(value);
    key.values = std::move(once);
  }
  for (const std::string& text : fixed) {
    const std::string name = text.substr(0, text.find('='));
    for (SearchKey& key : keys_)
      if (key.key->name == name) key.values.resize(1), key.fixed = true;
  }
}

size_t SearchSpace::index_of(std::string_view name) const {
  for (size_t k = 0; k < keys_.size(); ++k)
    if (keys_[k].key->name == name) return k;
  ASHLAR_ASSERT(false && "a key of the space");
}

bool SearchSpace::is_detail(size_t key) const {
  return key == kZeroLayoutKey || key == kBucketKey || key == kMuonKey;
}

bool SearchSpace::divides(const LayoutChoice& choice) const {
  const int64_t others = integer(choice, kPpKey) * integer(choice, kCpKey) *
                         integer(choice, kTspKey) * integer(choice, kTpKey);
  return num_ranks_ % others == 0;
}

LayoutChoice SearchSpace::canonical(LayoutChoice choice) const {
  const int64_t pp = integer(choice, kPpKey), cp = integer(choice, kCpKey);
  const int64_t tsp = integer(choice, kTspKey), tp = integer(choice, kTpKey);
  const int64_t data = num_ranks_ / (pp * tp);
  const auto usual = [&](size_t key) { choice[key] = 0; };
  if (pp == 1) {
    usual(kScheduleKey);
    for (size_t v = 0; v < keys_[kVirtualStagesKey].values.size(); ++v)
      if (std::get<int64_t>(keys_[kVirtualStagesKey].values[v]) == 1)
        choice[kVirtualStagesKey] = uint8_t(v);
  }
  if (cp == 1) usual(kCpExchangeKey);
  if (tp == 1) usual(kSequenceParallelKey);
  if (data == 1) usual(kZeroKey), usual(kBucketKey);
  if (data == 1 || integer(choice, kZeroKey) == 0) usual(kZeroLayoutKey);
  if (num_ranks_ == pp) usual(kMuonKey);
  (void)tsp;
  return choice;
}

LayoutChoice SearchSpace::frame_of(LayoutChoice choice) const {
  for (size_t key = 0; key < choice.size(); ++key)
    if (is_detail(key)) choice[key] = 0;
  return choice;
}

void SearchSpace::frames_from(size_t key, LayoutChoice& choice,
                              const std::function<void(const LayoutChoice&)>& visit) const {
  if (key == kTpKey + 1 && !divides(choice)) return;
  if (key == kNumSearchKeys) {
    if (canonical(choice) == choice) visit(choice);
    return;
  }
  const size_t num_values = is_detail(key) ? 1 : keys_[key].values.size();
  for (size_t v = 0; v < num_values; ++v) {
    choice[key] = uint8_t(v);
    frames_from(key + 1, choice, visit);
  }
  choice[key] = 0;
}

void SearchSpace::each_frame(const std::function<void(const LayoutChoice&)>& visit) const {
  LayoutChoice choice(kNumSearchKeys, 0);
  frames_from(0, choice, visit);
}

void SearchSpace::details_from(size_t key, LayoutChoice& choice,
                               const std::function<void(const LayoutChoice&)>& visit) const {
  if (key == kNumSearchKeys) {
    if (canonical(choice) == choice) visit(choice);
    return;
  }
  if (!is_detail(key)) return details_from(key + 1, choice, visit);
  for (size_t v = 0; v < keys_[key].values.size(); ++v) {
    choice[key] = uint8_t(v);
    details_from(key + 1, choice, visit);
  }
  choice[key] = 0;
}

void SearchSpace::each_detail(const LayoutChoice& frame,
                              const std::function<void(const LayoutChoice&)>& visit) const {
  LayoutChoice choice = frame;
  details_from(0, choice, visit);
}

ParallelSpec SearchSpace::degrees_of(const LayoutChoice& choice) const {
  ParallelSpec p;
  p.pp = integer(choice, kPpKey);
  p.cp = integer(choice, kCpKey);
  p.tsp = integer(choice, kTspKey);
  p.tp = integer(choice, kTpKey);
  p.ep = integer(choice, kEpKey);
  p.dp = num_ranks_ / (p.pp * p.cp * p.tsp * p.tp);
  return p;
}

Recipe SearchSpace::recipe_of(const LayoutChoice& choice) const {
  Recipe recipe = base_;
  for (size_t k = 0; k < keys_.size(); ++k)
    if (choice[k] != 0) keys_[k].key->set(recipe, keys_[k].values[choice[k]]);
  return recipe;
}

std::string SearchSpace::text_of(size_t key, uint8_t value) const {
  const KeyValue& v = keys_[key].values[value];
  const auto* word = std::get_if<std::string>(&v);
  return fmt::format("{}={}", keys_[key].key->name, word ? *word : value_text(v));
}

std::string SearchSpace::text_of(const LayoutChoice& choice) const {
  std::string text;
  for (size_t k = 0; k < keys_.size(); ++k)
    if (choice[k] != 0) text += (text.empty() ? "" : " ") + text_of(k, choice[k]);
  return text;
}

std::string node_rule(const ParallelSpec& p, int ranks_per_node, bool mesh,
                      const std::function<bool(std::string_view)>& exempt) {
  const struct {
    const char* key;
    int64_t ranks, stride;
  } groups[] = {
      {"parallel.tp", p.tp, 1},
      {"parallel.tsp", p.tsp, p.tp},
      {"parallel.cp", p.cp * p.tsp, p.tp},
      {"parallel.ep", p.ep, p.tp},
      {"parallel.dp", p.dp * p.cp * p.tsp, p.tp},
  };
  for (const auto& group : groups) {
    if (exempt(group.key)) continue;
    const int64_t inside =
        std::min(group.ranks, std::max<int64_t>(1, ranks_per_node / group.stride));
    const bool power = (inside & (inside - 1)) == 0;
    if (inside == 1 || inside == ranks_per_node || (!mesh && power)) continue;
    if (mesh)
      return fmt::format(
          "{} gives groups of {} in a node of {}: on a mesh of links they use {} of {} links of a "
          "device; expected 1 or {}",
          group.key, inside, ranks_per_node, inside - 1, ranks_per_node - 1, ranks_per_node);
    return fmt::format("{} gives groups of {} in a node of {}; expected a power of two", group.key,
                       inside, ranks_per_node);
  }
  return "";
}

}  // namespace ashlar::plan
