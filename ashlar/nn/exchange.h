// What crosses the borders of what stands here, forward and backward.  The layers know nothing else
// of others, so decode caches and parallel techniques are implementations of these:
//
//   HaloExchange      rows before a segment that continues a document
//   KeyExchange       attention, whose queries may see keys that stand elsewhere
//   ChunkStates       the chunks of tokens through which linear mixers carry states
//   StatePassing      the states that enter those chunks, where others hold the chunks before
//   RowSums           sums over whole rows of the batch
//   HeadExchange      query heads that stand elsewhere, of the key heads here
//   LayerSums         what a layer sums over all of its heads, where they stand on several ranks
//   ExpertExchange    experts, or parts of their width, that stand elsewhere
//
// The first five are about tokens (TokenExchanges).  Their functions are pure, so that a technique
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

// Rows that a layer reads before each token: so many as `halo` has for every segment that continues
// a document.  Backward: their gradients.
struct Strip {
  kernels::Matrix rows;  // [T, cols] of the tokens here
  Tensor halo;           // [num_halos, reach, cols], older first
  int64_t reach() const { return halo.shape[1]; }
};

// What a mixer hands to its exchange, which takes buffers by it.
struct ExchangeNeeds {
  struct StripShape {
    int64_t reach = 0, cols = 0;
    friend bool operator==(const StripShape&, const StripShape&) = default;
  };
  std::array<StripShape, 2> most_strips{};  // in the order of halo_forward's; reach 0: no more
  int64_t query_cols = 0, key_cols = 0, value_cols = 0;  // columns of q, k and v
  int64_t head_dim = 0;                                  // columns of a head of q and k
  int64_t window = 0;  // tokens that a query sees, itself included; 0: all before it
  int key_copies = 1;  // so many shares of the model hold the key heads here
  int num_turns = 1;   // attentions whose keys are under way at a time (Pass::turn)
  // Of mixers with states: heads and extents of a state, and the elements of a head's transition
  // that a chunk sends with it (0: everybody knows it).
  struct StateShape {
    int64_t heads = 0, key_dim = 0, value_dim = 0, transition = 0;
    int64_t ways = 1;  // 2: without mask
    int64_t numel() const { return heads * key_dim * value_dim; }
    int64_t made() const { return ways * numel(); }
    int64_t message() const { return made() + heads * transition; }  // forward, of a chunk
    friend bool operator==(const StateShape&, const StateShape&) = default;
  } state{};
  // The logarithms of the decays of the heads here, where those are fixed; else empty.  Memory of
  // the branch.
  std::span<const double> log_decay_H{};
  std::span<const StripShape> strips() const;
  int64_t value_head_dim() const { return value_cols / (key_cols / head_dim); }
  int64_t halo_numel() const;  // of one segment
};

// What the chunks here do to the states that enter them, or backward to the gradients of those that
// leave (kernels/recurrence.h), and what does enter.  C chunks here, A of all ranks.
//
// Without mask tokens read what is behind them too (kernels/unmasked.h).  There are then 2 C: first
// of each chunk's last document, for chunks behind, and what enters from those before; then of its
// first document, for chunks before, and what enters from those behind.
struct StateMaps {
  int64_t block;  // of the whole model; decays that are fixed are known by it
  bool backward = false;
  // [C, H, ...], forward and where tokens say what it is; else absent.
  Tensor transition{};
  Tensor made{};         // [C, H, dk, dv]
  Tensor transitions{};  // [A, H, ...]: forward fills it, backward reads it; absent as transition
  Tensor entering{};     // [C, H, dk, dv]: filled; backward the gradients of what leaves
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

// Attention of the local queries over all keys that they may see, in halves, so that a layer can
// compute while keys and their gradients travel: post_keys, then attend; or post_backward, then
// attend_backward, then finish_key_gradients.  q k v are the local ones, and the same tensors in
// all; from post_keys on they and lse are the exchange's, which may keep something else in them.
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
  // Only now are dq dk dv those of the local q k v.
  virtual void finish_key_gradients(const kernels::Context&, const Pass&,
                                    const kernels::AttentionGradients&) = 0;
};

class ChunkStates {
 public:
  virtual ~ChunkStates() = default;
  // The chunks of the tokens here through which states are carried.
  virtual std::span<const kernels::StateChunk> chunks(const Pass&) = 0;
  // [C, H, dk, dv] of the block: the states that enter, which the layer overwrites by those that
  // leave.  Absent: all chunks begin documents, or the states come by StatePassing.
  virtual Tensor states_here(const Pass&) = 0;
};

