#include "ashlar/spec/parallel_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/function_ref.h"

namespace ashlar {

std::string mesh_text(const ParallelSpec& p) {
  std::string text = fmt::format("pp {} x dp {} x cp {} x ", p.pp, p.dp, p.cp);
  if (p.tsp > 1) text += fmt::format("tsp {} x ", p.tsp);
  text += fmt::format("tp {}", p.tp);
  return p.ep > 1 ? text + fmt::format(", ep {}", p.ep) : text;
}

namespace {

// "2 or 4": the nearest numbers below and above `value` that are legal; at most `limit`.
std::string nearest(int64_t value, int64_t limit, function_ref<bool(int64_t)> legal) {
  int64_t below = std::min(value, limit), above = value + 1;
  while (below > 1 && !legal(below)) --below;
  while (above <= limit && !legal(above)) ++above;
  std::string text = fmt::format("{}", std::max<int64_t>(1, below));
  return above <= limit ? fmt::format("{} or {}", text, above) : text;
}

// Key heads are cut among ranks, or ranks share one.
bool heads_fit(const ModelKeys& m, int64_t tp) {
  const int64_t K = m.num_key_value_heads;
  return m.num_attention_heads % tp == 0 && (K % tp == 0 || tp % K == 0);
}

// States are with their key heads, which ranks cannot share.
bool state_heads_fit(const ModelKeys& m, int64_t tp) {
  return !m.has_mixer(LinearSpec::kKind) || m.linear.num_key_heads % tp == 0;
}

std::string tp_rule(const Recipe& recipe) {
  const ModelKeys& m = recipe.model;
  const int64_t tp = recipe.parallel.tp;
  const bool moe = m.has_feed_forward(MoeSpec::kKind), mlp = m.has_feed_forward(MlpSpec::kKind);
  const struct {
    bool used;
    const char* name;
    int64_t value;
  } widths[] = {
      {moe, "moe_intermediate_size", m.moe_intermediate_size},
      {moe, "shared_expert_intermediate_size", m.shared_expert_intermediate_size},
      {mlp, "intermediate_size", m.intermediate_size},
  };
  const auto legal = [&](int64_t t) {
    return heads_fit(m, t) && state_heads_fit(m, t) &&
           std::all_of(std::begin(widths), std::end(widths),
                       [&](const auto& w) { return !w.used || w.value % t == 0; });
  };
  if (legal(tp)) return "";
  const std::string choice = nearest(tp, m.num_attention_heads, legal);
  if (!heads_fit(m, tp))
    return fmt::format(
        "parallel.tp is {} but model.num_attention_heads is {} and model.num_key_value_heads {}: "
        "each rank takes equally many whole heads; choose {}",
        tp, m.num_attention_heads, m.num_key_value_heads, choice);
  if (!state_heads_fit(m, tp))
    return fmt::format(
        "parallel.tp is {} but model.linear_num_key_heads is {}: each rank takes equally many of "
        "them, with the states of their value heads; choose {}",
        tp, m.linear.num_key_heads, choice);
  const auto* width = widths;
  while (!width->used || width->value % tp == 0) ++width;
  return fmt::format(
      "parallel.tp is {} but model.{} is {}: each rank takes an equal part of it; choose {}", tp,
      width->name, width->value, choice);
}

std::string cp_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const int64_t S = recipe.data.sequence_length;
  const bool zigzag = p.cp_layout == CpLayout::kZigzag;
  // A halo comes from the chunk before, so a chunk has at least as many tokens.
  const int64_t reach = std::max<int64_t>(1, model_of(recipe.model).halo_reach());
  const std::string least = reach == 1 ? "1 token" : fmt::format("{} tokens", reach);
  const auto legal = [&](int64_t cp) {
    const int64_t chunks = cp == 1 ? 1 : zigzag ? 2 * cp : cp;
    return S % chunks == 0 && (chunks == 1 || S / chunks >= reach);
  };
  const int64_t ranks = p.sequence_ranks();
  if (legal(ranks)) return "";
  if (p.tsp > 1)
    return fmt::format(
        "parallel.cp {} x parallel.tsp {} is {} but data.sequence_length is {}: {} gives a rank {} "
        "of at least {}; choose a product of {}",
        p.cp, p.tsp, ranks, S, zigzag ? "zigzag" : "contiguous",
        zigzag ? "two equal chunks" : "an equal chunk", least, nearest(ranks, S, legal));
  return fmt::format(
      "parallel.cp is {} but data.sequence_length is {}: {} gives a rank {} of at least {}; "
      "choose {}",
      p.cp, S, zigzag ? "zigzag" : "contiguous", zigzag ? "two equal chunks" : "an equal chunk",
      least, nearest(p.cp, S, legal));
}

std::string state_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const ModelKeys& m = recipe.model;
  if (p.cp == 1 || !m.has_mixer(LinearSpec::kKind) || m.linear.causal ||
      p.state_exchange == StateExchange::kAllGather)
    return "";
  return fmt::format(
      "parallel.state_exchange is {} but model.linear_causal is false, where states come from both "
      "sides; choose all_gather",
      kStateExchangeNames[size_t(p.state_exchange)]);
}

