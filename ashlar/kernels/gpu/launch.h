// The border between host code and device code: plain structs, memory, and one function per kernel.
// Host code includes this header and no other of device code, so that it is compiled once for the
// emulator and for every vendor.
//
// Errors   Functions that return text return "" if all went well.
// Order    Launches, fills with zeros, queued copies and records of events run one after another
//          in the order of the calls, which return before that.  copy_bytes and wait return when
//          all of them have run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ashlar::device {

enum class ElementType : int32_t { kF32, kBF16, kF64, kI64 };

// Elements in the memory of the device; data null: absent.
struct Elements {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
};

// The device behind this build: "emulator, warps of 32", "CUDA", "HIP".
std::string description();
// Whose libraries work on the memory of this device: "host", "NVIDIA" or "AMD".
std::string vendor();
int warp_size();
// "" if there is a device; else the reason.
std::string missing();
// The chip that an emulator stands for, by its name in core/device_spec.h; "": the device is none.
std::string emulated_chip();

void* take(size_t bytes);  // null: out of memory
void give(void* data);
std::string fill_zero(void* data, size_t bytes);
std::string copy_bytes(void* to, const void* from, size_t bytes);  // either may be host memory
// Memory of the host that the device reads and writes by itself; null: out of memory.
void* take_pinned(size_t bytes);
void give_pinned(void* data);
std::string queue_copy(void* to, const void* from, size_t bytes);  // one of the two is pinned
std::string wait();

// An event keeps the moment at which the device came to its last record; null: none could be made.
void* make_event();
void give_event(void* event);
std::string record_event(void* event);
// From the record of one event to that of a later one, both of which were waited for.
std::string seconds_between(void* earlier, void* later, double& seconds);

// A second order: copies to pinned memory that run beside the work above, one after another.  Every
// function returns before its effect.
struct SideOrder;
SideOrder* take_side_order(int num_marks);  // null: the device refuses it
void give_side_order(SideOrder*);           // its copies have run
std::string follow_work(SideOrder*);        // later copies run after all work queued until now
std::string queue_side_copy(SideOrder*, void* pinned, const void* from, size_t bytes);
// Sets a mark, by number, behind the copies queued until now.  passed: they have run.
std::string set_mark(SideOrder*, int mark);
std::string has_passed(SideOrder*, int mark, bool* passed);
std::string hold_work(SideOrder*);  // later work runs after all copies queued until now

// A device runs threads in the order it likes; the emulator has several orders to choose from.
int num_modes();
std::string select_mode(int number);  // returns its name

// The functions below launch one kernel each, except where num_kernels says how many.

// In all kernels below by_vectors says that elements are read 16 bytes at a time: every tensor and
// every row of it then begins at a multiple of 16 bytes, and the width of rows is a multiple of 8.
// The bits are the same without.

// Copies rows of any elements of one type, byte by byte.
struct CopyBytes {
  const void* from;
  void* to;
  int64_t rows, row_bytes, from_stride_bytes, to_stride_bytes;
};
std::string launch(const CopyBytes&);

// to = from, to the type of `to`, one of F32, BF16, F64; add: to += from, to in the type of from or
// from F32 to BF16.  Strides in elements.
struct Convert {
  Elements from, to;
  int64_t rows, width, from_stride, to_stride;
  bool by_vectors, adds;
};
std::string launch(const Convert&);

// Fills rows with the 8 bytes of `pattern`, repeated; unit_bytes: the shortest part of it, of 1, 2,
// 4 or 8 bytes, that repeats.
struct Fill {
  void* to;
  int64_t rows, row_bytes, stride_bytes;
  uint64_t pattern;
  int unit_bytes;
};
std::string launch(const Fill&);

// to [width] += the sum over rows, in order, of partials [rows, width]; overwrites: to = that sum.
struct SumPartials {
  const float* partials;
  float* to;
  int64_t rows, width;
  bool overwrites = false;
};
std::string launch(const SumPartials&);

inline constexpr int64_t kMaxRowWidth = 8192;  // of kernels that hold a row in registers
inline constexpr int kPartialRows = 64;        // of which a partial sum is made

// norm.h: (o + bo) ao + (r + br) ar; without vectors beta o + alpha r, where r may be normed first,
// with the weights r_norm and the statistics r_rstd.
struct Merge {
  Elements o, r;
  const float *ao = nullptr, *bo = nullptr, *ar = nullptr, *br = nullptr;
  float alpha = 1, beta = 1;
  const float *r_norm = nullptr, *r_rstd = nullptr;
};

