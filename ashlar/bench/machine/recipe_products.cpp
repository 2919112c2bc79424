#include "ashlar/bench/machine/recipe_products.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ashlar/bench/machine/product_sweeps.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/newton_schulz.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/dry_rank.h"

namespace ashlar::bench {
namespace {

// The product calls of one layout.
train::KernelCalls calls_of_layout(const Layout& layout, DType compute, int num_ranks,
                                   Threads& threads) {
  constexpr int kSmallWorld = 16;
  Recipe recipe = layout.recipe;
  recipe.parallel.bucket_bytes = ParallelSpec().bucket_bytes;  // no product depends on it
  train::KernelCalls all;
  std::set<std::array<int, 4>> seen;
  for (int rank = 0; rank < num_ranks; ++rank) {
    train::DryRank dry(recipe, compute, num_ranks, rank, threads);
    const parallel::Groups& groups = dry.trainer().model().groups();
    using parallel::Axis;
    const bool is_new = seen.insert({groups.coordinate(Axis::kPp), groups.coordinate(Axis::kCp),
                                     groups.coordinate(Axis::kTsp), groups.coordinate(Axis::kTp)})
                            .second;
    if (!is_new && num_ranks > kSmallWorld) continue;
    for (const auto& [call, count] : dry.calls_of_step()) all[call] += count;
  }
  return all;
}

// The rate of one row, of every rank, and its line of text.
class ProductRowMaker {
 public:
  ProductRowMaker(const Rig& rig, const OneDnnPeer* peer) : rig_(rig), peer_(peer) {}

  // False if there is no time left.
  bool row(RateTable& table, const RecipeProduct& p) {
    const bool measured = p.product ? product(table, p) : iteration(table, p);
    if (measured) note(table, p);
    return measured;
  }
  // Why the machine cannot measure it; "" if it can.
  static std::string obstacle(const RecipeProduct& p) {
    const int64_t needed = p.product ? p.product->memory_bytes() : p.call.bytes * 2,
                  limit = memory_limit_bytes() / 2;
    return limit > 0 && needed > limit
               ? fmt::format("its tensors need {}, more than half of the memory",
                             format_bytes(needed))
               : "";
  }

 private:
  bool product(RateTable& table, const RecipeProduct& p) {
    OneProduct product(rig_.threads, *p.product);
    return table.row(p.subject(), double(p.call.dims.rows), p.product->flop(),
                     [&] { product.run(); });
  }
  bool iteration(RateTable& table, const RecipeProduct& p) {
    const TraceDims& d = p.call.dims;
    ProductCase c(rig_.threads);
    const Tensor x = c.random(DType::kF32, {d.groups, d.rows, d.cols});
    return table.row(p.subject(), double(d.groups), double(p.call.flop),
                     [&] { kernels::orthogonalize(c.context(), p.call.dtype, x, d.depth); });
  }
  void note(RateTable& table, const RecipeProduct& p) {
    const TraceDims& d = p.call.dims;
    const double share = table.last().median / table.ceiling();
    std::vector<std::pair<std::string, double>> members{
        {"groups", d.groups},
        {"rows", d.rows},
        {"cols", d.cols},
        {"depth", d.depth},
        {"flop", p.call.flop},
        {"bytes", p.call.bytes},
        {"calls", p.calls},
        {"layouts", double(p.layouts.size())},
        {"peak", table.ceiling()},
        {"share_of_peak", share},
        {"median_us", double(p.call.flop) / table.last().median * 1e-6}};
    std::string text = fmt::format(" {:>5.0f}%", 100 * share);
    if (peer_ && p.product) {
      const ProductSpec& s = *p.product;
      constexpr double kSeconds = 0.1;
      const KernelTime theirs =
          peer_->time({s.compute, s.result(), s.direction}, s.G, s.T * s.column_groups(), s.N, s.K,
                      rig_.quick ? kSeconds / 5 : kSeconds);
      const double rate = theirs.flops() * 1e-12;
      text += fmt::format(" {:>9.4g} {:>6.2f}", rate, table.last().median / rate);
      members.emplace_back("peer", rate);
    }
    table.note(text, members);
  }