// Every tsp rank holds equally many whole key heads with their query heads, or each key head is
// held by equally many ranks; and an equal width.
std::string tsp_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const ModelKeys& m = recipe.model;
  const int64_t K = m.num_key_value_heads;
  if (p.tsp == 1)
    return p.tsp_head_buckets == 1
               ? ""
               : fmt::format("parallel.tsp_head_buckets is {} but parallel.tsp is 1; choose 1",
                             p.tsp_head_buckets);
  const auto heads_fit = [&](int64_t n) { return K % n == 0 || n % K == 0; };
  const auto legal = [&](int64_t n) {
    return heads_fit(n) && (!m.has_feed_forward(MlpSpec::kKind) || m.intermediate_size % n == 0);
  };
  const std::string choice = nearest(p.tsp, p.tsp * K, legal);
  if (!heads_fit(p.tsp))
    return fmt::format(
        "parallel.tsp is {} but model.num_key_value_heads is {}: one must divide the other; choose "
        "{}",
        p.tsp, K, choice);
  if (!legal(p.tsp))
    return fmt::format(
        "parallel.tsp is {} but model.intermediate_size is {}: each rank takes an equal part of "
        "it; choose {}",
        p.tsp, m.intermediate_size, choice);
  const int64_t heads = K / std::min(K, p.tsp);  // of a rank
  if (heads % p.tsp_head_buckets != 0)
    return fmt::format(
        "parallel.tsp_head_buckets is {} but a rank has {} key heads (model.num_key_value_heads "
        "{}, "
        "parallel.tsp {}), which it must divide; choose {}",
        p.tsp_head_buckets, heads, K, p.tsp,
        nearest(p.tsp_head_buckets, heads, [&](int64_t n) { return heads % n == 0; }));
  if (m.has_mixer(LinearSpec::kKind))
    return fmt::format(
        "parallel.tsp is {} but model.layer_types has linear mixers, whose states are not folded; "
        "choose parallel.cp for them and parallel.tsp 1",
        p.tsp);
  if (p.tp > 1)
    return fmt::format(
        "parallel.tsp is {} and parallel.tp {}, which cut the same heads and widths; choose 1 for "
        "one of them",
        p.tsp, p.tp);
  if (p.cp_exchange != CpExchange::kAllGather)
    return fmt::format(
        "parallel.tsp is {} but parallel.cp_exchange is {}; choose cp_exchange all_gather", p.tsp,
        kCpExchangeNames[size_t(p.cp_exchange)]);
  if (p.pp > 1 && p.schedule == Schedule::kZeroBubble)
    return fmt::format(
        "parallel.tsp is {} but parallel.schedule is \"zb\", whose products wait longer than the "
        "weights of other ranks stay; choose another schedule",
        p.tsp);
  return "";
}