// norm.h: y and rstd of h [rows, width], which is filled first where there is a merge, whose o is
// then present.  w null: the merge alone.
struct NormForward {
  Merge merge = {};
  Elements h;
  const float* w;
  Elements y;
  float* rstd;
  int64_t rows, width;
  float eps, weight_offset;
  bool by_vectors;
};
std::string launch(const NormForward&);

// norm.h: dr = dh; where d_o is present, the shares of a merge without vectors: d_o = beta dh and
// dr = alpha dh.  dr may be h, dh_in or dy_in.  Also fills the partials of dw,
// [ceil(rows / kPartialRows), width].
struct NormBackward {
  Elements dy, h;
  const float *w, *rstd;
  Elements dh_in, dy_in, dr, d_o = {};
  float alpha = 1, beta = 1;
  float* partials;
  int64_t rows, width;
  float weight_offset;
  bool by_vectors;
};
std::string launch(const NormBackward&);

// norm.h: d_o and dr of dh behind a merge; with vectors also the partials
// [4, ceil(rows / kPartialRows), width] of the gradients of ao, bo, ar and br.
struct MergeBackward {
  Merge merge;
  Elements dh, d_o, dr;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const MergeBackward&);

// embedding.h: x = emb[ids], with scale and bias (emb[ids] + bias) scale.  ids are within emb.
struct EmbeddingForward {
  const int32_t* ids;
  const float *emb, *scale, *bias;
  Elements x;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const EmbeddingForward&);

// The rows in the order of their ids, those of one id in their own order.
struct SortIds {
  const int32_t* ids;
  int32_t *sorted_ids, *sorted_rows;
  int64_t rows;
};
std::string launch(const SortIds&);

// embedding.h: demb += dx scale by id, except for fixed_id.
struct EmbeddingTableGradient {
  const int32_t *sorted_ids, *sorted_rows;
  const float* scale;
  Elements dx;
  float* demb;
  int64_t rows, width;
  int32_t fixed_id;
  bool by_vectors;
};
std::string launch(const EmbeddingTableGradient&);

// embedding.h: the partials [2, ceil(rows / kPartialRows), width] of dscale and dbias.
struct EmbeddingAffineGradient {
  const int32_t* ids;
  const float *emb, *scale, *bias;
  Elements dx;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const EmbeddingAffineGradient&);

// rope.h: what both passes over heads have.  Rows of qkv have row_width elements.  positions
// [tokens] are rows of the table; both are null without rotation, as q_norm and k_norm are without
// norms.
struct Heads {
  int64_t num_tokens, num_queries, num_keys, head_dim, rotary_dim, row_width;
  const int32_t* positions;
  const float* table;
  Elements qkv;
  const float *q_norm, *k_norm;
  float weight_offset;
};
inline constexpr int64_t kMaxHeadWidth = 256;

struct HeadsForward {
  Heads heads;
  float eps;
  Elements qhat, khat, v;
  float *rstd_q, *rstd_k;
};
std::string launch(const HeadsForward&);

// With norms also the partials of dq_norm and dk_norm,
// [2, ceil(num_tokens / kTokensOfHeadPartial), head_dim].
inline constexpr int kTokensOfHeadPartial = 16;
struct HeadsBackward {
  Heads heads;
  const float *rstd_q, *rstd_k;
  Elements dqhat, dkhat, dv, dqkv;
  float* partials;
};
std::string launch(const HeadsBackward&);

// Where the token before a token lies, its link: in the row before; nowhere, because a document
// starts; or, from 0 on, in halo link / 2, with an odd link if the document has yet another token
// before that one.
inline constexpr int32_t kRowBefore = -1, kNothingBefore = -2;

// conv.h: what both passes have.  Rows of z have `channels` elements, z_stride elements apart.
struct ConvColumns {
  const int32_t* links;  // [rows]
  Elements z;
  const float *halo, *w0, *b0;
  int64_t rows, channels, z_stride;
  bool by_vectors;
};
struct ConvColumnsForward {
  ConvColumns conv;
  Elements columns;
};
std::string launch(const ConvColumnsForward&);

// conv.h: adds to dz, fills dhalo and the partials [ceil(rows / kPartialRows), ..] of dw0 and db0.
struct ConvColumnsBackward {
  ConvColumns conv;
  Elements dcolumns, dz;
  int64_t dz_stride;
  float *dhalo, *dw0_partials, *db0_partials;
};
std::string launch(const ConvColumnsBackward&);

