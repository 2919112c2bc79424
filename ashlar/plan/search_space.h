// The layouts that a search looks at: keys of [parallel], [train] and [data] with the values that
// each may take.  A choice has one value of each; keys that mean nothing beside the others (the
// schedule of one stage) keep the recipe's value, so that no layout counts twice.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/spec/keys.h"

namespace ashlar::plan {

enum class Goal : uint8_t { kTime, kMaxSequence, kMaxMicroBatch, kMinMemory };
inline constexpr std::array<const char*, 4> kGoalNames{"time", "max-sequence", "max-micro-batch",
                                                       "min-memory"};

struct SearchKey {
  const Key* key = nullptr;
  std::vector<KeyValue> values;  // the recipe's first
  bool fixed = false;            // by the user
};

using LayoutChoice = std::vector<uint8_t>;  // the index of each key's value

class SearchSpace {
 public:
  // fixed: "section.key=value" texts; such a key of the space has that value alone, and any other
  // key of recipes is set in `base` beforehand by the caller.  buckets: values of bucket_bytes
  // beside the recipe's.
  SearchSpace(const Recipe& base, int num_ranks, Goal goal, std::span<const std::string> fixed,
              std::span<const int64_t> buckets);

  const std::vector<SearchKey>& keys() const { return keys_; }
  size_t index_of(std::string_view name) const;
  bool is_fixed(std::string_view name) const { return keys_[index_of(name)].fixed; }
  // Keys that hardly change memory and time; all others make the frame of a layout.
  bool is_detail(size_t key) const;

  // Calls `visit` with every choice whose degrees divide the ranks and whose details are the
  // recipe's.
  void each_frame(const std::function<void(const LayoutChoice&)>& visit) const;
  // The same choice with every combination of details.
  void each_detail(const LayoutChoice& frame,
                   const std::function<void(const LayoutChoice&)>& visit) const;

  // The degrees of a choice, without a recipe; they must divide the ranks.
  ParallelSpec degrees_of(const LayoutChoice& choice) const;
  Recipe recipe_of(const LayoutChoice& choice) const;
  // Keys that differ from the recipe's, "parallel.tp=8 train.recompute=true"; "" if none.
  std::string text_of(const LayoutChoice& choice) const;
  // "train.recompute=true"
  std::string text_of(size_t key, uint8_t value) const;
  // The choice in which keys that mean nothing have the recipe's values.
  LayoutChoice canonical(LayoutChoice choice) const;
  // The same choice with the recipe's details.
  LayoutChoice frame_of(LayoutChoice choice) const;
  // The product of the degrees divides the number of ranks.
  bool divides(const LayoutChoice& choice) const;

 private:
  int64_t integer(const LayoutChoice& choice, size_t key) const {
    return std::get<int64_t>(keys_[key].values[choice[key]]);
  }
  void frames_from(size_t key, LayoutChoice& choice,
                   const std::function<void(const LayoutChoice&)>& visit) const;
  void details_from(size_t key, LayoutChoice& choice,
                    const std::function<void(const LayoutChoice&)>& visit) const;

  Recipe base_;
  int num_ranks_;
  std::vector<SearchKey> keys_;
};

// Why groups inside a node are too narrow or too wide for its links; "" if they are not.  On a mesh
// a group of n uses n - 1 of a device's links, so it has one device of a node or all of them; on a
// switch, a power of two.  exempt: the user asked for this key's value.
std::string node_rule(const ParallelSpec& resolved, int ranks_per_node, bool mesh,
                      const std::function<bool(std::string_view)>& exempt);

}  // namespace ashlar::plan
