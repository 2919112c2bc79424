// Why the neighbours of the best layout are worse: one key at a time.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ashlar/core/text.h"
#include "ashlar/plan/search_stages.h"

namespace ashlar::plan {
namespace {

constexpr size_t kMostValues = 6;  // of a key; of more, those next to the best layout's
constexpr int kMostSimulated = 8;  // neighbours that the formulas find faster
constexpr double kAsFast = 5e-4;   // relative

// The values of a key to compare with: all, or the two below and the two above.
std::vector<uint8_t> values_near(const SearchKey& key, uint8_t chosen) {
  std::vector<uint8_t> all;
  for (size_t v = 0; v < key.values.size(); ++v) all.push_back(uint8_t(v));
  std::stable_sort(all.begin(), all.end(), [&](uint8_t a, uint8_t b) {
    const auto* x = std::get_if<int64_t>(&key.values[a]);
    const auto* y = std::get_if<int64_t>(&key.values[b]);
    return (x ? *x : 0) < (y ? *y : 0);
  });
  if (all.size() <= kMostValues) return all;
  const int64_t at = std::find(all.begin(), all.end(), chosen) - all.begin();
  const int64_t from = std::max<int64_t>(0, at - 2),
                to = std::min<int64_t>(int64_t(all.size()), at + 3);
  return {all.begin() + from, all.begin() + to};
}

// "bubble +12.3 ms": the part that grew most; of simulated steps a mean over ranks.
std::string grown_part(const SearchedLayout& layout, const SearchedLayout& best) {
  std::vector<std::pair<std::string, double>> grown;
  if (layout.step && best.step) {
    const sim::RankShare ours = mean_share(*layout.step), theirs = mean_share(*best.step);
    const std::pair<const char*, double sim::RankShare::*> parts[] = {
        {"kernels", &sim::RankShare::compute_s},
        {"exposed communication", &sim::RankShare::exposed_s},
        {"waits for other ranks", &sim::RankShare::waiting_s},
        {"between steps", &sim::RankShare::between_s}};
    for (const auto& [name, part] : parts) grown.emplace_back(name, ours.*part - theirs.*part);
  } else {
    const auto ours = parts_of(layout.time), theirs = parts_of(best.time);
    const double scale = double(best.tokens) / double(layout.tokens);
    for (size_t i = 0; i < ours.size(); ++i)
      grown.emplace_back(ours[i].first, scale * ours[i].second - theirs[i].second);
  }
  const auto largest = std::max_element(
      grown.begin(), grown.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} {:+.3g} ms", largest->first, 1e3 * largest->second);
}

std::string percent(double slower) {
  return fmt::format("{:.3g} % {}", 100 * std::abs(slower), slower >= 0 ? "slower" : "faster");
}

// Time for a token over the best layout's, minus 1; by simulations where both have one.
double slower_than(const SearchedLayout& layout, const SearchedLayout& best) {
  if (layout.step && best.step) return best.tokens_per_s() / layout.tokens_per_s() - 1;
  return layout.time.total_s / double(layout.tokens) / (best.time.total_s / double(best.tokens)) -
         1;
}

class Comparison {
 public:
  Comparison(SearchStages& stages, const SearchedLayout& best) : stages_(stages), best_(best) {}

  Neighbour compare(const LayoutChoice& choice, std::string key) {
    Neighbour neighbour;
    neighbour.key = std::move(key);
    SearchStages::Judged judged = stages_.judge(choice);
    if (!judged.layout) {
      neighbour.why = Neighbour::Why::kRefused;
      neighbour.reason = judged.refusal->reason;
      return neighbour;
    }
    SearchedLayout& layout = *judged.layout;
    layout.keys = stages_.space().text_of(choice);
    neighbour.slower = slower_than(layout, best_);
    if (judged.refusal) {
      neighbour.why = Neighbour::Why::kLinks;
      neighbour.reason = fmt::format("{}; forced it is {} by formulas ({})", judged.refusal->reason,
                                     percent(neighbour.slower), grown_part(layout, best_));
      return neighbour;
    }
    const bool by_memory = stages_.options().goal == Goal::kMinMemory;
    if ((by_memory || stages_.memory_bytes() > 0) && !stages_.fits(layout)) {
      neighbour.why = Neighbour::Why::kMemory;
      neighbour.over_bytes = layout.memory->total_bytes - stages_.memory_bytes();
      neighbour.reason =
          fmt::format("does not fit: rank {} takes {}, {} too much", layout.memory->rank,
                      format_bytes(layout.memory->total_bytes), format_bytes(neighbour.over_bytes));
      return neighbour;
    }
    by_memory ? judge_memory(neighbour, layout) : judge_time(neighbour, layout);
    return neighbour;
  }

 private:
  // Where the least memory is wanted, that of both is known, and time decides nothing.
  void judge_memory(Neighbour& neighbour, const SearchedLayout& layout) const {
    const int64_t more = layout.memory->total_bytes - best_.memory->total_bytes;
    neighbour.why = more == 0 ? Neighbour::Why::kEqual : Neighbour::Why::kMemory;
    neighbour.over_bytes = more;
    neighbour.reason =
        more == 0 ? fmt::format("takes as much, {} by formulas", percent(neighbour.slower))
                  : fmt::format("takes {} {}, {} by formulas", format_bytes(std::abs(more)),
                                more > 0 ? "more" : "less", percent(neighbour.slower));
  }
  void judge_time(Neighbour& neighbour, SearchedLayout& layout) {
    if (neighbour.slower < 0.02 && best_.step && num_simulated_ < kMostSimulated) {
      ++num_simulated_;
      stages_.simulate(layout);
      neighbour.slower = slower_than(layout, best_);
    }
    const char* by = layout.step ? "simulated" : "by formulas";
    const bool equal = std::abs(neighbour.slower) < kAsFast;
    neighbour.why = equal ? Neighbour::Why::kEqual : Neighbour::Why::kSlower;
    neighbour.reason = equal ? fmt::format("as fast ({})", by)
                             : fmt::format("{} ({}): {}", percent(neighbour.slower), by,
                                           grown_part(layout, best_));
  }

  SearchStages& stages_;
  const SearchedLayout& best_;
  int num_simulated_ = 0;
};

}  // namespace

std::vector<Neighbour> neighbours_of(SearchStages& stages, const SearchedLayout& best) {
  const SearchSpace& space = stages.space();
  Comparison comparison(stages, best);
  std::vector<Neighbour> neighbours;
  std::set<LayoutChoice> seen = {best.choice};
  for (size_t k = 0; k < space.keys().size(); ++k)
    for (const uint8_t value : values_near(space.keys()[k], best.choice[k])) {
      LayoutChoice choice = best.choice;
      choice[k] = value;
      if (space.divides(choice)) choice = space.canonical(choice);
      if (!seen.insert(choice).second) continue;
      neighbours.push_back(comparison.compare(choice, space.text_of(k, value)));
    }
  return neighbours;
}

}  // namespace ashlar::plan