// qk.h: what both passes have.  q_sum null: the sums over a key's queries are those of its local
// ones.  positions are null without rotation.
struct Qk {
  int64_t num_tokens, num_queries, num_keys, head_dim, rotary_dim, num_delayed;
  const int32_t *positions, *links;
  const float* table;
  Elements qkv, y;
  const float *b1, *tau, *q_sum;
  float query_share;  // of a query in the mean of its key's queries
};
struct QkForward {
  Qk qk;
  float eps;
  const float* halo_vd;
  Elements qhat, khat, v;
  float *n_q, *n_k;
};
std::string launch(const QkForward&);

// Fills the partials [ceil(num_tokens / kPartialRows), ..] of dtau and db1 too.  Queries and key of
// a key head have at most kMaxGroupWidth elements.
inline constexpr int64_t kMaxGroupWidth = (12 << 10) - 1;
struct QkBackward {
  Qk qk;
  const float *n_q, *n_k, *dqhat, *dkhat, *dv, *dq_sum;
  Elements dy, dqkv;
  float *dhalo_vd, *dtau_partials, *db1_partials;
};
std::string launch(const QkBackward&);

// cross_entropy.h: targets are within the classes, or -1.  dlogits: absent, or logits itself.
struct CrossEntropy {
  const float* logits;
  const int32_t* targets;
  float scale;
  float* loss;
  Elements dlogits;
  int64_t rows, classes;
  bool by_vectors;
};
std::string launch(const CrossEntropy&);

// moe.h: rows from row_of_expert[num_experts] on are left alone; null: none are.
struct SwigluForward {
  const int32_t* row_of_expert;
  int64_t num_experts;
  Elements gate_up, act;
  int64_t rows, width;  // of act
  bool by_vectors;
};
std::string launch(const SwigluForward&);

struct SwigluBackward {
  const int32_t* row_of_expert;
  int64_t num_experts;
  Elements dact, gate_up, dgate_up;
  int64_t rows, width;  // of dact
  bool by_vectors;
};
std::string launch(const SwigluBackward&);

// router.h: fills r, n and rstd.  gamma null: there is no r_prev.
struct RouterMixForward {
  float* r;
  const float *b, *r_prev, *gamma, *w;
  Elements n;
  float* rstd;
  int64_t rows, width;
  float eps;
  bool by_vectors;
};
std::string launch(const RouterMixForward&);

// router.h: dr, also as dr_low if that is present, and with gamma dr_prev, which may be dr_next.
// dr_next null: there is none.
struct RouterMixBackward {
  Elements dn;
  const float *dr_next, *r, *gamma, *w, *rstd;
  float *dr, *dr_prev;
  Elements dr_low;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const RouterMixBackward&);

// The partials [2, ceil(rows / kPartialRows), width] of db_dn and dw, and with r_prev of dgamma.
struct RouterMixSums {
  Elements dn;
  const float *dr, *r, *r_prev, *rstd;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const RouterMixSums&);

struct BiasGeluForward {
  const float *z, *b;
  Elements s;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const BiasGeluForward&);

// router.h: dz, and the partials [ceil(rows / kPartialRows), width] of db.
struct BiasGeluBackward {
  Elements ds;
  const float *z, *b;
  Elements dz;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const BiasGeluBackward&);

// router.h, for any number of classes.
struct RouterSelectForward {
  const float *logits, *bias;
  float* p;
  int32_t* expert;
  float* weight;
  int64_t rows;
  int32_t classes;
};
std::string launch(const RouterSelectForward&);

// expert below 0: the token is padding.
struct RouterSelectBackward {
  const float *dweight, *p;
  const int32_t* expert;
  Elements dlogits;
  int64_t rows;
  int32_t classes;
};
std::string launch(const RouterSelectBackward&);

// bias.h: y += b; rows of y lie `stride` elements apart, as those of dy below.
struct BiasForward {
  const float* b;
  Elements y;
  int64_t rows, width, stride;
  bool by_vectors;
};
std::string launch(const BiasForward&);

// bias.h: the partials [ceil(rows / kPartialRows), width] of db.
struct BiasBackward {
  Elements dy;
  float* partials;
  int64_t rows, width, stride;
  bool by_vectors;
};
std::string launch(const BiasBackward&);

// output_gate.h: rows of the gate lie gate_stride elements apart.  y may be att.
struct OutputGateForward {
  Elements att, gate, y;
  int64_t rows, width, gate_stride;
  bool by_vectors;
};
std::string launch(const OutputGateForward&);

