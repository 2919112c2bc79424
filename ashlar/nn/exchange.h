// The interfaces through which layers use data that other ranks, or a cache, hold, forward and
// backward.  Layers know nothing else of other ranks; decode caches and parallel techniques
// implement these:
//
//   HaloExchange      rows before a segment that continues a document
//   KeyExchange       attention, whose queries may see keys held elsewhere
//   ChunkStates       the chunks of tokens through which linear mixers carry states
//   StatePassing      the states that enter those chunks, if other ranks hold the chunks before
//   RowSums           sums over whole rows of the batch
//   HeadExchange      sums over ranks that hold the same key heads with other query heads
//   LayerSums         sums over all heads of a layer, if several ranks hold them
//   ExpertExchange    experts, or parts of their width, held elsewhere
//
// The first five exchange tokens (TokenExchanges).  Their functions are pure, so that a technique
// that forgets one does not compile; the Local classes serve one device that holds every token.
#pragma once

#include <array>
#include <span>

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/moe.h"
#include "ashlar/kernels/recurrence.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::nn {

struct Pass;  // branch.h

// Rows that a layer reads before each token; `halo` holds those before every segment that continues
// a document.  In backward both are gradients.
struct Strip {
  kernels::Matrix rows;  // [T, cols] of the tokens here
  Tensor halo;           // [num_halos, reach, cols], older first
  int64_t reach() const { return halo.shape[1]; }
};

// The sizes of a mixer's tensors that exchanges take buffers for.
struct ExchangeNeeds {
  struct StripShape {
    int64_t reach = 0, cols = 0;
    friend bool operator==(const StripShape&, const StripShape&) = default;
  };
  std::array<StripShape, 2> most_strips{};  // in halo_forward's order; reach 0 ends the list
  int64_t query_cols = 0, key_cols = 0, value_cols = 0;  // columns of q, k and v
  int64_t head_dim = 0;                                  // columns of a head of q and k
  int64_t window = 0;  // tokens that a query sees, itself included; 0: all before it
  int key_copies = 1;  // number of shares of the model that hold these key heads
  int num_turns = 1;   // attentions whose keys are in flight at a time (Pass::turn)
  // Mixers with states: heads and sizes of a state, and the elements of a head's transition that a
  // chunk sends with it (0: every rank knows it).
  struct StateShape {
    int64_t heads = 0, key_dim = 0, value_dim = 0, transition = 0;
    int64_t ways = 1;  // 2 without mask
    int64_t numel() const { return heads * key_dim * value_dim; }
    int64_t made() const { return ways * numel(); }
    int64_t message() const { return made() + heads * transition; }  // of a chunk, forward
    friend bool operator==(const StateShape&, const StateShape&) = default;
  } state{};
  // Logarithms of the decays of the heads here if they are fixed, else empty.  The branch owns
  // them.
  std::span<const double> log_decay_H{};
  std::span<const StripShape> strips() const;
  int64_t value_head_dim() const { return value_cols / (key_cols / head_dim); }
  int64_t halo_numel() const;  // of one segment
};

// The maps of the chunks here: what each does to the state that enters it, or in backward to the
// gradient of the state that leaves it (kernels/recurrence.h); and the states that do enter.  C
// chunks here, A of all ranks.
//
// Without mask, tokens also read tokens behind them (kernels/unmasked.h), and there are 2 C
// entries: first what each chunk's last document sends to the chunks behind, and what enters from
// the chunks before; then what its first document sends to the chunks before, and what enters from
// those behind.
struct StateMaps {
  int64_t block;  // number in the whole model; fixed decays are looked up by it
  bool backward = false;
  // [C, H, ...] in forward if tokens determine it, else absent.
  Tensor transition{};
  Tensor made{};         // [C, H, dk, dv]
  Tensor transitions{};  // [A, H, ...]: filled in forward, read in backward; or absent
  Tensor entering{};     // [C, H, dk, dv]: filled; in backward the gradients of what leaves
};

