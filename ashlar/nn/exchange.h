// What crosses token ownership inside attention, forward and backward: the halo before a segment
// that continues a document, and the keys and values that its queries may see.  The layers know
// nothing else of other tokens, so decode caches and context parallelism are implementations of
// this.
#pragma once

#include <span>

#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::nn {

struct KeysValues {
  std::span<const Segment> segments;  // tiling the rows of k and v
  Tensor k, v;                        // [S, K*D]
};

class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;

  // Fills halo_z [num_halos, 2, C] and halo_vd [num_halos, delayed] from the two tokens before each
  // segment that continues a document (z of a token before the document's start is 0).
  virtual void halo_forward(const kernels::Context&, int64_t layer, const kernels::Sequence&,
                            const kernels::Matrix& z, const kernels::Matrix& vd,
                            const Tensor& halo_z, const Tensor& halo_vd) = 0;
  // Adds the halo's gradient to the rows that own those tokens.
  virtual void halo_backward(const kernels::Context&, int64_t layer, const kernels::Sequence&,
                             const Tensor& dhalo_z, const Tensor& dhalo_vd,
                             const kernels::Matrix& dz, const kernels::Matrix& dvd) = 0;

  // All keys and values that the local queries may see, given the local ones.  Valid until the next
  // call.
  virtual KeysValues keys_values(const kernels::Context&, int64_t layer, const kernels::Sequence&,
                                 const Tensor& k, const Tensor& v) = 0;
  // Local gradients from those of all keys and values.
  virtual void keys_values_backward(const kernels::Context&, int64_t layer,
                                    const kernels::Sequence&, const Tensor& dk_all,
                                    const Tensor& dv_all, const Tensor& dk, const Tensor& dv) = 0;
};

// One device holds every token: answers from the segment list.  A segment may continue a document
// whose preceding tokens stand in other rows of the same batch.
class LocalExchange final : public SequenceExchange {
 public:
  void halo_forward(const kernels::Context&, int64_t, const kernels::Sequence&,
                    const kernels::Matrix& z, const kernels::Matrix& vd, const Tensor& halo_z,
                    const Tensor& halo_vd) override;
  void halo_backward(const kernels::Context&, int64_t, const kernels::Sequence&,
                     const Tensor& dhalo_z, const Tensor& dhalo_vd, const kernels::Matrix& dz,
                     const kernels::Matrix& dvd) override;
  KeysValues keys_values(const kernels::Context&, int64_t, const kernels::Sequence&,
                         const Tensor& k, const Tensor& v) override;
  void keys_values_backward(const kernels::Context&, int64_t, const kernels::Sequence&,
                            const Tensor& dk_all, const Tensor& dv_all, const Tensor& dk,
                            const Tensor& dv) override;
};

}  // namespace ashlar::nn