// datt may be dy.
struct OutputGateBackward {
  Elements dy, att, gate, datt, dgate;
  int64_t rows, width, gate_stride, dgate_stride;
  bool by_vectors;
};
std::string launch(const OutputGateBackward&);

// Choices are counted by class, in parts of a row of choices.
inline constexpr int kChoicesOfPart = 1024;
inline int64_t num_choice_counts(int64_t rows, int64_t choices, int64_t classes) {
  return rows * ((choices + kChoicesOfPart - 1) / kChoicesOfPart) * classes;
}

// moe.h: the plan of choices [choices], k of a token.  counts: room for num_choice_counts of one
// row and num_experts + 1 classes.
struct RoutePlan {
  const int32_t* expert;
  int64_t choices, k, num_experts;
  int32_t* counts;
  int32_t *row_of_expert, *token_of_row, *row_of_token;
  int64_t* count;
  int num_kernels() const { return choices > 0 ? 3 : 2; }
};
std::string launch(const RoutePlan&);

// topk.h: loads [rows, classes] of choices [rows, choices].  counts: room for num_choice_counts.
struct RowLoads {
  const int32_t* expert;
  int64_t rows, choices, classes;
  int32_t* counts;
  float* loads;
  int num_kernels() const { return 2; }
};
std::string launch(const RowLoads&);

// moe.h: copies rows of tokens to those rows that experts have, byte by byte.
struct GatherRows {
  const int32_t *token_of_row, *row_of_expert;
  int64_t num_experts;
  const void* from;
  void* to;
  int64_t rows, row_bytes;
};
std::string launch(const GatherRows&);

// moe.h: what the passes below have; rows of tokens and of experts have `width` elements.
struct Choices {
  const int32_t* row_of_token;  // [tokens, k]; -1: none
  const float* weight;          // likewise
  int64_t tokens, k, width;
  bool identity, by_vectors;
};
struct CombineForward {
  Choices choices;
  Elements y_rows, m, e;
};
std::string launch(const CombineForward&);

struct CombineBackward {
  Choices choices;
  Elements de, y_rows, m, dy_rows;
  float* dweight;
};
std::string launch(const CombineBackward&);

struct ScatterRowsAdd {
  Choices choices;
  Elements shared, dx_rows, de, dm;  // shared may be absent
};
std::string launch(const ScatterRowsAdd&);

// moe.h; z null: no gate.
struct SharedAddForward {
  const float* z;
  Elements s, e;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const SharedAddForward&);

struct SharedAddBackward {
  const float* z;
  Elements de, s, ds;
  float* dz;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const SharedAddBackward&);

// topk.h.
inline constexpr int64_t kMaxChoices = 1024;  // of a token
struct TopkForward {
  bool choose_by_logits, renormalize;
  float scale;
  const float *logits, *bias;  // bias null: none
  float *p, *lse, *weight;
  int32_t* expert;
  int64_t tokens, classes, k;
};
std::string launch(const TopkForward&);

// topk.h, with loads of rows of tokens_per_row tokens, or null; balance_scale counts k choices of a
// token.  Also fills the partials [ceil(tokens / kPartialRows), 2] of the losses.
struct TopkBackward {
  bool renormalize;
  float scale, balance_scale, z_scale;
  const float *dweight, *p, *lse, *weight, *loads;
  const int32_t* expert;
  Elements dlogits;
  float* partials;
  int64_t tokens, classes, k, tokens_per_row;
};
std::string launch(const TopkBackward&);

// balance.h.
struct BalanceUpdate {
  double lr, beta1, beta2, eps, correction1, correction2;
  const int64_t* counts;
  float *bias, *first, *second;
  int64_t num_counts, num_trained;
  bool centered;
};
std::string launch(const BalanceUpdate&);

// update.h, over n elements.  operand: the weights in bf16, or absent.
struct AdamWUpdate {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, rate, inverse_root2, eps, grad_scale;
  const float* g;
  float *w, *m, *v;
  Elements operand;
  int64_t n;
  bool by_vectors;
};
std::string launch(const AdamWUpdate&);

// update.h: sum [1]; partials [ceil(n / kSquaresOfPartial)].
inline constexpr int64_t kSquaresOfPartial = 4096;
struct SumOfSquares {
  const float* x;
  double *partials, *sum;
  int64_t n;
  bool by_vectors;
  int num_kernels() const { return n > 0 ? 2 : 1; }
};
std::string launch(const SumOfSquares&);

// update.h, over n elements.
struct MuonMomentumUpdate {
  float mu, grad_scale;
  bool nesterov;
  const float* g;
  float *m, *x;
  int64_t n;
  bool by_vectors;
};
std::string launch(const MuonMomentumUpdate&);