class HaloExchange {
 public:
  virtual ~HaloExchange() = default;
  // Fills the halos from the rows before each segment that continues a document; those before the
  // document's first token are 0.
  virtual void halo_forward(const kernels::Context&, const Pass&, std::span<const Strip>) = 0;
  // Adds the halos to the rows that own those tokens.
  virtual void halo_backward(const kernels::Context&, const Pass&, std::span<const Strip>) = 0;
};

// Attention of the local queries over all keys that they may see.  It is called in parts, so that a
// layer can compute while keys and their gradients are in flight: post_keys, then attend; in
// backward post_backward, attend_backward, finish_key_gradients.  All calls get the same tensors,
// the local q k v.  From post_keys on, the exchange owns these and lse, and may store other data in
// them.
class KeyExchange {
 public:
  virtual ~KeyExchange() = default;
  virtual void post_keys(const kernels::Context&, const Pass&, const kernels::Attention&) = 0;
  virtual void post_backward(const kernels::Context&, const Pass&, const kernels::Attention&) = 0;
  // Fills out and lse (kernels/attention.h).
  virtual void attend(const kernels::Context&, const Pass&, const kernels::Attention&) = 0;
  // dout may be overwritten.
  virtual void attend_backward(const kernels::Context&, const Pass&, const kernels::Attention&,
                               const kernels::AttentionGradients&) = 0;
  // Only after this call are dq dk dv the gradients of the local q k v.
  virtual void finish_key_gradients(const kernels::Context&, const Pass&,
                                    const kernels::AttentionGradients&) = 0;
};

class ChunkStates {
 public:
  virtual ~ChunkStates() = default;
  // The chunks of the tokens here through which states are carried.
  virtual std::span<const kernels::StateChunk> chunks(const Pass&) = 0;
  // [C, H, dk, dv] of the block: the states that enter, which the layer overwrites with those that
  // leave.  Absent if all chunks begin documents, or if states come through StatePassing.
  virtual Tensor states_here(const Pass&) = 0;
};

// Posting and finishing are separate calls, so that a layer can compute while states are in flight.
class StatePassing {
 public:
  virtual ~StatePassing() = default;
  virtual void post(const kernels::Context&, const StateMaps&) = 0;
  virtual void finish(const kernels::Context&, const StateMaps&) = 0;
  // Called after the layer has used the states that entered; only then does a chain send them on.
  virtual void pass_on(const kernels::Context&, const StateMaps&) = 0;
};

class RowSums {
 public:
  virtual ~RowSums() = default;
  // Adds up in place numbers of each row of the batch, over all ranks that hold tokens of it.
  virtual void sum(const Tensor& of_rows) = 0;
};

struct TokenExchanges {
  HaloExchange* halos;
  KeyExchange* keys;
  ChunkStates* states;              // null: no mixer has states
  StatePassing* passing = nullptr;  // null: all chunks are here
  RowSums* rows;
};

// Used if this rank holds key heads without all of their query heads (ExchangeNeeds::key_copies).
// The mean over a key's queries and the gradients of keys and values are then sums over all ranks
// that hold some of those query heads; each of them gets the same bits.
class HeadExchange {
 public:
  virtual ~HeadExchange() = default;
  virtual void sum_queries(const Tensor& q_sum_TKD) = 0;  // in place
  // Adds up in place the gradients [n, T, K D] of keys, of values, and of the queries' mean if
  // there is one.
  virtual void sum_key_gradients(const Tensor& gradients) = 0;
  // True on the one rank whose input gradient includes the part from keys and values.
  virtual bool leads() const = 0;
};

// Used if several ranks hold heads of a layer, each with the whole input.
class LayerSums {
 public:
  virtual ~LayerSums() = default;
  virtual void sum(const Tensor& partial) = 0;  // in place, the same bits on every rank
  // True on the one rank whose input gradient includes what all ranks compute alike.
  virtual bool leads() const = 0;
};

// Rows that this rank's experts compute on, and where their results go.
struct ExpertRows {
  kernels::Matrix rows, results;
  Tensor row_of_expert_E1;  // I32: expert e has [row_of_expert[e], row_of_expert[e + 1])
};

