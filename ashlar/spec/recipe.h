// A run as a TOML recipe states it: one struct per section, with the defaults of its keys.
//
//   [run] [model] [moe] [moe.balance] [init] [data] [optim] [parallel] [train] [lora] [health]
//   [checkpoint] [launch]
//
// docs/recipes.md lists the keys.
//
// load_recipe reads a file, applies `section.key=value` overrides, rejects unknown keys with the
// nearest known name, and validates.  Every message reads "FILE: section.key is VALUE; expected
// ...", with "command line" for FILE where an override alone is to blame.
//   Where init.model names weights, keys that [model] leaves out are taken from their model, if the
// caller can find it (FindModel; train/read_recipe.h).
// Errors  kConfig; kStorage where the file exists but cannot be read.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/spec/model_keys.h"
#include "ashlar/spec/tune_spec.h"

namespace ashlar {

enum class Precision : uint8_t { kAuto, kBF16, kF32, kF64 };
inline constexpr std::array<const char*, 4> kPrecisionNames{"auto", "bf16", "fp32", "fp64"};

enum class TrainDevice : uint8_t { kAuto, kCpu, kGpu };
inline constexpr std::array<const char*, 3> kTrainDeviceNames{"auto", "cpu", "gpu"};

enum class StreamType : uint8_t { kF32, kBF16 };  // with precision fp64, kF32 stands for fp64
inline constexpr std::array<const char*, 2> kStreamTypeNames{"fp32", "bf16"};
enum class Packing : uint8_t { kConcat, kBestFit };
enum class MatrixOptimizer : uint8_t { kMuon, kAdamW };
enum class BalanceTarget : uint8_t { kRealExperts, kAllClasses };
enum class BalanceScope : uint8_t { kGlobalBatch, kMicroBatch };
enum class DecaySchedule : uint8_t { kCosine, kLinear, kConstant };
enum class ShardLayout : uint8_t { kContiguous, kBucketed };
enum class CpLayout : uint8_t { kZigzag, kContiguous };
enum class CpExchange : uint8_t { kAllGather, kRing, kAllToAll };
inline constexpr std::array<const char*, 3> kCpExchangeNames{"all_gather", "ring", "all_to_all"};
// How the states of linear mixers reach the cp ranks (parallel/cp_states.h).
enum class StateExchange : uint8_t { kAllGather, kChain, kScan, kExclusiveScan };
inline constexpr std::array<const char*, 4> kStateExchangeNames{"all_gather", "chain", "scan",
                                                                "exclusive_scan"};
enum class Schedule : uint8_t { kGpipe, k1f1b, kInterleaved, kZeroBubble };  // docs/parallel/pp.md
inline constexpr std::array<const char*, 4> kScheduleNames{"gpipe", "1f1b", "interleaved", "zb"};
enum class MuonMode : uint8_t { kAuto, kReplicate, kOwner };
enum class CollectiveMode : uint8_t { kExact, kNative };  // docs/comm.md
// The launcher's answer to a run whose health check gave up (docs/survive.md).
enum class NumericAnswer : uint8_t { kStop, kSkipSamples, kLowerLr };
// The answer of a launch of several machines to too few nodes: it waits; it goes on with fewer; it
// also goes back to all of them, at a save.
enum class Elastic : uint8_t { kOff, kShrink, kFull };

struct InitSpec {
  std::string model{};  // weights that a new run begins with; "": drawn as the other keys say
  double std = 0.02;
  double temp = 1.0;
  bool conv_uniform = false;  // init.conv = "normal" | "uniform"
  bool output_depth = false;  // init.output_scale = "one" | "depth": o, down times 1/sqrt(2L)
  friend bool operator==(const InitSpec&, const InitSpec&) = default;
};

// How experts are kept evenly used: losses of linear routers, and biases.
struct BalanceSpec {
  double aux_loss_coef = 0.0, z_loss_coef = 0.0;  // nn/linear_router.h
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  BalanceTarget target = BalanceTarget::kRealExperts;
  BalanceScope scope = BalanceScope::kGlobalBatch;
  friend bool operator==(const BalanceSpec&, const BalanceSpec&) = default;
};

struct BlendEntry {
  std::string path;  // PREFIX of a prepared dataset
  double weight = 1.0;
  friend bool operator==(const BlendEntry&, const BlendEntry&) = default;
};

struct DataSpec {
  std::vector<BlendEntry> train;       // data.train = "PREFIX" or [{path=..., weight=...}, ...]
  std::vector<BlendEntry> validation;  // empty: the last validation_fraction of train
  double validation_fraction = 0.01;
  std::string tokenizer;  // file, "byte", or "" (that of the prepared dataset)
  int64_t sequence_length = 512;
  Packing packing = Packing::kConcat;
  bool document_reset = true;      // false: the row is one sequence
  bool mask_document_end = false;  // no loss on the first token of the next document
  int64_t num_streams = 0;         // L, divides the global batch; 0: default_num_streams
  bool allow_dataset_change = false;
  bool verify = true;  // the whole .bin is compared with its checksum while training
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

struct OptimSpec {
  MatrixOptimizer matrices = MatrixOptimizer::kMuon;  // of 2-D weights
  double lr = 6e-4, lr_min = 6e-5;
  int64_t warmup_steps = 100;
  DecaySchedule schedule = DecaySchedule::kCosine;
  double weight_decay = 0.1, clip_norm = 1.0;  // clip_norm 0: no clipping
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  double muon_scale = 0.2;  // lambda = lr * scale * sqrt(max(rows, cols))
  int64_t muon_steps = 5;
  bool muon_split_gate_up = false;
  friend bool operator==(const OptimSpec&, const OptimSpec&) = default;
};

// The recipe has "auto": sizing/bucket_bytes.h replaces it once the number of ranks is known.
inline constexpr int64_t kAutoBucketBytes = 0;

// How ranks share the work: a mesh of pp x dp x cp x tsp x tp ranks, with ep of dp x cp x tsp
// (docs/parallel/README.md).
struct ParallelSpec {
  int64_t dp = 0;  // 0: ranks / (pp cp tsp tp)
  int64_t cp = 1, tp = 1, pp = 1, ep = 1;
  int64_t tsp = 1;               // docs/parallel/tsp.md
  int64_t tsp_head_buckets = 1;  // parts in which a rank's key heads are gathered in turn
  Schedule schedule = Schedule::k1f1b;
  int64_t virtual_stages = 1;  // chunks of blocks of each of the pp stages
  double expert_rows = 2.0;    // ep: room for rows, as a multiple of an even load
  int64_t zero = 1;  // 0: nothing sharded; 1: optimizer state; 2: gradients too; 3: weights too
  ShardLayout zero_layout = ShardLayout::kContiguous;
  int64_t bucket_bytes = int64_t{32} << 20;  // or kAutoBucketBytes
  bool overlap = true;                       // false: communication waits at the end of the step
  bool sequence_parallel = false;            // tp: norms and merges on 1/tp of the tokens
  CpLayout cp_layout = CpLayout::kZigzag;
  CpExchange cp_exchange = CpExchange::kAllGather;
  StateExchange state_exchange = StateExchange::kAllGather;
  MuonMode muon = MuonMode::kAuto;
  CollectiveMode collectives = CollectiveMode::kExact;
  double timeout_s = 300;                                        // how long a rank waits for others
  int64_t num_ranks() const { return pp * dp * cp * tsp * tp; }  // dp must be resolved
  int64_t sequence_ranks() const { return cp * tsp; }            // ranks that share a sequence
  friend bool operator==(const ParallelSpec&, const ParallelSpec&) = default;
};

// "pp 2 x dp 4 x cp 1 x tp 2, ep 4": tsp and ep only where they are above 1.
std::string mesh_text(const ParallelSpec& parallel);

struct TrainSpec {
  std::string run_dir = "runs/default";
  uint64_t seed = 1;
  int64_t steps = 1000;
  int64_t micro_batch = 4;   // sequences per forward pass
  int64_t global_batch = 4;  // sequences per optimizer step; a multiple of micro_batch
  TrainDevice device = TrainDevice::kAuto;
  Precision precision = Precision::kAuto;
  StreamType stream = StreamType::kF32;  // type of the residual stream; kBF16 with precision bf16
  bool recompute = false;       // backward runs a block's forward again, which saves memory
  int64_t threads = 0;          // 0: one per CPU
  int64_t eval_every = 100;     // steps; 0: never
  int64_t eval_sequences = 32;  // of an evaluation, for any ranks and micro-batch
  int64_t log_every = 10;
  int64_t expert_loads_every = 50;  // steps between rows with the loads of all experts; 0: none
  double max_minutes = 0;           // > 0: stop cleanly (and save) after this time
  int64_t memory_limit_mib = 0;     // 0: no limit
  int64_t trace_steps = 0;          // steps recorded, from a start's second on; 0: none
  std::string machine;              // profile whose table of products the kernels read; "": none
  friend bool operator==(const TrainSpec&, const TrainSpec&) = default;
};

struct HealthSpec {
  int64_t window = 128;
  double max_norm_ratio = 3.0;  // a spike's norm exceeds the window's largest by this factor
  double max_loss_rise = 1.0;   // a spike's loss exceeds the window's largest by this much
  int64_t max_consecutive_skips = 3, max_skips_per_1000 = 10;
  int64_t weights_every = 0;  // steps between comparisons of copies of weights; 0: never
  int64_t replay_every = 0;   // steps between repetitions of micro-batches; 0: never
  friend bool operator==(const HealthSpec&, const HealthSpec&) = default;
};

struct CheckpointSpec {
  int64_t every = 500;     // steps; 0: only at the end; -1: never
  int64_t keep = 3;        // newest steps kept
  int64_t keep_every = 0;  // multiples of this are kept for ever; 0: none
  bool async = true;
  int64_t arena_mib = 0;  // per rank; 0: two snapshots, at most its share of a quarter of memory
  // Ranks of a machine that have less each let one of them write; 0: none.
  int64_t gather_mib = 256;
  // The network interface of the control links between writers; "": any; "none": no links.
  std::string control_interface;
  friend bool operator==(const CheckpointSpec&, const CheckpointSpec&) = default;
};

// Limits of `ashlar launch` (launch/policy.h); a start by itself reads none of them.
struct LaunchSpec {
  int64_t restarts_per_hour = 10, restarts = 200;
  int64_t fruitless_attempts = 4;  // in a row, none of which commits a new step
  double backoff_s = 5;            // before the second restart for one cause
  double hang_s = 10;              // the least silence of all ranks that counts as a hang
  NumericAnswer on_numeric = NumericAnswer::kStop;
  double lr_factor = 0.5;                // of kLowerLr
  double wait_nodes_s = 600;             // for the nodes of an attempt; then it gives up
  Elastic elastic = Elastic::kOff;       // with fewer nodes than the run's
  bool preflight = true;                 // nodes are checked before an attempt
  std::vector<std::string> notify = {};  // a program and its arguments, told of every event
  friend bool operator==(const LaunchSpec&, const LaunchSpec&) = default;
};

struct Recipe {
  std::string name, source;  // [run] name; the file that was read, which is no key
  ModelKeys model;
  InitSpec init;
  BalanceSpec balance;
  DataSpec data;
  OptimSpec optim;
  ParallelSpec parallel;
  TrainSpec train;
  TuneSpec tune;  // train.freeze and [lora]
  HealthSpec health;
  CheckpointSpec checkpoint;
  LaunchSpec launch;
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

// 1024 if it divides the global batch, else the global batch.
int64_t default_num_streams(int64_t global_batch);

// The model of the weights that a run begins with.
struct GivenModel {
  ModelSpec model;
  std::string place;         // for messages: what the user named, or a step
  bool config_json = false;  // it comes from a config.json, which does not state some keys
};
// Called where init.model is not empty, once init and train.run_dir of the recipe have been read.
using FindModel = std::function<std::optional<GivenModel>(const Recipe& recipe)>;

// An override is `section.key=value` with a TOML value; bare words are strings, and a blend may be
// written PREFIX or PREFIX:WEIGHT,PREFIX:WEIGHT.  Later overrides win.
// find: keys of the model that the recipe does not state take the values of the model it returns;
// those that it states and that decide tensors must agree with that model (require_sizes).
Recipe load_recipe(const std::string& path, std::span<const std::string> overrides,
                   const FindModel& find = {});
Recipe parse_recipe(const std::string& toml, const std::string& source,
                    std::span<const std::string> overrides, const FindModel& find = {});
// Reads the recipe that this version or an older one saved in a checkpoint: keys that no longer
// exist (spec/retired_keys.h) are ignored, while load_recipe and parse_recipe refuse them.
Recipe parse_saved_recipe(const std::string& toml, const std::string& source);
// kConfig, naming every key that decides which tensors exist, or their shapes, and whose value
// differs from the given model's.
void require_sizes(const Recipe& recipe, const GivenModel& given);
// A line for every other key of the model whose value differs: "model.rope_theta is 10000.0 in the
// recipe but 500000.0 in hf".
std::vector<std::string> model_differences(const Recipe& recipe, const GivenModel& given);
void validate(const Recipe& recipe);
// The recipe's mesh over num_ranks ranks, with dp filled in.  kConfig, with the rule, the value and
// the nearest legal ones, where it does not fit them.
ParallelSpec resolve_parallel(const Recipe& recipe, int64_t num_ranks);
std::string to_toml(const Recipe& recipe);  // every key, resolved; parses to the same recipe
// A line for every key whose value differs, in the order of the table: "optim.lr was 0.002, is
// 0.001".
std::vector<std::string> differences(const Recipe& before, const Recipe& now);

}  // namespace ashlar