std::string pp_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const int64_t L = recipe.model.num_hidden_layers, runs = p.pp * p.virtual_stages;
  const bool interleaved = p.schedule == Schedule::kInterleaved;
  if (p.pp > 1 && interleaved != (p.virtual_stages > 1))
    return fmt::format(
        "parallel.virtual_stages is {} but parallel.schedule is \"{}\"; choose schedule "
        "\"interleaved\" with 2 virtual stages or more, or 1 virtual stage with another",
        p.virtual_stages, kScheduleNames[size_t(p.schedule)]);
  if (p.pp == 1 && p.virtual_stages > 1)
    return fmt::format(
        "parallel.virtual_stages is {} but parallel.pp is 1, without stages to divide; choose "
        "virtual_stages 1",
        p.virtual_stages);
  if (p.pp > 1 && runs > L)
    return fmt::format(
        "parallel.pp is {} and parallel.virtual_stages {}, but model.num_hidden_layers is {}: each "
        "of the {} virtual stages has at least one; choose a product of {} or less",
        p.pp, p.virtual_stages, L, runs, L);
  if (p.pp > 1 && p.schedule == Schedule::kZeroBubble && recipe.train.recompute)
    return "parallel.schedule is \"zb\" but train.recompute is true, which would overwrite what "
           "the products that wait still read; choose recompute false, or another schedule";
  if (p.pp > 1 && p.schedule == Schedule::kZeroBubble && p.expert_rows < double(p.ep))
    return fmt::format(
        "parallel.schedule is \"zb\" but parallel.expert_rows is {} and parallel.ep {}: rows that "
        "have no room would come in rounds whose products cannot wait; choose expert_rows {} or "
        "more, or another schedule",
        p.expert_rows, p.ep, p.ep);
  if (p.pp > 1 && recipe.balance.scope == BalanceScope::kMicroBatch)
    return fmt::format(
        "moe.balance.scope is \"micro_batch\" but parallel.pp is {}: later micro-batches begin "
        "before earlier ones have ended; choose scope \"global_batch\"",
        p.pp);
  return "";
}

std::string ep_rule(const Recipe& recipe) {
  const int64_t ep = recipe.parallel.ep;
  if (ep == 1) return "";
  if (!recipe.model.has_feed_forward(MoeSpec::kKind))
    return fmt::format("parallel.ep is {} but the model has no experts; choose 1", ep);
  const int64_t tsp = recipe.parallel.tsp;
  if (ep % tsp != 0 && tsp % ep != 0)
    return fmt::format(
        "parallel.ep is {} but parallel.tsp is {}: one must divide the other; choose ep {}", ep,
        tsp,
        nearest(ep, std::max(ep, tsp), [&](int64_t n) { return n % tsp == 0 || tsp % n == 0; }));
  const auto legal = [&](int64_t n) { return recipe.model.num_experts % n == 0; };
  if (legal(ep)) return "";
  return fmt::format(
      "parallel.ep is {} but model.num_experts is {}: each rank takes equally many experts; choose "
      "{}",
      ep, recipe.model.num_experts, nearest(ep, recipe.model.num_experts, legal));
}

// With all_to_all a rank computes with some whole heads of its tp rank's, and several ranks may
// compute with the same key head.
std::string cp_heads_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const ModelKeys& m = recipe.model;
  if (p.cp == 1 || p.cp_exchange != CpExchange::kAllToAll) return "";
  const int64_t queries = m.num_attention_heads / p.tp,
                keys = std::max<int64_t>(1, m.num_key_value_heads / p.tp);
  const auto legal = [&](int64_t cp) {
    return queries % cp == 0 && (keys % cp == 0 || cp % keys == 0);
  };
  if (legal(p.cp)) return "";
  return fmt::format(
      "parallel.cp_exchange is all_to_all with parallel.cp {}, but a rank has {} query heads and "
      "{} "
      "key heads (parallel.tp {}): each takes equally many whole heads; choose parallel.cp {}, or "
      "cp_exchange ring",
      p.cp, queries, keys, p.tp, nearest(p.cp, queries, legal));
}

std::string sequence_parallel_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  if (!p.sequence_parallel) return "";
  const int64_t tokens = recipe.train.micro_batch * recipe.data.sequence_length / p.cp;
  if (tokens % p.tp == 0) return "";
  return fmt::format(
      "parallel.sequence_parallel is true but a micro-batch has {} tokens on a rank "
      "(train.micro_batch {} x data.sequence_length {} / parallel.cp {}) and parallel.tp is {}; "
      "choose sizes whose product tp divides, or sequence_parallel false",
      tokens, recipe.train.micro_batch, recipe.data.sequence_length, p.cp, p.tp);
}

std::string replay_rule(const Recipe& recipe) {
  const ParallelSpec& p = recipe.parallel;
  const int64_t every = recipe.health.replay_every;
  if (every == 0) return "";
  if (p.pp > 1)
    return fmt::format(
        "health.replay_every is {} but parallel.pp is {}: stages of a pipeline are not repeated; "
        "choose replay_every 0, or pp 1",
        every, p.pp);
  if (recipe.balance.scope == BalanceScope::kMicroBatch)
    return fmt::format(
        "health.replay_every is {} but moe.balance.scope is \"micro_batch\": biases that move "
        "within a step change what is repeated; choose replay_every 0, or scope \"global_batch\"",
        every);
  if (p.collectives == CollectiveMode::kNative && p.tp * p.sequence_ranks() > 1)
    return fmt::format(
        "health.replay_every is {} but parallel.collectives is native, which sums in another order "
        "in another place; choose replay_every 0, or collectives exact",
        every);
  return "";
}