// Rows of tokens in one of the rounds in which they are sent to the experts.  Two rounds may be in
// flight at a time, in different rooms.
struct ExpertRound {
  enum class Kind : uint8_t {
    kForward,    // tokens, and the experts' results
    kBackward,   // gradients of both
    kRecompute,  // tokens once more, for backward
  };
  Kind kind;
  int number, total;
  const kernels::RoutePlan& plan;   // plan of the tokens here
  std::span<const int32_t> counts;  // as filled by ExpertExchange::count
  // The rows of the tokens here to send, sorted by expert as in the plan, and the place for their
  // results.
  kernels::Matrix rows, results;
  // The room, 0 or 1, that holds rows and results of the experts here if other ranks send rows.
  int room = 0;
  kernels::Matrix rows_here{}, results_here{};
  Tensor row_of_expert_here{};  // I32 [experts here + 1]; receive_rows fills it
};

// Sends rows of tokens to the ranks of their experts, and the results back; in backward the same
// for gradients.  In the base class this device holds all experts, and nothing moves.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // Exchanges how many rows each rank sends to each expert, and returns the number of rounds that
  // they need, the same on all ranks.  counts: on the host, [ranks, E + 1], filled; empty if ranks
  // do not share experts.
  virtual int count(const kernels::Context&, const kernels::RoutePlan&, std::span<int32_t> counts) {
    (void)counts;
    return 1;
  }
  virtual void post_rows(const kernels::Context&, const ExpertRound&) {}
  virtual ExpertRows receive_rows(const kernels::Context&, const ExpertRound& round) {
    return {round.rows, round.results, round.plan.row_of_expert_E1};
  }
  // Called after the results of the received rows are filled in.
  virtual void post_results(const kernels::Context&, const ExpertRound&) {}
  virtual void receive_results(const kernels::Context&, const ExpertRound&) {}

  // Adds up in place the gradients of routing weights, [T, k], followed by those of a shared
  // expert's gate, [T].  Ranks that hold a part of the width have a part of these sums.
  virtual void sum_partial(const Tensor& gradients) { (void)gradients; }
  // Adds up in place the rows of an adapter between its two products (lora.h), of which ranks that
  // hold a part of the width have a part.  A context that only counts memory sends nothing.
  virtual void sum_adapted(const kernels::Context&, const Tensor& rows) { (void)rows; }
  // True on the one rank that adds what all compute alike: skipped tokens, and the input gradient
  // of router and gate.
  virtual bool leads() const { return true; }
};

struct Exchanges {
  TokenExchanges tokens;
  ExpertExchange* experts;
  HeadExchange* heads = nullptr;  // null: all query heads of the keys are here
  LayerSums* layer = nullptr;     // null: all heads are here
};

// For one device that holds every token; answers come from the segment list.  A segment may
// continue a document whose preceding tokens are in other rows of the same batch.
class LocalHalos final : public HaloExchange {
 public:
  void halo_forward(const kernels::Context&, const Pass&, std::span<const Strip>) override;
  void halo_backward(const kernels::Context&, const Pass&, std::span<const Strip>) override;
};

class LocalKeys final : public KeyExchange {
 public:
  void post_keys(const kernels::Context&, const Pass&, const kernels::Attention&) override {}
  void post_backward(const kernels::Context&, const Pass&, const kernels::Attention&) override {}
  void attend(const kernels::Context&, const Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const Pass&,
                            const kernels::AttentionGradients&) override {}
};

class LocalStates final : public ChunkStates {
 public:
  std::span<const kernels::StateChunk> chunks(const Pass&) override;
  Tensor states_here(const Pass&) override { return {}; }
};

class LocalRowSums final : public RowSums {
 public:
  void sum(const Tensor&) override {}
};

class LocalExchange {
 public:
  TokenExchanges exchanges() {
    return {.halos = &halos_, .keys = &keys_, .states = &states_, .rows = &rows_};
  }

 private:
  LocalHalos halos_;
  LocalKeys keys_;
  LocalStates states_;
  LocalRowSums rows_;
};

}  // namespace ashlar::nn
