// Halos of context parallelism: the last rows of every stretch that a mixer reads before a token
// (nn::Strip) go to the rank that holds the next token.  One message per border and direction, all
// rows together, whether or not a document crosses it.
//
// Cost     docs/parallel/cp.md.
// Memory   messages of both sides, once (Tag::kCommunication).
// Errors   kConfig if the rows cannot be cut evenly (CpSplit::check); those of comm::Group.
#pragma once

#include <span>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/branch.h"
#include "ashlar/parallel/cp_split.h"

namespace ashlar::parallel {

class CpHalos final : public nn::HaloExchange {
 public:
  CpHalos(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs, DType wide,
          Allocator& allocator);
  // Sets the rank's tokens of the next micro-batch.  Allocates nothing.
  void assign(const kernels::Sequence& sequence);
  void halo_forward(const kernels::Context&, const nn::Pass&, std::span<const nn::Strip>) override;
  void halo_backward(const kernels::Context&, const nn::Pass&, std::span<const nn::Strip>) override;

 private:
  // One side of all borders between stretches of this rank and those of others, with the messages
  // that cross them.
  struct Side {
    struct Border {
      int rank;       // the rank on the other side
      int64_t local;  // first token behind the border, in this rank's part of a row
    };
    std::vector<Border> borders;
    OwnedTensor memory;  // [borders, rows, width]: strip after strip, older rows first
    std::vector<comm::Transfer> transfers;
    kernels::Matrix message(size_t border) const;  // [rows, width]
    void take(Allocator& allocator, DType dtype, int64_t num_rows, int64_t width);
  };
  // Element b - 1 pairs halos with rows of the memory of `before_`, for the token b steps before
  // each segment that continues a document, in the order of segments.  A halo whose document begins
  // later than that token has no pair.
  using HaloRows = std::vector<std::vector<kernels::RowPair>>;
  // Calls use(strip, steps back, first column of that row in a message, columns of that row in the
  // halos), in the order of a message.
  template <typename Use>
  void for_each_halo_row(std::span<const nn::Strip> strips, Use use) const;
  void find_borders();
  // Moves the messages from one side of all borders to the other.
  void exchange(const Side& from, const Side& to, std::string_view label);
  kernels::Matrix token_of_rows(const kernels::Matrix& tokens, int64_t token) const;

  comm::Group& ranks_;
  const CpSplit split_;
  Side before_, behind_;  // borders where documents arrive, and where they continue
  int64_t message_width_;
  HaloRows arriving_, leaving_;  // from messages to halos, and back
};

}  // namespace ashlar::parallel
