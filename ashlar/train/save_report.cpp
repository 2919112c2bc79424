#include "ashlar/train/save_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/writers/timing.h"

namespace ashlar::train {

using checkpoint::Outlier;
using checkpoint::Phase;
using checkpoint::RankTimes;

std::string slowest_rank(std::span<const RankTimes> ranks) {
  if (ranks.size() < 2) return "";
  const auto slowest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const RankTimes& a, const RankTimes& b) { return store_seconds(a) < store_seconds(b); });
  return fmt::format(", slowest {} ({:.2f} s)", checkpoint::place_of(slowest->rank, slowest->host),
                     store_seconds(*slowest));
}

void add_times(std::span<const RankTimes> ranks, nlohmann::ordered_json& row) {
  auto& phases = row["phases"] = nlohmann::ordered_json::object();
  for (int p = 0; p < checkpoint::kNumPhases; ++p)
    if (const auto summary = checkpoint::summarize(ranks, Phase(p)))
      phases[std::string(key_of(Phase(p)))] = {
          {"median_s", summary->median_s}, {"max_s", summary->max_s}, {"rank", summary->rank}};
  auto& slow = row["slow"] = nlohmann::ordered_json::array();
  for (const Outlier& outlier : checkpoint::find_outliers(ranks))
    slow.push_back({{"rank", outlier.rank},
                    {"host", outlier.host},
                    {"phase", key_of(outlier.phase)},
                    {"seconds", outlier.seconds},
                    {"median_s", outlier.median_s}});
}

void warn_of_slow(std::span<const RankTimes> ranks, int64_t step, Log& log) {
  constexpr size_t kMostLines = 4;
  const std::vector<Outlier> outliers = checkpoint::find_outliers(ranks);
  const size_t shown = std::min(outliers.size(), kMostLines);
  for (size_t i = 0; i < shown; ++i) log.warn("step {:>6}  {}", step, to_text(outliers[i]));
  if (shown < outliers.size())
    log.warn("step {:>6}  and {} more; see ashlar ckpt show --timeline", step,
             outliers.size() - shown);
}

}  // namespace ashlar::train