  const Rig& rig_;
  const OneDnnPeer* peer_;
};

// Products first, over their rows, then Newton-Schulz, over the number of matrices.
void measure_rows(const Rig& rig, DType compute, std::span<const RecipeProduct> list,
                  const OneDnnPeer* peer, Findings& findings) {
  constexpr int kWidth = 60;  // of a subject
  ProductRowMaker maker(rig, peer);
  for (const bool products : {true, false}) {
    const auto is_kind = [&](const RecipeProduct& p) { return p.product.has_value() == products; };
    if (std::none_of(list.begin(), list.end(), is_kind)) continue;
    RateTable table(rig, findings, products ? "rows" : "matrices", "TFLOP/s", 1e12, kWidth);
    limit_by_peak(rig, compute, table);
    for (const RecipeProduct& p : list) {
      if (!is_kind(p)) continue;
      if (const std::string why = maker.obstacle(p); !why.empty())
        findings.text +=
            fmt::format("{} at {} rows: not measured: {}\n", p.subject(), p.call.dims.rows, why);
      else if (!maker.row(table, p))
        break;
    }
  }
}

}  // namespace

std::string RecipeProduct::subject() const {
  const TraceDims& d = call.dims;
  if (!product) return fmt::format("Newton-Schulz {} {} x {}", name_of(call.dtype), d.rows, d.cols);
  std::string text =
      fmt::format("{} {} G {} N {} K {}", call.op, name_of(call.dtype), d.groups, d.cols, d.depth);
  const DType from = product->direction == Direction::kBackwardInput ? product->y : product->x;
  if (from != call.dtype) text += fmt::format(" from {}", name_of(from));
  if (product->result() != call.dtype) text += fmt::format(" to {}", name_of(product->result()));
  return text;
}

std::vector<RecipeProduct> list_products(std::span<const Layout> layouts, DType compute, int ranks,
                                         Threads& threads) {
  std::map<train::KernelCall, RecipeProduct> found;
  for (size_t i = 0; i < layouts.size(); ++i)
    for (const auto& [call, count] : calls_of_layout(layouts[i], compute, ranks, threads)) {
      const std::optional<ProductSpec> product = product_of(call);
      if (!product && call.op != "orthogonalize") continue;
      RecipeProduct& p = found.try_emplace(call, RecipeProduct{call, product, 0, {}}).first->second;
      p.calls += count;
      p.layouts.push_back(i);
    }
  std::vector<RecipeProduct> list;
  for (auto& [call, product] : found) list.push_back(std::move(product));
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return double(a.calls) * double(a.call.flop) > double(b.calls) * double(b.call.flop);
  });
  return list;
}

DType compute_of(const Rig& rig, const RecipeProductOptions& options) {
  const Precision precision = options.layouts[0].recipe.train.precision;
  const DType compute = options.compute                 ? *options.compute
                        : precision == Precision::kAuto ? rig.products()
                                                        : nn::resolve_precision(precision);
  ASHLAR_REQUIRE(compute != DType::kF64, kConfig,
                 "train.precision is fp64; expected auto, bf16 or fp32: products of fp64 run the "
                 "plain reference");
  return compute;
}

Findings measure_recipe_products(const Rig& rig, const RecipeProductOptions& options) {
  Findings findings;
  const DType compute = compute_of(rig, options);
  std::unique_ptr<OneDnnPeer> peer;
  if (!options.peer.empty()) {
    ASHLAR_REQUIRE(rig.ranks.size() == 1, kConfig,
                   "--peer runs on the threads of one rank, but there are {} ranks; leave out "
                   "--ranks and set --world",
                   rig.ranks.size());
    peer = std::make_unique<OneDnnPeer>(options.peer, rig.threads.size());
  }
  const int world = options.world > 0 ? options.world : rig.ranks.size();
  std::vector<RecipeProduct> list = list_products(options.layouts, compute, world, rig.threads);
  findings.text += fmt::format(
      "{} distinct products of {} layout{} on {} rank{}; the column after them is the share of the "
      "peak{}\n",
      list.size(), options.layouts.size(), options.layouts.size() == 1 ? "" : "s", world,
      world == 1 ? "" : "s",
      peer ? fmt::format(", then the rate of {} and how many times faster ours are", peer->name())
           : "");
  std::erase_if(list, [&](const RecipeProduct& p) {
    return p.subject().find(options.only) == std::string::npos;
  });
  ASHLAR_REQUIRE(!list.empty(), kConfig,
                 "--only is {:?}; no product of the recipe holds it; leave it out to see them all",
                 options.only);
  measure_rows(rig, compute, list, peer.get(), findings);
  if (options.sweeps) sweep_products(rig, findings);
  return findings;
}

}  // namespace ashlar::bench
