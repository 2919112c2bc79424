// How it works.  Each rule is a function that looks at the input and adds its findings.  A choice
// is a key with the nearest value below or above that keeps the same rule; it is found by trying
// values, so a rule and its choices cannot disagree.
#include "ashlar/sizing/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ashlar/core/function_ref.h"
#include "ashlar/core/text.h"
#include "ashlar/sizing/step_time.h"
#include "ashlar/sizing/tiles.h"

namespace ashlar::sizing {
namespace {

constexpr int64_t kAligned = 64;  // elements: 128 bytes of bf16, a line of memory
constexpr double kLeastWaves = 0.85, kLeastTiles = 0.9, kLeastShare = 0.01;

using RuleFindings = std::vector<RuleFinding>;

// "KEY=VALUE" of the nearest values below and above that are good; nothing beyond the bounds.
std::vector<std::string> nearest(std::string_view key, int64_t value, int64_t least, int64_t most,
                                 int64_t step, function_ref<bool(int64_t)> good) {
  std::vector<std::string> choices;
  for (int64_t v = (value - 1) / step * step; v >= least; v -= step)
    if (good(v)) {
      choices.push_back(fmt::format("{}={}", key, v));
      break;
    }
  for (int64_t v = (value / step + 1) * step; v <= most; v += step)
    if (good(v)) {
      choices.push_back(fmt::format("{}={}", key, v));
      break;
    }
  return choices;
}

std::vector<std::string> multiples(std::string_view key, int64_t value, int64_t unit) {
  return nearest(key, value, unit, value + unit, unit, [](int64_t) { return true; });
}

double number(const RuleInput& in, std::string_view key, double otherwise = 0) {
  const auto* found = in.machine ? in.machine->find(key) : nullptr;
  return found ? found->value : otherwise;
}
bool on_devices(const RuleInput& in) {
  return number(in, "device.compute_units") > 0 || number(in, "device.memory") > 0 ||
         number(in, "device.peak_bf16") > 0;
}
bool on_mesh(const RuleInput& in) {
  return in.machine && on_devices(in) && in.machine->links == machine::NodeLinks::kMesh;
}

double memory_of(const RuleInput& in) {
  return step_memory(step_shape(in.recipe, in.parallel, true)).total;
}

// A product's share of the flop of all, by which small ones are left out.
double share_of(const BlockProduct& product, const std::vector<BlockProduct>& all) {
  double sum = 0;
  for (const BlockProduct& p : all) sum += p.flop() * double(p.times);
  return product.flop() * double(product.times) / sum;
}

void vocabulary(const RuleInput& in, RuleFindings& out) {
  const int64_t V = in.recipe.model.vocab_size;
  if (V % kAligned == 0) return;
  const TileFill fill = fill_of(1024, V, 1);
  out.push_back({"R1", Severity::kWarning,
                 fmt::format("model.vocab_size mod 64 = {} mod 64 = {}", V, V % kAligned),
                 fmt::format("{:.2f} % of the head's tiles by padding alone",
                             100 * (1 - fill.tile_efficiency)),
                 multiples("model.vocab_size", V, kAligned)});
}

void micro_batch(const RuleInput& in, RuleFindings& out) {
  const double memory = number(in, "device.memory");
  const int64_t b = in.recipe.train.micro_batch;
  if (memory <= 0 || in.recipe.train.global_batch % (2 * b * in.parallel.dp) != 0) return;
  RuleInput twice = in;
  twice.recipe.train.micro_batch = 2 * b;
  const double bytes = memory_of(twice);
  if (bytes > 0.9 * memory) return;
  out.push_back({"R2",
                 Severity::kInfo,
                 fmt::format("train.micro_batch {}: twice as much takes about {:.1f} of {:.1f} GB",
                             b, 1e-9 * bytes, 1e-9 * memory),
                 "",
                 {fmt::format("train.micro_batch={}", 2 * b)}});
}

int64_t power_of_two_in(int64_t value) {
  return int64_t{1} << std::countr_zero(uint64_t(value));
}

void powers_of_two(const RuleInput& in, RuleFindings& out) {
  const ParallelSpec& p = in.parallel;
  const Recipe& r = in.recipe;
  const int64_t ranks = p.cp * p.tsp, tokens = r.train.micro_batch * r.data.sequence_length / ranks;
  if (power_of_two_in(tokens) < kAligned)
    out.push_back(
        {"R3", Severity::kWarning,
         fmt::format("tokens of a pass = train.micro_batch {} x data.sequence_length {} / {} = {}, "
                     "which only {} divides; expected 64",
                     r.train.micro_batch, r.data.sequence_length, ranks, tokens,
                     power_of_two_in(tokens)),
         "", multiples("data.sequence_length", r.data.sequence_length, kAligned * ranks)});
  const int64_t H = r.model.hidden_size / p.tp;
  if (power_of_two_in(H) < kAligned)
    out.push_back({"R3", Severity::kWarning,
                   fmt::format("model.hidden_size {} / parallel.tp {} = {}, which only {} divides; "
                               "expected 64",
                               r.model.hidden_size, p.tp, H, power_of_two_in(H)),
                   "", multiples("model.hidden_size", r.model.hidden_size, kAligned * p.tp)});
}

void small_tp(const RuleInput& in, RuleFindings& out) {
  const double memory = number(in, "device.memory");
  const int64_t tp = in.parallel.tp;
  if (tp == 1 || memory <= 0) return;
  for (int64_t t = 1; t < tp; ++t) {
    if (tp % t != 0) continue;
    RuleInput less = in;
    less.parallel.tp = t;
    less.parallel.dp = in.parallel.dp * tp / t;
    if (in.recipe.train.global_batch % (in.recipe.train.micro_batch * less.parallel.dp) != 0)
      continue;
    const double bytes = memory_of(less);
    if (bytes > 0.9 * memory) continue;
    out.push_back(
        {"R5",
         Severity::kWarning,
         fmt::format("parallel.tp {}: {} takes about {:.1f} of {:.1f} GB", tp, t, 1e-9 * bytes,
                     1e-9 * memory),
         fmt::format("a block waits for {} sums over {} ranks in every micro-batch", 4, tp),
         {fmt::format("parallel.tp={}", t)}});
    return;
  }
}

void even_stages(const RuleInput& in, RuleFindings& out) {
  const int64_t L = in.recipe.model.num_hidden_layers, v = in.parallel.virtual_stages;
  const int64_t runs = in.parallel.pp * v;
  if (in.parallel.pp == 1 || L % runs == 0) return;
  const double longest = double((L + runs - 1) / runs), mean = double(L) / double(runs);
  out.push_back(
      {"R6", Severity::kWarning,
       fmt::format("model.num_hidden_layers mod (parallel.pp x virtual stages) = {} mod {} = {}: "
                   "stages have {} or {} blocks",
                   L, runs, L % runs, L / runs, (L + runs - 1) / runs),
       fmt::format("the longest stage has {:.1f} % more than the mean", 100 * (longest / mean - 1)),
       nearest("parallel.pp", in.parallel.pp, 1, L / v, 1,
               [&](int64_t pp) { return L % (pp * v) == 0; })});
}

void large_heads(const RuleInput& in, RuleFindings& out) {
  const ModelKeys& m = in.recipe.model;
  if (m.head_dim >= 128 || m.num_attention_heads % 2 != 0 || m.num_key_value_heads % 2 != 0) return;
  if (!m.has_mixer(AttentionSpec::kKind) && !m.has_mixer(CcaSpec::kKind)) return;
  out.push_back(
      {"R7",
       Severity::kInfo,
       fmt::format("model.num_attention_heads {} of model.head_dim {}: half as many of "
                   "twice the size have the same weights, and products of depth {}",
                   m.num_attention_heads, m.head_dim, 2 * m.head_dim),
       "",
       {fmt::format("model.head_dim={} model.num_attention_heads={} "
                    "model.num_key_value_heads={}",
                    2 * m.head_dim, m.num_attention_heads / 2, m.num_key_value_heads / 2)}});
}

struct Width {
  const char* key;
  int64_t value;
};
std::vector<Width> widths_of(const ModelKeys& m) {
  std::vector<Width> widths;
  if (m.has_feed_forward(MlpSpec::kKind))
    widths.push_back({"model.intermediate_size", m.intermediate_size});
  if (m.has_feed_forward(MoeSpec::kKind)) {
    widths.push_back({"model.moe_intermediate_size", m.moe_intermediate_size});
    if (m.shared_expert_intermediate_size > 0)
      widths.push_back(
          {"model.shared_expert_intermediate_size", m.shared_expert_intermediate_size});
  }
  return widths;
}

void feed_forward_widths(const RuleInput& in, RuleFindings& out) {
  const int64_t tp = in.parallel.tp;
  for (const Width& w : widths_of(in.recipe.model)) {
    if (w.value % kAligned == 0) continue;
    const TileFill fill = fill_of(1024, 2 * w.value / tp, 1);
    out.push_back({"R8", Severity::kWarning,
                   fmt::format("{} mod 64 = {} mod 64 = {}", w.key, w.value, w.value % kAligned),
                   fmt::format("at least {:.1f} % of this product by tiles; unaligned rows of "
                               "memory cost more (273 against 398 TFLOP/s at 10922 on an H100)",
                               100 * (1 - fill.tile_efficiency)),
                   multiples(w.key, w.value, kAligned)});
  }
}

void head_size(const RuleInput& in, RuleFindings& out) {
  const ModelKeys& m = in.recipe.model;
  if (!m.has_mixer(AttentionSpec::kKind) && !m.has_mixer(CcaSpec::kKind)) return;
  if (m.head_dim % kAligned == 0) return;
  std::vector<std::string> choices;
  for (const std::string& choice : multiples("model.head_dim", m.head_dim, kAligned))
    if (std::atoll(choice.c_str() + choice.find('=') + 1) <= kMaxHeadDim) choices.push_back(choice);
  out.push_back(
      {"R9", Severity::kWarning,
       fmt::format("model.head_dim mod 64 = {} mod 64 = {}", m.head_dim, m.head_dim % kAligned), "",
       choices});
}

// Parts of a width on a rank; multiples of 256 where devices are linked as MI300X are.
void rank_widths(const RuleInput& in, RuleFindings& out) {
  const int64_t tp = in.parallel.tp, unit = on_mesh(in) ? 4 * kAligned : kAligned;
  for (const Width& w : widths_of(in.recipe.model)) {
    const int64_t part = w.value / tp;
    if (part % unit == 0 || std::has_single_bit(uint64_t(part))) continue;
    out.push_back({"R10", Severity::kWarning,
                   fmt::format("{} / parallel.tp = {} / {} = {}, and {} mod {} = {}", w.key,
                               w.value, tp, part, part, unit, part % unit),
                   "", multiples(w.key, w.value, unit * tp)});
  }
}

// The micro-batch, below or above, with which `good` holds.
std::vector<std::string> micro_batches(const RuleInput& in,
                                       function_ref<bool(const RuleInput&)> good) {
  const auto with = [&](int64_t b) {
    RuleInput other = in;
    other.recipe.train.micro_batch = b;
    return in.recipe.train.global_batch % (b * in.parallel.dp) == 0 && good(other);
  };
  return nearest("train.micro_batch", in.recipe.train.micro_batch, 1,
                 std::min<int64_t>(in.recipe.train.global_batch / in.parallel.dp, 4096), 1, with);
}

void large_products(const RuleInput& in, RuleFindings& out) {
  const double least = 1e9 * number(in, "compute.flop_to_90");
  if (least <= 0) return;
  const auto small = [&](const RuleInput& i, std::vector<std::string>* names) {
    const std::vector<BlockProduct> all = block_products(i);
    bool any = false;
    for (const BlockProduct& p : all) {
      if (p.groups > 1 || share_of(p, all) < kLeastShare || p.flop() >= least) continue;
      any = true;
      if (names) names->push_back(fmt::format("{} {:.1f}", p.name, 1e-9 * p.flop()));
    }
    return any;
  };
  std::vector<std::string> names;
  if (!small(in, &names)) return;
  out.push_back({"R11", Severity::kWarning,
                 fmt::format("2 x rows x cols x depth is below the {:.0f} GFLOP that reach 90 % of "
                             "the machine's rate (compute.flop_to_90): {} GFLOP",
                             1e-9 * least, fmt::join(names, ", ")),
                 "", micro_batches(in, [&](const RuleInput& i) { return !small(i, nullptr); })});
}

// Generation of one token multiplies a few rows: all depends on how columns fill tiles.
void inference_widths(const RuleInput& in, RuleFindings& out) {
  if (!on_devices(in)) return;
  RuleInput one_device = in;  // serves whole layers
  one_device.parallel = ParallelSpec{.dp = 1};
  const std::vector<BlockProduct> all = block_products(one_device);
  for (const BlockProduct& p : all) {
    if (share_of(p, all) < kLeastShare) continue;
    const double fill = fill_of(128, p.cols, 1, {128, 128}).tile_efficiency;
    if (fill >= kLeastTiles) continue;
    RuleFinding finding{
        "R12",
        Severity::kWarning,
        fmt::format("{}: {} columns fill tiles of 128 to {:.0f} %", p.name, p.cols, 100 * fill),
        fmt::format("{:.0f} % of this product where a model generates", 100 * (1 - fill)),
        {}};
    for (const Width& w : widths_of(in.recipe.model))
      if (w.key == p.cols_key)
        finding
            .choices = nearest(w.key, w.value, 1, 4 * w.value + 256, kAligned, [&](int64_t value) {
          return fill_of(128, value * p.cols_unit, 1, {128, 128}).tile_efficiency >= kLeastTiles;
        });
    out.push_back(std::move(finding));
  }
}

void degrees_in_a_node(const RuleInput& in, RuleFindings& out) {
  const int64_t node = int64_t(number(in, "node.devices"));
  if (!on_devices(in) || node <= 1) return;
  const bool mesh = on_mesh(in);
  const std::pair<const char*, int64_t> degrees[] = {{"parallel.tp", in.parallel.tp},
                                                     {"parallel.tsp", in.parallel.tsp},
                                                     {"parallel.ep", in.parallel.ep},
                                                     {"parallel.cp", in.parallel.cp}};
  for (const auto& [key, n] : degrees) {
    const auto good = [&](int64_t d) {
      return d == 1 || d % node == 0 || (!mesh && d < node && std::has_single_bit(uint64_t(d)));
    };
    if (good(n)) continue;
    const double share = double(n - 1) / double(node - 1);
    out.push_back(
        {"R13", Severity::kWarning,
         fmt::format("{} is {} on nodes of {} devices {}", key, n, node,
                     mesh ? "in a mesh, where a group of n uses n - 1 of a device's links"
                          : "behind a switch, where powers of two divide a node"),
         mesh ? fmt::format("its collectives have {:.0f} % of a device's links", 100 * share) : "",
         nearest(key, n, 1, std::max(node, 2 * n), 1, good)});
  }
}

void rows_of_experts(const RuleInput& in, RuleFindings& out) {
  const double least = 1e9 * number(in, "compute.flop_to_90");
  if (least <= 0) return;
  const auto grouped = [](const RuleInput& i) -> std::optional<BlockProduct> {
    for (const BlockProduct& p : block_products(i))
      if (p.name.starts_with("experts")) return p;
    return std::nullopt;
  };
  const auto product = grouped(in);
  if (!product || product->flop() >= least) return;
  out.push_back({"R14", Severity::kWarning,
                 fmt::format("{}: {} rows an expert, {:.1f} GFLOP in one launch of {} experts and "
                             "{:.1f} in one of them; {:.0f} reach 90 % of the machine's rate",
                             product->name, product->rows, 1e-9 * product->flop(), product->groups,
                             1e-9 * product->flop() / double(product->groups), 1e-9 * least),
                 "", micro_batches(in, [&](const RuleInput& i) {
                   const auto other = grouped(i);
                   return other && other->flop() >= least;
                 })});
}

void waves(const RuleInput& in, RuleFindings& out) {
  const int64_t units = int64_t(number(in, "device.compute_units"));
  if (units <= 0) return;
  const std::vector<BlockProduct> all = block_products(in);
  for (const BlockProduct& p : all) {
    if (share_of(p, all) < kLeastShare) continue;
    const TileFill fill = best_fill(p.rows, p.cols, units, {}, p.groups);
    if (fill.wave_efficiency >= kLeastWaves) continue;
    const auto good = [&](const RuleInput& i) {
      for (const BlockProduct& other : block_products(i))
        if (other.name == p.name)
          return best_fill(other.rows, other.cols, units, {}, other.groups).wave_efficiency >=
                 kLeastWaves;
      return false;
    };
    out.push_back({"R15", Severity::kWarning,
                   fmt::format("{}: {} tiles of 256 x 128 on {} units take {} waves, {:.0f} % full",
                               p.name, fill.tiles, units, fill.waves, 100 * fill.wave_efficiency),
                   fmt::format("{:.1f} % of the products' time by waves",
                               100 * share_of(p, all) * (1 / fill.wave_efficiency - 1)),
                   micro_batches(in, good)});
  }
}

// Kernels of CPUs pad the depth of packed operands themselves.
void depth_of_tiles(const RuleInput& in, RuleFindings& out) {
  constexpr int64_t kDepth = 32;
  if (!in.machine || on_devices(in)) return;
  for (const BlockProduct& p : block_products(in)) {
    if (p.depth % kDepth == 0) continue;
    RuleFinding finding{"R16",
                        Severity::kInfo,
                        fmt::format("{}: depth mod 32 = {} mod 32 = {}, which the kernels pad with "
                                    "zeros",
                                    p.name, p.depth, p.depth % kDepth),
                        fmt::format("{:.1f} % of this product",
                                    100.0 * double(kDepth - p.depth % kDepth) / double(p.depth)),
                        {}};
    if (p.depth == in.recipe.model.hidden_size)
      finding.choices = multiples("model.hidden_size", p.depth, kDepth);
    for (const Width& w : widths_of(in.recipe.model))
      if (p.depth == w.value / in.parallel.tp && p.name.ends_with("down"))
        finding.choices = multiples(w.key, w.value, kDepth * in.parallel.tp);
    out.push_back(std::move(finding));
  }
}

}  // namespace

std::vector<RuleFinding> findings_of(const RuleInput& input) {
  RuleFindings findings;
  for (const auto& rule :
       {vocabulary, micro_batch, powers_of_two, small_tp, even_stages, large_heads,
        feed_forward_widths, head_size, rank_widths, large_products, inference_widths,
        degrees_in_a_node, rows_of_experts, waves, depth_of_tiles})
    rule(input, findings);
  return findings;
}

}  // namespace ashlar::sizing
