#include "ashlar/spec/keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/spec/key_rows.h"

namespace ashlar {
namespace {

using Rows = std::vector<Key>;

// The one key that is a field of Recipe itself.
Key run_name() {
  Key row;
  row.name = "run.name";
  row.type = KeyType::kText;
  row.meaning = "a name for logs and reports";
  row.get = [](const Recipe& recipe) { return KeyValue(recipe.name); };
  row.set = [](Recipe& recipe, const KeyValue& value) {
    recipe.name = std::get<std::string>(value);
  };
  return row;
}

Rows balance_and_init() {
  constexpr auto b = &Recipe::balance;
  constexpr auto i = &Recipe::init;
  using B = BalanceSpec;
  using I = InitSpec;
  return {
      number("moe.router_aux_loss_coef", b, &B::aux_loss_coef, kNotNegative,
             "coefficient of the balancing loss of each linear router; 0: none"),
      number("moe.router_z_loss_coef", b, &B::z_loss_coef, kNotNegative,
             "coefficient of the z-loss of each linear router; 0: none"),
      number("moe.balance.lr", b, &B::lr, kNotNegative,
             "rate of the balancing biases, decayed with the main schedule"),
      number("moe.balance.beta1", b, &B::beta1, kBeta, "first moment of the bias update"),
      number("moe.balance.beta2", b, &B::beta2, kBeta, "second moment of the bias update"),
      number("moe.balance.eps", b, &B::eps, kPositive, "guard of the bias update"),
      word("moe.balance.target", b, &B::target, {"real_experts", "all_classes"},
           "wanted load: 1/E with the skip bias frozen, or 1/(E+1) with it trained"),
      word("moe.balance.scope", b, &B::scope, {"global_batch", "micro_batch"},
           "tokens over which loads are counted"),
      text("init.model", i, &I::model,
           "weights that a new run begins with, and the model of a recipe that states none: a "
           "Hugging Face directory, a run's directory, a checkpoint root or a step of one; empty: "
           "from the seed"),
      number("init.std", i, &I::std, kNotNegative, "standard deviation of normal weights"),
      number("init.temp", i, &I::temp, kNotNegative, "temperature of the keys at the start"),
      word("init.conv", i, &I::conv_uniform, {"normal", "uniform"},
           "convolutions: normal with zero biases, or all uniform in +-1/sqrt(fan-in)"),
      word("init.output_scale", i, &I::output_depth, {"one", "depth"},
           "factor on o_proj and expert down_proj: 1, or 1/sqrt(2 layers)"),
  };
}

Rows data() {
  constexpr auto d = &Recipe::data;
  using D = DataSpec;
  return {
      key("data.train", KeyType::kBlend, d, &D::train, "prepared datasets to train on, weighted"),
      key("data.validation", KeyType::kBlend, d, &D::validation,
          "prepared datasets to evaluate on; empty: the end of the training data"),
      number("data.validation_fraction", d, &D::validation_fraction, {0, 0.5},
             "share cut from the end of the training data where data.validation is empty"),
      text("data.tokenizer", d, &D::tokenizer,
           "tokenizer file or its directory, or byte; empty: the one of the prepared dataset"),
      integer("data.sequence_length", d, &D::sequence_length, {1, 1 << 24}, "tokens of a sequence"),
      word("data.packing", d, &D::packing, {"concat", "best_fit"},
           "concatenate and split, or whole documents into the fullest row where they fit"),
      boolean("data.document_reset", d, &D::document_reset,
              "attention, convolutions and positions start anew with each document"),
      boolean("data.mask_document_end", d, &D::mask_document_end,
              "no loss on the first token of the next document"),
      integer("data.num_streams", d, &D::num_streams, {0, 1 << 24},
              "logical streams that fix the data order; 0: 1024 if it divides train.global_batch, "
              "else train.global_batch"),
      boolean(
          "data.allow_dataset_change", d, &D::allow_dataset_change,
          "go on with other datasets, weights or lengths than the checkpoint's: datasets that stay "
          "go on, new ones start at their beginning"),
      word("data.verify", d, &D::verify, {"off", "background"},
           "compare whole datasets with their checksums while training; damage ends the run"),
  };
}

Rows optim() {
  constexpr auto o = &Recipe::optim;
  using O = OptimSpec;
  return {
      word("optim.matrices", o, &O::matrices, {"muon", "adamw"}, "optimizer of 2-D weights"),
      number("optim.lr", o, &O::lr, kNotNegative, "peak rate of all parameters"),
      number("optim.lr_min", o, &O::lr_min, kNotNegative, "rate at the last step"),
      integer("optim.warmup_steps", o, &O::warmup_steps, kCount, "steps of linear warm-up"),
      word("optim.schedule", o, &O::schedule, {"cosine", "linear", "constant"},
           "shape of the decay after the warm-up"),
      number("optim.weight_decay", o, &O::weight_decay, kNotNegative,
             "decoupled decay of weights; norms, biases, scales and temperatures have none"),
      number("optim.clip_norm", o, &O::clip_norm, kNotNegative,
             "largest global gradient norm; 0: no clipping"),
      number("optim.beta1", o, &O::beta1, kBeta, "first moment of AdamW"),
      number("optim.beta2", o, &O::beta2, kBeta, "second moment of AdamW"),
      number("optim.eps", o, &O::eps, kPositive, "guard of AdamW"),
      number("optim.muon_momentum", o, &O::muon_momentum, kBeta, "momentum of Muon"),
      boolean("optim.muon_nesterov", o, &O::muon_nesterov, "Nesterov form of Muon's momentum"),
      number("optim.muon_scale", o, &O::muon_scale, kPositive,
             "Muon's rate is lr * muon_scale * sqrt(max(rows, columns))"),
      integer("optim.muon_steps", o, &O::muon_steps, {1, 50}, "Newton-Schulz steps"),
      boolean("optim.muon_split_gate_up", o, &O::muon_split_gate_up,
              "orthogonalise gate and up of an expert separately"),
  };
}

Rows parallel() {
  constexpr auto p = &Recipe::parallel;
  using P = ParallelSpec;
  constexpr KeyRange ranks{1, 1 << 20};
  return {
      integer("parallel.dp", p, &P::dp, {0, 1 << 20},
              "ranks that take different sequences; 0: what pp, cp, tsp and tp leave"),
      integer("parallel.cp", p, &P::cp, ranks, "ranks that share each sequence"),
      integer("parallel.tp", p, &P::tp, ranks, "ranks that share heads and expert widths"),
      integer("parallel.tsp", p, &P::tsp, ranks,
              "ranks that share each sequence as well as heads and widths, which travel"),
      integer("parallel.tsp_head_buckets", p, &P::tsp_head_buckets, ranks,
              "parts of a tsp rank's key heads whose keys are gathered one after another"),
      integer("parallel.ep", p, &P::ep, ranks,
              "of dp x cp x tsp ranks, those that share the experts"),
      number("parallel.expert_rows", p, &P::expert_rows, {1.0, 1e6},
             "with ep: room for so many times the rows of an even load; more come in rounds"),
      integer("parallel.pp", p, &P::pp, ranks, "pipeline stages, each with a part of the blocks"),
      word("parallel.schedule", p, &P::schedule, {"gpipe", "1f1b", "interleaved", "zb"},
           "order of micro-batches in a pipeline"),
      integer("parallel.virtual_stages", p, &P::virtual_stages, ranks,
              "chunks of blocks of a pipeline stage; more than 1 with schedule \"interleaved\""),
      integer("parallel.zero", p, &P::zero, {0, 3},
              "what dp, cp and tsp ranks shard: 0 nothing, 1 optimizer state, 2 gradients too, "
              "3 weights too"),
      word("parallel.zero_layout", p, &P::zero_layout, {"contiguous", "bucketed"},
           "a rank's shard: one flat range, or a slice of every bucket"),
      integer_or_word("parallel.bucket_bytes", p, &P::bucket_bytes, {1024, int64_t{1} << 40},
                      "auto", kAutoBucketBytes,
                      "gradients or weights per collective; auto: as many as the links of the data "
                      "ranks need to be saturated, by the profile train.machine"),
      boolean("parallel.overlap", p, &P::overlap,
              "communicate while computing; false only to measure what that gains"),
      boolean("parallel.sequence_parallel", p, &P::sequence_parallel,
              "with tp: norms and merges on a share of the tokens"),
      word("parallel.cp_layout", p, &P::cp_layout, {"zigzag", "contiguous"},
           "which tokens a cp rank holds: a chunk from both ends (equal work), or one piece"),
      word("parallel.cp_exchange", p, &P::cp_exchange,
           {kCpExchangeNames.begin(), kCpExchangeNames.end()},
           "how keys and values reach the cp ranks"),
      word("parallel.state_exchange", p, &P::state_exchange,
           {kStateExchangeNames.begin(), kStateExchangeNames.end()},
           "how the states of linear mixers reach the cp ranks: gathered (LASP-2), from rank to "
           "rank, whole (LASP-1) or in groups of heads, or by recursive doubling"),
      word("parallel.muon", p, &P::muon, {"auto", "replicate", "owner"},
           "who orthogonalises a matrix that several ranks hold: all of them, or one; auto: all up "
           "to 3"),
      word("parallel.collectives", p, &P::collectives, {"exact", "native"},
           "sums in one order on every engine, or by MPI's own collectives in its order"),
      number("parallel.timeout_s", p, &P::timeout_s, kPositive,
             "seconds that a rank waits for others before it names them and ends the run"),
  };
}

Rows train() {
  constexpr auto t = &Recipe::train;
  using T = TrainSpec;
  return {
      text("train.run_dir", t, &T::run_dir, "directory of checkpoints, metrics and logs"),
      integer("train.seed", t, &T::seed, kCount, "seed of weights and data order"),
      integer("train.steps", t, &T::steps, {1, 1 << 30}, "optimizer steps of the run"),
      integer("train.micro_batch", t, &T::micro_batch, {1, 1 << 20}, "sequences per forward pass"),
      integer("train.global_batch", t, &T::global_batch, {1, 1 << 20},
              "sequences per optimizer step; a multiple of train.micro_batch"),
      word("train.device", t, &T::device, {kTrainDeviceNames.begin(), kTrainDeviceNames.end()},
           "what computes; auto: a GPU where there is one that has all functions of the recipe, "
           "else the CPU"),
      word("train.precision", t, &T::precision, {kPrecisionNames.begin(), kPrecisionNames.end()},
           "type of the products; auto: bf16 where the hardware multiplies it faster, else fp32"),
      word(
          "train.stream", t, &T::stream, {kStreamTypeNames.begin(), kStreamTypeNames.end()},
          "type of the residual stream and its gradient; bf16 halves what recomputation keeps, and "
          "needs precision bf16"),
      boolean("train.recompute", t, &T::recompute,
              "compute a block's forward again in its backward: less memory, more time"),
      integer("train.threads", t, &T::threads, {0, 4096}, "CPU threads; 0: one per CPU"),
      integer("train.eval_every", t, &T::eval_every, kCount, "steps between evaluations; 0: never"),
      integer("train.eval_sequences", t, &T::eval_sequences, kAtLeastOne,
              "sequences of an evaluation, the first of the validation data, each once; all if "
              "there are fewer"),
      integer("train.log_every", t, &T::log_every, kAtLeastOne, "steps between console lines"),
      integer("train.expert_loads_every", t, &T::expert_loads_every, kCount,
              "steps between rows with the choices of every expert (docs/metrics.md); 0: none"),
      number("train.max_minutes", t, &T::max_minutes, kNotNegative,
             "save and stop after this time; 0: no limit"),
      integer("train.memory_limit_mib", t, &T::memory_limit_mib, {0, 1 << 30},
              "most memory that the run may allocate; 0: no limit"),
      integer("train.trace_steps", t, &T::trace_steps, {0, 1000},
              "steps, from the second of a start on, whose trace every rank writes; 0: none"),
      text("train.machine", t, &T::machine,
           "profile of this machine, whose table of products the kernels read, and whose curves "
           "size buckets; empty: none"),
      key("train.freeze", KeyType::kTexts, &Recipe::tune, &TuneSpec::freeze,
          "patterns of tensors of init.model that stay as they are, as model.embed_tokens.*"),
  };
}

Rows lora() {
  constexpr auto t = &Recipe::tune;
  const auto of_lora = [](auto field) { return inside(&TuneSpec::lora, field); };
  using L = LoraSpec;
  return {
      integer("lora.rank", t, of_lora(&L::rank), {0, 4096},
              "rank of the adapters that are trained instead of the weights; 0: none"),
      number("lora.alpha", t, of_lora(&L::alpha), kPositive,
             "an adapter is scaled by lora.alpha / lora.rank"),
      boolean("lora.rslora", t, of_lora(&L::rslora),
              "scale by lora.alpha / sqrt(lora.rank) instead"),
      key("lora.targets", KeyType::kTexts, t, of_lora(&L::targets),
          "layers that get adapters: attention, mlp, experts, or names of layers, as q_proj"),
      key("lora.modules_to_save", KeyType::kTexts, t, of_lora(&L::modules_to_save),
          "patterns of tensors that are trained whole beside the adapters, as *norm.weight"),
  };
}

Rows health_and_checkpoint() {
  constexpr auto h = &Recipe::health;
  constexpr auto c = &Recipe::checkpoint;
  using H = HealthSpec;
  using C = CheckpointSpec;
  return {
      integer("health.window", h, &H::window, {2, 1 << 20},
              "steps over which loss and gradient norm are judged"),
      number("health.max_norm_ratio", h, &H::max_norm_ratio, kPositive,
             "a step whose gradient norm is more than this times the largest of the window is "
             "skipped"),
      number("health.max_loss_rise", h, &H::max_loss_rise, kNotNegative,
             "a step whose loss is more than this above the largest of the window, nats, is "
             "skipped"),
      integer("health.max_consecutive_skips", h, &H::max_consecutive_skips, kCount,
              "steps in a row whose loss or gradient norm is not finite after which the run gives "
              "up"),
      integer("health.max_skips_per_1000", h, &H::max_skips_per_1000, {0, 1000},
              "skipped steps among 1000 after which the run gives up"),
      integer("health.weights_every", h, &H::weights_every, kCount,
              "steps after which ranks with copies of the same weights compare a 64th of them; 0: "
              "never"),
      integer("health.replay_every", h, &H::replay_every, kCount,
              "steps after which data-parallel ranks repeat each other's first micro-batch and "
              "compare gradients; 0: never"),
      integer("checkpoint.every", c, &C::every, {-1, kNone},
              "steps between checkpoints; 0: only at the end; -1: never"),
      integer("checkpoint.keep", c, &C::keep, kAtLeastOne,
              "newest checkpoints kept, beside those that are pinned or being read"),
      integer("checkpoint.keep_every", c, &C::keep_every, kCount,
              "checkpoints at multiples of this stay for ever; 0: none"),
      boolean("checkpoint.async", c, &C::async, "write while training goes on"),
      integer("checkpoint.arena_mib", c, &C::arena_mib, kCount,
              "memory of a rank that snapshots pass through, MiB; 0: what two snapshots take, at "
              "most a quarter of the machine's (or container's) memory among its ranks"),
      integer(
          "checkpoint.gather_mib", c, &C::gather_mib, kCount,
          "if every rank writes less than this, MiB, one rank of each machine writes for all of "
          "that machine; 0: every rank writes its own"),
      text("checkpoint.control_interface", c, &C::control_interface,
           "network interface of the control links between writers, as eth0; empty: the loopback "
           "on one machine, else every interface that is up; none: no links, and saves go through "
           "the checkpoint's directory"),
  };
}

Rows launch() {
  constexpr auto l = &Recipe::launch;
  using L = LaunchSpec;
  return {
      integer("launch.restarts_per_hour", l, &L::restarts_per_hour, kCount,
              "restarts within an hour after which the launcher gives up"),
      integer("launch.restarts", l, &L::restarts, kCount,
              "restarts in all after which the launcher gives up"),
      integer("launch.fruitless_attempts", l, &L::fruitless_attempts, kAtLeastOne,
              "attempts in a row without a new checkpoint after which the launcher gives up"),
      number("launch.backoff_s", l, &L::backoff_s, kNotNegative,
             "seconds before the second restart for one cause in a row; the first is at once, and "
             "later ones wait 3, 12 and 60 times as long"),
      number("launch.hang_s", l, &L::hang_s, kPositive,
             "least silence of all ranks, in seconds, that the launcher takes for a hang"),
      word("launch.on_numeric", l, &L::on_numeric, {"stop", "skip_samples", "lower_lr"},
           "once the health check gives up: stop, pass the steps that it skipped, or train at a "
           "lower rate"),
      number("launch.lr_factor", l, &L::lr_factor, {.min = 0, .max = 1, .min_excluded = true},
             "factor of the learning rate each time that lower_lr lowers it"),
      number("launch.wait_nodes_s", l, &L::wait_nodes_s, kPositive,
             "seconds for which a launch of several machines waits for the nodes of an attempt "
             "before it gives up"),
      word(
          "launch.elastic", l, &L::elastic, {"off", "shrink", "full"},
          "if nodes are missing and there are no spares: wait, go on with a layout of fewer nodes, "
          "or go back to all nodes as well, at a save"),
      boolean("launch.preflight", l, &L::preflight,
              "a launch of several machines measures its nodes before it uses them"),
      key("launch.notify", KeyType::kTexts, l, &L::notify,
          "program and arguments that get every event of the launcher as JSON on stdin; empty: "
          "none"),
  };
}

std::string bound_text(double bound) {
  return bound == std::floor(bound) ? fmt::format("{:.0f}", bound) : fmt::format("{}", bound);
}

std::string range_text(const KeyRange& range) {
  const std::string low = bound_text(range.min);
  if (range.max == kNone) return (range.min_excluded ? " above " : " of at least ") + low;
  const std::string high = bound_text(range.max);
  if (range.min_excluded) return fmt::format(" above {} and at most {}", low, high);
  if (range.max_excluded) return fmt::format(" from {} to below {}", low, high);
  return fmt::format(" from {} to {}", low, high);
}

bool in_range(const KeyRange& range, double value) {
  if (!std::isfinite(value)) return false;
  const bool low = range.min_excluded ? value > range.min : value >= range.min;
  const bool high = range.max_excluded ? value < range.max : value <= range.max;
  return low && high;
}

}  // namespace

const std::vector<Key>& recipe_keys() {
  static const Rows kRows = [] {
    Rows all{run_name()};
    for (const Rows& part :
         {model_size_rows(), model_choice_rows(), balance_and_init(), data(), optim(), parallel(),
          train(), lora(), health_and_checkpoint(), launch()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return kRows;
}

std::string expected_of(const Key& key) {
  switch (key.type) {
    case KeyType::kBoolean:
      return "true or false";
    case KeyType::kInteger:
      return "an integer" + range_text(key.range) +
             (key.words.empty() ? "" : ", or " + key.words[0]);
    case KeyType::kNumber:
      return "a number" + range_text(key.range);
    case KeyType::kText:
      return "a text";
    case KeyType::kWord:
      return fmt::format("one of {}", fmt::join(key.words, ", "));
    case KeyType::kBlend:
      return "a dataset prefix, \"A:0.7,B:0.3\" or a list of { path, weight }";
    case KeyType::kLayers:
      return layer_types_text() +
             ", or a list of such types, one per block or so many that they repeat";
    case KeyType::kIds:
      return "an integer" + range_text(key.range) + ", or a list of such, each once";
    case KeyType::kTexts:
      return "a text, or a list of texts, none of them empty";
  }
  ASHLAR_ASSERT(false && "a KeyType without a description");
}

std::string range_problem(const Key& key, const KeyValue& value, std::string_view shown_name) {
  std::vector<double> numbers;
  if (const auto* integer = std::get_if<int64_t>(&value))
    numbers = {static_cast<double>(*integer)};
  else if (const auto* number = std::get_if<double>(&value))
    numbers = {*number};
  else if (const auto* ids = std::get_if<std::vector<int64_t>>(&value))
    for (const int64_t id : *ids) numbers.push_back(static_cast<double>(id));
  if (std::ranges::all_of(numbers, [&](double number) { return in_range(key.range, number); }))
    return "";
  return fmt::format("{} is {}; expected {}", shown_name, value_text(value), expected_of(key));
}

}  // namespace ashlar
