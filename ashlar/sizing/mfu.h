// Model FLOP utilization: flop of a token by several conventions, of which every output that prints
// an MFU names one.
//
//   exact-causal   products, convolutions, and the keys that a causal token reads (sizing/model.h)
//   6N+6Lds        6 N + 6 L q s: torchtitan, llm.c, Megatron
//   6N+12Lds       6 N + 12 L q s: attention as if every token read every key; PaLM, llm-foundry
//   6N             weights only
//
// N counts the weights of products that a token uses, head included; q is a mixer's width of
// queries; only mixers with softmax attention count.  Recomputation counts nowhere: that would be
// a utilization of the hardware.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ashlar/spec/model_spec.h"

namespace ashlar::sizing {

enum class Mfu : uint8_t { kExactCausal, k6N6Lds, k6N12Lds, k6N };
inline constexpr std::array<std::string_view, 4> kMfuNames = {"exact-causal", "6N+6Lds", "6N+12Lds",
                                                              "6N"};

// Flop of a token in training.
double training_flop(const ModelSpec& model, int64_t sequence_length, Mfu convention);

}  // namespace ashlar::sizing