int64_t num_streams(const Recipe& recipe) {
  return recipe.data.num_streams > 0 ? recipe.data.num_streams
                                     : default_num_streams(recipe.train.global_batch);
}

// A dp rank takes whole streams and whole micro-batches.
bool dp_fits(const Recipe& recipe, int64_t dp) {
  const int64_t batches = recipe.train.global_batch / recipe.train.micro_batch;
  return batches % dp == 0 && num_streams(recipe) % dp == 0;
}

// "1 2 4", times the ranks that form a dp rank.
std::string legal_dp(const Recipe& recipe, int64_t times) {
  std::string list;
  for (int64_t dp = 1; dp <= num_streams(recipe); ++dp)
    if (dp_fits(recipe, dp)) list += fmt::format("{}{}", list.empty() ? "" : " ", dp * times);
  return list;
}

std::string other_axes(const ParallelSpec& p) {
  return fmt::format("parallel.pp {} x parallel.cp {} x {}parallel.tp {}", p.pp, p.cp,
                     p.tsp > 1 ? fmt::format("parallel.tsp {} x ", p.tsp) : "", p.tp);
}

}  // namespace

std::string parallel_problem(const Recipe& recipe) {
  for (const auto& rule : {tp_rule, tsp_rule, cp_rule, state_rule, cp_heads_rule, pp_rule, ep_rule,
                           sequence_parallel_rule, replay_rule}) {
    std::string problem = rule(recipe);
    if (!problem.empty()) return problem;
  }
  return "";
}

ParallelSpec resolve_parallel(const Recipe& recipe, int64_t num_ranks) {
  ParallelSpec p = recipe.parallel;
  const int64_t others = p.pp * p.cp * p.tsp * p.tp;
  ASHLAR_REQUIRE(num_ranks >= 1, kConfig, "the number of ranks is {}; expected 1 or more",
                 num_ranks);
  if (p.dp > 0)
    ASHLAR_REQUIRE(
        num_ranks == p.dp * others, kConfig,
        "{} ranks, but parallel.dp is {} and {}; start {} ranks, or choose parallel.dp 0: "
        "as many as there are",
        num_ranks, p.dp, other_axes(p), p.dp * others);
  ASHLAR_REQUIRE(num_ranks % others == 0, kConfig, "{} ranks, but {} is {}; start one of: {} ranks",
                 num_ranks, other_axes(p), others, legal_dp(recipe, others));
  p.dp = num_ranks / others;
  ASHLAR_REQUIRE(dp_fits(recipe, p.dp), kConfig,
                 "{} ranks ({} data parallel) cannot share a step of {} micro-batches "
                 "(train.global_batch {} / train.micro_batch {}) in {} streams "
                 "(data.num_streams); choose one of: {}, or a smaller train.micro_batch or "
                 "a larger train.global_batch",
                 num_ranks, p.dp, recipe.train.global_batch / recipe.train.micro_batch,
                 recipe.train.global_batch, recipe.train.micro_batch, num_streams(recipe),
                 legal_dp(recipe, others));
  ASHLAR_REQUIRE(
      p.dp * p.sequence_ranks() % p.ep == 0, kConfig,
      "parallel.ep is {} but there are {} ranks with other tokens (dp {} x cp {}{}), which "
      "it must divide; choose {}",
      p.ep, p.dp * p.sequence_ranks(), p.dp, p.cp, p.tsp > 1 ? fmt::format(" x tsp {}", p.tsp) : "",
      nearest(p.ep, p.dp * p.sequence_ranks(),
              [&](int64_t n) { return p.dp * p.sequence_ranks() % n == 0; }));
  const int64_t batches = recipe.train.global_batch / recipe.train.micro_batch / p.dp;
  ASHLAR_REQUIRE(p.pp == 1 || p.schedule != Schedule::kInterleaved || batches % p.pp == 0, kConfig,
                 "parallel.schedule is \"interleaved\" but a step has {} micro-batches a rank, "
                 "which parallel.pp {} must divide; choose another train.global_batch or schedule",
                 batches, p.pp);
  return p;
}

}  // namespace ashlar