struct MuonApplyUpdate {
  float keep, factor;  // w = keep w + factor x
  const float* x;
  float* w;
  Elements operand;  // as of AdamWUpdate
  int64_t n;
  bool by_vectors;
};
std::string launch(const MuonApplyUpdate&);

// update.h: the number of the first element that is not finite, or n; partials
// [ceil(n / kSquaresOfPartial)].
struct FirstNonFinite {
  const float* x;
  int64_t *partials, *first;
  int64_t n;
  bool by_vectors;
  int num_kernels() const { return 2; }
};
std::string launch(const FirstNonFinite&);

// newton_schulz.h: to = x / (norm + tiny) for each of `count` matrices of `size` elements; to may
// be x.  Also fills partials [count, ceil(size / kSquaresOfPartial)] and factors [count].
struct NewtonSchulzScale {
  const float* x;
  Elements to;
  double* partials;
  float* factors;
  int64_t count, size;
  float tiny;
  bool by_vectors;
  int num_kernels() const { return 3; }
};
std::string launch(const NewtonSchulzScale&);

// to = from + factor I for each of `count` square matrices.
struct AddIdentity {
  const float* from;
  float* to;
  float factor;
  int64_t count, side;
};
std::string launch(const AddIdentity&);

// attention.h.  A pass goes over lines of one side, queries or keys, in tiles: up to
// attention_tile_rows lines of one segment and what they meet on the other side, segments
// [first, end), of which only positions [low, high) can be visible.  Forward fills rows of out and
// lse from out_row on.
struct AttentionSegment {
  int32_t row, length, position;
};
struct AttentionTile {
  int32_t row, length, position, first, end, low, high, out_row;
};
struct AttentionCall {
  const AttentionTile* tiles;
  const AttentionSegment* segments;  // of the other side
  Elements q, k, v;                  // all F32 or all BF16
  float* lse;
  int32_t num_tiles, num_heads, num_kv_heads, head_size, value_size;
  int32_t window;  // INT32_MAX: none
  float scale;
  bool by_vectors;
};
enum class AttentionPass { kForward, kBackward };
int attention_tile_rows(AttentionPass pass, ElementType type, int head_size, int value_size);

// Tiles of queries; fills out, of the type of v or F32, and lse.
struct AttentionForward {
  AttentionCall call;
  Elements out;
};
std::string launch(const AttentionForward&);

// attention.h: the merge of `parts` results, outs [parts, rows, width] and lses [parts, rows].
struct AttentionJoin {
  const float *outs, *lses;
  Elements out;
  float* lse;
  int64_t parts, rows, width;
};
std::string launch(const AttentionJoin&);

// dots [rows] = the products of out and dout, rows of `width`.
struct AttentionDots {
  Elements out, dout;
  float* dots;
  int64_t rows, width;
};
std::string launch(const AttentionDots&);

// Fills one gradient: that of queries with tiles of queries, that of keys or values with tiles of
// keys.
enum class AttentionOperand { kQueries, kKeys, kValues };
struct AttentionBackward {
  AttentionCall call;
  Elements dout;
  const float* dots;
  AttentionOperand of;
  float* gradient;
};
std::string launch(const AttentionBackward&);

// linear.h: the products of groups in one launch, C_g = A_g B_g^T, A_g B_g or A_g^T B_g, with sums
// in fp32.  Matrices are stored row by row; that of group g begins g group_strides after the first.
struct ProductMatrix {
  Elements elements;
  int64_t stride, group_stride;  // in elements
  bool by_vectors;
};
enum class LinearPass { kForward, kBackwardInput, kBackwardWeight };
struct GroupedProduct {
  LinearPass pass;
  bool in_bf16;  // operands are rounded to bf16 and sums are those of matrix units; else fp32
  ProductMatrix a, b, c;
  int32_t num_groups, rows, columns, depth;  // rows and columns of C_g
  // Where groups own rows, those of A and C, or of A and B in kBackwardWeight: the group_strides of
  // these are 0, and `rows`, or `depth`, is the number of all.  Null: each group has all rows.
  const int32_t* row_of_group;
  bool accumulates;
  int32_t side;  // of the part of C that a block makes, one of kProductSides
  // Parts into which kBackwardWeight cuts the depth; C of a part begins at part * c_part_stride.
  int32_t parts;
  int64_t c_part_stride;
};
inline constexpr int32_t kProductSides[] = {64, 128};
std::string launch(const GroupedProduct&);

}  // namespace ashlar::device
