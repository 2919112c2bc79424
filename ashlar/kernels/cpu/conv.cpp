// How it works.  With two convolutions of two taps, columns of a token reach back two z, and so
// does halo_z.
//
//   z_{t-2}   z_{t-1}   z_t
//      w0,0 \  / w0,1  w0,0 \  / w0,1        each u has two taps on z
//          u_{t-1}         u_t
//          column 2c    column 2c+1           each token's columns have two u
//
// Backward: du_t = dcolumns_t[2c+1] + dcolumns_{t+1}[2c], since token t + 1 reads u_t too; and
// dz_t = w0,1 du_t + w0,0 du_{t+1}.  At the first token of a segment u_{t-1} belongs to the token
// before: its gradient is added to b0, and, if the segment continues a document, to w0 and the
// halo.
#include "ashlar/kernels/cpu/conv_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// z_{t - steps}[c]: 0 before the document, from the halo before the segment.
template <typename T>
T z_at(const Cells<T>& z, int64_t stride, const Cells<T>& halo, int64_t C, const ConvNeighbours& p,
       int64_t t, int64_t steps, int64_t c) {
  if (steps > p.position) return 0;
  if (steps <= p.back) return z[(t - steps) * stride + c];
  const int64_t column = 2 - (steps - p.back);  // the halo holds the older one first
  return halo[(p.halo * 2 + column) * C + c];
}

template <typename T>
void conv_rows(const ConvArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const ConvNeighbours p = neighbours_of(*x.sequence, t);
    const auto z = [&](int64_t steps, int64_t c) {
      return z_at(x.z, x.z_stride, x.halo, x.C, p, t, steps, c);
    };
    for (int64_t c = 0; c < x.C; ++c)
      for (int64_t tap = 0; tap < 2; ++tap) {
        const int64_t back = 1 - tap;  // u_{t - back}; before the document it counts as b0
        T u = x.b0[c];
        if (back <= p.position) u += x.w0[2 * c] * z(back + 1, c) + x.w0[2 * c + 1] * z(back, c);
        x.columns.set(2 * (t * x.C + c) + tap, u);
      }
  }
}

// du of token t: the current tap of t and the previous tap of t + 1, if that is of this segment.
// Otherwise the holder of t + 1 adds its part, through the halo.
template <typename T>
T du_of(const Cells<T>& dcolumns, int64_t C, const ConvNeighbours& p, int64_t t, int64_t c) {
  T du = dcolumns[2 * (t * C + c) + 1];
  if (p.ahead > 0) du += dcolumns[2 * ((t + 1) * C + c)];
  return du;
}

template <typename T>
void conv_gradient_rows(const ConvGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  const int64_t C = x.C;
  T *dw0 = partial, *db0 = partial + 2 * C;
  for (int64_t t = begin; t < end; ++t) {
    const ConvNeighbours p = neighbours_of(*x.sequence, t);
    for (int64_t c = 0; c < C; ++c) {
      const auto z = [&](int64_t steps) {
        return z_at(x.z, x.z_stride, x.halo, C, p, t, steps, c);
      };
      const T w_old = x.w0[2 * c], w_new = x.w0[2 * c + 1];
      const T du = du_of(x.dcolumns, C, p, t, c);
      db0[c] += du;
      dw0[2 * c] += du * z(1);
      dw0[2 * c + 1] += du * z(0);
      T dz = w_new * du;
      if (p.ahead > 0)
        dz += w_old * du_of(x.dcolumns, C, neighbours_of(*x.sequence, t + 1), t + 1, c);
      x.dz.add(t * x.dz_stride + c, dz);
      if (p.back > 0) continue;

      // The first token's previous tap read b0 alone, or u of the token before the segment.
      const T du_before = x.dcolumns[2 * (t * C + c)];
      db0[c] += du_before;
      if (p.position == 0) continue;
      dw0[2 * c] += du_before * z(2);
      dw0[2 * c + 1] += du_before * z(1);
      x.dhalo.set((p.halo * 2 + 1) * C + c, w_new * du_before + w_old * du);
      x.dhalo.set(p.halo * 2 * C + c, p.position >= 2 ? w_old * du_before : T(0));
    }
  }
}

}  // namespace

void conv_columns_forward(const Context& ctx, const ConvColumnsForward& x) {
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  with_real(x.b0_C.dtype, [&]<typename Real>(Real) {
    const ConvArgs<Real> args{.sequence = &x.sequence,
                              .C = C,
                              .z_stride = x.z_TC.stride,
                              .z = x.z_TC,
                              .halo = x.halo_z,
                              .w0 = x.w0_C2,
                              .b0 = x.b0_C,
                              .columns = x.columns};
    run_rows(ctx, T, args, conv_rows_fast, conv_rows<Real>);
  });
}

void conv_columns_backward(const Context& ctx, const ConvColumnsBackward& x) {
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  with_real(x.b0_C.dtype, [&]<typename Real>(Real) {
    const ConvGradientArgs<Real> args{.sequence = &x.sequence,
                                      .C = C,
                                      .z_stride = x.z_TC.stride,
                                      .dz_stride = x.dz_TC.stride,
                                      .dcolumns = x.dcolumns,
                                      .z = x.z_TC,
                                      .halo = x.halo_z,
                                      .w0 = x.w0_C2,
                                      .dz = x.dz_TC,
                                      .dhalo = x.dhalo_z};
    run_summing_rows(ctx, T, {x.dw0_C2, x.db0_C}, args, conv_gradient_rows_fast,
                     conv_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