// In halves, so that a layer can compute while states travel.
class StatePassing {
 public:
  virtual ~StatePassing() = default;
  virtual void post(const kernels::Context&, const StateMaps&) = 0;
  virtual void finish(const kernels::Context&, const StateMaps&) = 0;
  // After the layer has used what entered: a chain sends it on only now.
  virtual void pass_on(const kernels::Context&, const StateMaps&) = 0;
};

class RowSums {
 public:
  virtual ~RowSums() = default;
  // Adds up in place what is known of the rows of the batch over everybody who has other tokens of
  // the same rows.
  virtual void sum(const Tensor& of_rows) = 0;
};

struct TokenExchanges {
  HaloExchange* halos;
  KeyExchange* keys;
  ChunkStates* states;              // null: no mixer has states
  StatePassing* passing = nullptr;  // null: nobody else holds chunks
  RowSums* rows;
};

// Where key heads stand here without all of their query heads (ExchangeNeeds::key_copies): the mean
// over a key's queries and the gradients of keys and values are sums over everybody who has some of
// them, and the same bits for each.
class HeadExchange {
 public:
  virtual ~HeadExchange() = default;
  virtual void sum_queries(const Tensor& q_sum_TKD) = 0;  // in place
  // Adds up in place the gradients [n, T, K D] of keys, of values, and of the queries' mean where
  // there is one.
  virtual void sum_key_gradients(const Tensor& gradients) = 0;
  virtual bool leads() const = 0;  // the one whose input gradient counts that of keys and values
};

// Where a layer's heads stand on several ranks, each with the whole input.
class LayerSums {
 public:
  virtual ~LayerSums() = default;
  virtual void sum(const Tensor& partial) = 0;  // in place, the same bits for each
  virtual bool leads() const = 0;  // the one whose input gradient counts what all compute alike
};

// Rows that this rank's experts compute on, and where their results go.
struct ExpertRows {
  kernels::Matrix rows, results;
  Tensor row_of_expert_E1;  // I32: those of expert e are [row_of_expert[e], row_of_expert[e + 1])
};

// Rows of tokens in one of the rounds in which they go to the experts.  Two rounds may be under way
// at a time, in different rooms.
struct ExpertRound {
  enum class Kind : uint8_t {
    kForward,    // tokens and what experts make of them
    kBackward,   // the gradients of these
    kRecompute,  // tokens once more, for backward
  };
  Kind kind;
  int number, total;
  const kernels::RoutePlan& plan;  // of the tokens here
  Tensor counts;                   // as ExpertExchange::count filled it
  // Of the tokens here, sorted by expert as the plan says: what is sent, and where the results go.
  kernels::Matrix rows, results;
  // Room for the rows and results of the experts here, where they may come from elsewhere: 0 or 1.
  int room = 0;
  kernels::Matrix rows_here{}, results_here{};
  Tensor row_of_expert_here{};  // I32 [experts here + 1]; receive_rows fills it
};

// Rows of tokens on their way to where their experts stand, and the results on their way back;
// forward, and with gradients backward.  Here both are this device's, and nothing moves.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // Tells everybody how many rows go where; gives the number of rounds that they need, the same on
  // all ranks.  counts: I32 [ranks, E + 1], filled.
  virtual int count(const kernels::Context&, const kernels::RoutePlan&, const Tensor& counts) {
    (void)counts;
    return 1;
  }
  virtual void post_rows(const kernels::Context&, const ExpertRound&) {}
  virtual ExpertRows receive_rows(const kernels::Context&, const ExpertRound& round) {
    return {round.rows, round.results, round.plan.row_of_expert_E1};
  }
  // After the results of received rows were filled in.
  virtual void post_results(const kernels::Context&, const ExpertRound&) {}
  virtual void receive_results(const kernels::Context&, const ExpertRound&) {}

  // Gradients of routing weights, [T, k], and of a shared expert's gate, [T] behind them: each part
  // of the width gives a part of them.  In place.
  virtual void sum_partial(const Tensor& gradients) { (void)gradients; }
  // The one who adds what all compute alike: skipped tokens, and the input gradient of router and
  // gate.
  virtual bool leads() const { return true; }
};

struct Exchanges {
  TokenExchanges tokens;
  ExpertExchange* experts;
  HeadExchange* heads = nullptr;  // null: all query heads of the keys are here
  LayerSums* layer = nullptr;     // null: all heads are here
};

// One device holds every token: answers from the segment list.  A segment may continue a document
// whose preceding tokens stand in other rows of the same batch.
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
