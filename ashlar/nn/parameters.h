// What a layer says about its tensors: one list, from which follow their memory, packed forms,
// first weights, what the optimizer and checkpoints see of them, and how a share of the model cuts
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

// The values that a tensor is born with: a distribution over its elements.
struct InitRule {
  enum class Kind : uint8_t {
    kNormal,      // of standard deviation `value`
    kUniform,     // in +-value
    kConstant,    // value
    kLogUniform,  // the logarithm of what is uniform from value / 1000 to value
    kBalancing,   // 0, the last element -1
  };
  Kind kind = Kind::kConstant;
  double value = 0.0;
};

// Elements [begin, begin + length) of a dim, which are elements [first, first + length) of `total`
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

// What a tensor is applied to.  Its gradient is a partial sum over shares of a model: of kHeads
// because each share has other heads; of kStream where each runs on other tokens of the stream.
enum class Applied : uint8_t {
  kStream,  // those of the residual stream here: norms, merges, embedding, head
  kLayer,   // all those of a layer, whoever holds them: attention, experts, router
  kHeads,   // all those of a layer, in each head that stands here: a norm of queries or keys
};

// A logical tensor.
struct ParameterInfo {
  std::string name;
  Shape shape;  // of the whole
  InitRule init{};
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool decay = false;
  bool buffer = false;       // part of the state, not trained by gradient
  int64_t num_matrices = 1;  // experts of a stack
  int64_t halves = 1;        // 2: gate over up in each of them, which Muon may take apart
  Applied applied = Applied::kLayer;
  std::vector<Cut> cuts{};
  // Filled in by the model: the parts of all shares, bucket by bucket, stand here one after another
  // (of vectors, where shares of products travel: UnitSplit::cuts).
  bool share_after_share = false;
  // The embedding, where the head is the same tensor: it stands on both ends of a pipeline.
  bool at_both_ends = false;

  bool is_cut_by(Grain grain) const;
};

// The elements of the dim that stand in this share of the section, perhaps none.
Portion portion_of(const Section& section, const Share& share);
// Of a tensor without cuts: which of the shares that hold it whole this one is.
Fraction copies_of(const ParameterInfo& info, const Share& share);
// The shape of what stands here of the tensor: the part in this share, or those of all shares.
Shape local_shape(const ParameterInfo& info, const Share& share);
// Whether gradients of the shares of a model have to be added up.
inline bool partial_over_shares(const ParameterInfo& info, bool shards_stream) {
  return info.cuts.empty() &&
         (info.applied == Applied::kHeads || (info.applied == Applied::kStream && shards_stream));
}

// A trained tensor of a layer, or a buffer, as it stands in memory here.
struct Weight {
  Tensor value;
  Tensor gradient;           // absent: buffers, and where only forward runs
  kernels::Operand operand;  // packed for products; empty where kernels read `value`
};

// A Weight, and the logical tensors whose parts lie in it one after another along dim 0.
struct Stored {
  Weight* weight;
  std::vector<ParameterInfo> logical;
  Shape operand_shape{};  // of the operand, [N, K] or [G, N, K]; 0-d: kernels read `value`
  // Filled in by the model:
  int64_t block = -1;           // -1: of none
  int64_t unit = 0;             // weights.h
  std::vector<int64_t> rows{};  // logical tensor i: rows [rows[i], rows[i + 1]) of dim 0
  Shape shape{};                // of value and gradient
  bool is_packed = true;  // false: whoever runs the layer packs it elsewhere (UnitSplit::cuts)

  bool is_operand() const { return operand_shape.ndim() > 0; }
  // Kernels read it through its operand only, and its gradient is one matrix product, which can
  // overwrite old values.
  bool is_product() const { return is_operand() && block >= 0; }
  bool is_buffer() const { return logical[0].buffer; }
};
using StoredVisitor = function_ref<void(Stored)>;

// What a layer makes its list from.
struct LayerSpec {
  const ModelSpec& model;  // whole
  const Share& share;
  const InitSpec& init;
  int64_t block;
  std::string prefix;  // of names: "model.layers.3.self_attn."

  const BlockSpec& of_block() const { return model.blocks[size_t(block)]; }
  // Whether a block before has a mixture with a router of this block's kind.
  bool follows_its_router() const;
  LayerSpec under(const char* name) const { return {model, share, init, block, prefix + name}; }
  InitRule normal() const { return {InitRule::Kind::kNormal, init.std}; }
  InitRule output() const;  // of a matrix that writes into the stream
  static InitRule constant(double value) { return {InitRule::Kind::kConstant, value}; }
  // A matrix between features, which Muon may update.
  ParameterInfo matrix(const char* name, const Shape& whole, InitRule rule, Cut cut) const;
};

// A tensor here: the logical tensor, and what of it its part is.
using Visitor =
    function_ref<void(const ParameterInfo&, const Tensor& value, const Tensor& gradient)>;

// What the optimizer is told of the logical tensor, wherever it is kept: no boxes, no data.
Parameter parameter_of(const ParameterInfo& info, DType dtype);
// The tensor as one piece: all of it is here.
Piece whole_piece(const ParameterInfo& info, const Tensor& tensor);

}  // namespace ashlar::nn
