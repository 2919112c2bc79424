// What crosses token ownership inside attention, forward and backward: the halo before a segment
// that continues a document, and attention itself, whose queries may see keys that stand elsewhere.
// The layers know nothing else of other tokens, so decode caches and context parallelism are
// implementations of this.
#pragma once

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::nn {

class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;

  // Fills halo_z [num_halos, 2, C] and halo_vd [num_halos, vd.cols] from the two tokens before each
  // segment that continues a document (z of a token before the document's start is 0).
  virtual void halo_forward(const kernels::Context&, int64_t layer, const kernels::Sequence&,
                            const kernels::Matrix& z, const kernels::Matrix& vd,
                            const Tensor& halo_z, const Tensor& halo_vd) = 0;
  // Adds the halo's gradient to the rows that own those tokens.
  virtual void halo_backward(const kernels::Context&, int64_t layer, const kernels::Sequence&,
                             const Tensor& dhalo_z, const Tensor& dhalo_vd,
                             const kernels::Matrix& dz, const kernels::Matrix& dvd) = 0;

  // Attention of the local queries over all keys that they may see; q k v are the local ones.
  // Tensors as in kernels/attention.h: fills out and lse.
  virtual void attend(const kernels::Context&, int64_t layer, const kernels::AttentionShape&,
                      const kernels::Sequence&, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& out, const Tensor& lse) = 0;
  // Overwrites dq dk dv, the gradients of the local q k v.
  virtual void attend_backward(const kernels::Context&, int64_t layer,
                               const kernels::AttentionShape&, const kernels::Sequence&,
                               const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               const Tensor& lse, const Tensor& dout, const Tensor& dq,
                               const Tensor& dk, const Tensor& dv) = 0;
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
  void attend(const kernels::Context&, int64_t, const kernels::AttentionShape&,
              const kernels::Sequence&, const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& out, const Tensor& lse) override;
  void attend_backward(const kernels::Context&, int64_t, const kernels::AttentionShape&,
                       const kernels::Sequence&, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse, const Tensor& dout, const Tensor& dq,
                       const Tensor& dk, const Tensor& dv) override;
};

}  // namespace ashlar::nn
