// Meshes of 8 and 12 ranks whose ranks differ in many ways.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/train/real_rank.h"

namespace ashlar::plan {

struct MeshCase {
  std::string name;
  int num_ranks;
  train::testing_support::Overrides overrides;
};

inline void PrintTo(const MeshCase& c, std::ostream* out) {
  *out << c.name;
}

inline const std::vector<MeshCase> kMeshes = {
    {"dp8_zero1", 8, {}},
    {"dp8_zero2_bucketed_owner",
     8,
     {"parallel.zero=2", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000",
      "parallel.muon=owner", "train.global_batch=16"}},
    {"dp2_cp2_tp2_zero3", 8, {"parallel.zero=3", "parallel.cp=2", "parallel.tp=2"}},
    {"dp8_zero3_six_blocks",
     8,
     {"parallel.zero=3", "model.num_hidden_layers=6", "train.global_batch=16"}},
    {"dp2_tp4_zero1_sequence_parallel", 8, {"parallel.tp=4", "parallel.sequence_parallel=true"}},
    {"dp4_cp3_contiguous_zero2",
     12,
     {"parallel.zero=2", "parallel.cp=3", "parallel.cp_layout=contiguous",
      "parallel.bucket_bytes=30000", "train.global_batch=16"}},
    {"dp2_cp3_tp2_zero3_ring",
     12,
     {"parallel.zero=3", "parallel.cp=3", "parallel.tp=2", "parallel.cp_exchange=ring",
      "train.recompute=true"}},
    {"dp2_cp2_tsp2_zero1",
     8,
     {"parallel.cp=2", "parallel.tsp=2", "model.layer_types=full_attention",
      "model.intermediate_size=40"}},
    {"dp2_tsp4_same_heads_zero1", 8, {"parallel.tsp=4"}},
    {"dp4_pp2_zero1_owner", 8, {"parallel.pp=2", "parallel.muon=owner", "train.global_batch=16"}},
    {"dp8_ep4_zero2_bucketed",
     8,
     {"parallel.ep=4", "parallel.zero=2", "parallel.zero_layout=bucketed",
      "parallel.bucket_bytes=20000", "train.global_batch=16"}},
    {"dp4_tp2_ep2_zero0", 8, {"parallel.tp=2", "parallel.ep=2", "parallel.zero=0"}},
    {"dp12_zero1_adamw",
     12,
     {"optim.matrices=adamw", "train.global_batch=24", "data.num_streams=24"}},
};

}  // namespace ashlar::plan
