#include "ashlar/train/trainer_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"

namespace ashlar::train {
namespace {

// Values as 16 hex digits of their bits, because windows must be restored bit for bit.
std::vector<std::string> to_bits(const std::vector<double>& values) {
  std::vector<std::string> out;
  for (const double value : values)
    out.push_back(fmt::format("{:016x}", std::bit_cast<uint64_t>(value)));
  return out;
}

// A window of the health check: its newest values, out of the `count` that it ever took.
void read_window(const Fields& fields, std::string_view key, std::string_view count_key,
                 std::vector<double>& values, int64_t& count) {
  count = fields.count(count_key);
  for (const uint64_t bits : fields.hexes(key, 16)) values.push_back(std::bit_cast<double>(bits));
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
    fields.fail("{} holds a value that is not finite", key);
  const auto kept = int64_t(values.size());
  if (kept > count || (kept == 0 && count > 0))
    fields.fail("{} has {} values, but {} is {}; expected 1 to {}", key, kept, count_key, count,
                count);
}

HealthState read_health(const Fields& fields, int64_t step) {
  HealthState h;
  h.skipped = fields.integer("skipped", 0, step);
  h.non_finite = fields.integer("non_finite", 0, h.skipped);
  // Older versions counted finite spikes too.
  h.consecutive = std::min(fields.integer("consecutive_skips", 0, h.skipped), h.non_finite);
  h.recent_skips = fields.counts("recent_skips");
  int64_t before = 0;
  for (const int64_t skip : h.recent_skips) {
    if (skip <= before || skip > step)
      fields.fail("recent_skips holds {} after {}; expected ascending steps from 1 to {}", skip,
                  before, step);
    before = skip;
  }
  if (fields.has("harmful_samples")) h.harmful = fields.counts("harmful_samples");
  if (!std::ranges::is_sorted(h.harmful)) fields.fail("harmful_samples is not ascending");
  read_window(fields, "losses_f64_bits", "loss_count", h.losses, h.loss_count);
  read_window(fields, "norms_f64_bits", "norm_count", h.norms, h.norm_count);
  return h;
}

}  // namespace

std::string to_json(const TrainerState& state) {
  const HealthState& health = state.health;
  nlohmann::ordered_json json{{"step", state.counters.step},
                              {"samples", state.counters.samples},
                              {"tokens", state.counters.tokens},
                              {"seconds", state.counters.seconds},
                              {"seed", state.seed},
                              {"optimizer_steps", state.optimizer_steps},
                              {"balancer_updates", state.balancer_updates},
                              {"skipped", health.skipped},
                              {"non_finite", health.non_finite},
                              {"consecutive_skips", health.consecutive},
                              {"recent_skips", health.recent_skips},
                              {"loss_count", health.loss_count},
                              {"norm_count", health.norm_count},
                              {"losses_f64_bits", to_bits(health.losses)},
                              {"norms_f64_bits", to_bits(health.norms)}};
  if (!health.harmful.empty()) json["harmful_samples"] = health.harmful;
  return json.dump(1);
}

TrainerState parse_trainer_state(const std::string& json, const std::string& what) {
  const Json parsed = parse_json(json, what, ErrorKind::kCorrupt);
  const Fields fields(parsed, what);
  fields.only({"step", "samples", "tokens", "seconds", "seed", "optimizer_steps",
               "balancer_updates", "skipped", "non_finite", "consecutive_skips", "recent_skips",
               "loss_count", "norm_count", "losses_f64_bits", "norms_f64_bits", "harmful_samples"});
  TrainerState state;
  state.counters = {fields.count("step"), fields.count("samples"), fields.count("tokens"),
                    fields.number("seconds")};
  if (state.counters.seconds < 0.0)
    fields.fail("seconds is {}; expected a number of at least 0", state.counters.seconds);
  state.seed = uint64_t(fields.count("seed"));
  state.optimizer_steps = fields.count("optimizer_steps");
  state.balancer_updates = fields.count("balancer_updates");
  state.health = read_health(fields, state.counters.step);
  return state;
}

}  // namespace ashlar::train
