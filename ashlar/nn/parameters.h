// How a layer describes its tensors: one list, which determines their memory, packed forms, initial
// weights, their entries in the optimizer and in checkpoints, and how a share of the model cuts
// them.  Names and shapes are the native Hugging Face ones.
//
// A layer is a struct of Weights with one function `list`; the whole model's list is
// ModelWeights::tensors (model.h).
#pragma once

#include <string>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/nn/precision.h"
#include "ashlar/nn/share.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::nn {

// The initial values of a tensor: a distribution over its elements.
struct InitRule {
  enum class Kind : uint8_t {
    kNormal,      // standard deviation `value`
    kUniform,     // in +-value
    kConstant,    // value
    kLogUniform,  // logarithm of a uniform number from value / 1000 to value
    kBalancing,   // 0, the last element -1
  };
  Kind kind = Kind::kConstant;
  double value = 0.0;
};

// Elements [begin, begin + length) of a dim.  They are elements [first, first + length) of `total`
// grains of `size` elements each.
struct Section {
  Grain grain;
  int64_t total, size;
  int64_t begin, length, first = 0;
};
// How one dim is cut.  A tensor without cuts is whole in every share.
struct Cut {
  int dim;
  std::vector<Section> sections;  // cover the dim
};

// The tokens that a tensor is applied to.  They determine whether its gradient is a partial sum
// over the shares of a model: always for kHeads, since each share has other heads, and for kStream
// if each share runs on other tokens of the stream.
enum class Applied : uint8_t {
  kStream,  // tokens of the residual stream on this rank: norms, merges, embedding, head
  kLayer,   // all tokens of a layer, on any rank: attention, experts, router
  kHeads,   // all tokens of a layer, in each head or part of the width on this rank: a norm of
            // queries or keys, half of an adapter
};

// A logical tensor.
struct ParameterInfo {
  std::string name;
  Shape shape;  // of the whole tensor
  InitRule init{};
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool decay = false;
  bool buffer = false;       // part of the state, not trained by gradient
  bool frozen = false;       // stays as it is, and is no part of the state (TuneSpec)
  bool adapter = false;      // half of one (lora.h)
  int64_t num_matrices = 1;  // experts of a stack
  int64_t halves = 1;        // 2: each matrix is gate over up, which Muon may take apart
  Applied applied = Applied::kLayer;
  std::vector<Cut> cuts{};
  // Filled in by the model: this rank stores the parts of all shares one after another, bucket by
  // bucket (true of vectors and adapters if shares of products travel: UnitSplit::cuts).
  bool share_after_share = false;
  // True of an embedding that is also the head: both ends of a pipeline hold it.
  bool at_both_ends = false;

  bool is_trained() const { return !buffer && !frozen; }
  bool is_cut_by(Grain grain) const;
};

// The elements of the dim that this share has of the section, perhaps none.
Portion portion_of(const Section& section, const Share& share);
// For a tensor without cuts: which of the shares that hold it whole this one is.
Fraction copies_of(const ParameterInfo& info, const Share& share);
// The shape of the tensor on this rank: its part in this share, or its parts in all shares.
Shape local_shape(const ParameterInfo& info, const Share& share);
// Whether the gradients of all shares of a model have to be added up.
inline bool partial_over_shares(const ParameterInfo& info, bool shards_stream) {
  return info.cuts.empty() &&
         (info.applied == Applied::kHeads || (info.applied == Applied::kStream && shards_stream));
}

struct Adapter;  // lora.h

// A tensor of a layer, or a buffer, in the memory of this rank.
struct Weight {
  Tensor value;
  // Absent for buffers, for frozen products and tables, and if only forward runs.  Kernels write
  // the gradients of frozen vectors, which nobody reads.
  Tensor gradient;
  kernels::Operand operand;  // packed for products; empty where kernels read `value`
  std::vector<Adapter> adapters{};
};

// An adapter of some of the rows of a linear layer's weights: of one logical tensor (lora.h).
struct Adapter {
  Weight a, b;         // [r, K], [rows, r]; of a stack [G, r, K], [G, N, r]
  size_t logical;      // the tensor, among those of the Weight
  int64_t begin, end;  // the rows, on this rank
  double scale;
  bool cuts_inputs = false;  // of a stack: ranks that share its width hold columns of it, not rows
};

// A Weight, and the logical tensors whose parts it holds one after another along dim 0.
struct Stored {
  Weight* weight;
  std::vector<ParameterInfo> logical;
  Shape operand_shape{};  // [N, K] or [G, N, K]; 0-d: kernels read `value`
  // Filled in by the model:
  int64_t block = -1;           // -1: no block
  int64_t unit = 0;             // weights.h
  std::vector<int64_t> rows{};  // logical tensor i: rows [rows[i], rows[i + 1]) of dim 0
  Shape shape{};                // of value and gradient
  bool is_packed = true;        // false: the branch that runs the layer packs it (UnitSplit::cuts)
  bool is_adapter = false;      // of another Weight, in the root; not of experts

  bool is_operand() const { return operand_shape.ndim() > 0; }
  // True if kernels read it through its operand only, and if its gradient is one matrix product,
  // which can overwrite old values.
  bool is_product() const { return is_operand() && block >= 0 && !is_adapter; }
  // A linear layer or a stack of experts, which can have adapters.
  bool is_linear() const { return is_product() && (operand_shape.ndim() == 2 || is_stack()); }
  bool is_stack() const {
    return operand_shape.ndim() == 3 && logical[0].is_cut_by(Grain::kExpert);
  }
  bool is_buffer() const { return logical[0].buffer; }
  bool is_frozen() const { return logical[0].frozen; }
  bool is_trained() const { return logical[0].is_trained(); }
};
using StoredVisitor = function_ref<void(Stored)>;

// The input from which a layer makes its list.
struct LayerSpec {
  const ModelSpec& model;  // whole
  const Share& share;
  const InitSpec& init;
  int64_t block;
  std::string prefix;  // prefix of names: "model.layers.3.self_attn."

  const BlockSpec& of_block() const { return model.blocks[size_t(block)]; }
  // Whether an earlier block has a mixture with a router of this block's kind.
  bool follows_its_router() const;
  LayerSpec under(const char* name) const { return {model, share, init, block, prefix + name}; }
  InitRule normal() const { return {InitRule::Kind::kNormal, init.std}; }
  InitRule output() const;  // the rule for a matrix that writes into the stream
  static InitRule constant(double value) { return {InitRule::Kind::kConstant, value}; }
  // A matrix between features, which Muon may update.
  ParameterInfo matrix(const char* name, const Shape& whole, InitRule rule, Cut cut) const;
};

// Visits a tensor on this rank: the logical tensor, and the part of it that is here.
using Visitor =
    function_ref<void(const ParameterInfo&, const Tensor& value, const Tensor& gradient)>;

// The optimizer's description of the logical tensor, without boxes and data.
Parameter parameter_of(const ParameterInfo& info, DType dtype);
// The tensor as one piece; this rank holds all of it.
Piece whole_piece(const ParameterInfo& info, const Tensor& tensor);

}  // namespace ashlar::nn
