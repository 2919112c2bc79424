// Attention in plain loops, one query after the other.  T is the type of q k v out dout, A the type
// that sums and that lse and the gradients have.
#include <array>
#include <cmath>
#include <limits>

#include "ashlar/kernels/cpu/attention/args.h"

namespace ashlar::kernels::cpu {
namespace {

// visit(s) for every row s of k that query row t sees.
template <typename F>
void for_each_visible(const AttentionArgs& call, int64_t t, F visit) {
  const Sequence& queries = call.queries;
  const int64_t document = queries.segments()[queries.segment_T()[t]].document;
  for (const Segment& key : call.keys) {
    if (key.document != document) continue;
    const auto [begin, end] = visible_rows(key, queries.position_T()[t], call.shape.window);
    for (int64_t s = begin; s < end; ++s) visit(s);
  }
}

template <typename A, typename T>
A sum_of_products(const T* a, const T* b, int64_t n) {
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += A(a[i]) * A(b[i]);
  return sum;
}

template <typename T, typename A>
void forward(const AttentionArgs& call) {
  const int64_t N = call.shape.N, K = call.shape.K, D = call.shape.D, V = call.shape.V;
  const T *q = call.q.as<T>(), *k = call.k.as<T>(), *v = call.v.as<T>();
  T* out = call.out.as<T>();
  A* lse = call.lse_TN.as<A>();
  const auto one = [&](int64_t t, int64_t h) {
    const int64_t j = h / (N / K), th = t * N + h;
    const auto score = [&](int64_t s) {
      return A(call.shape.scale) * sum_of_products<A>(q + th * D, k + (s * K + j) * D, D);
    };
    A max = -std::numeric_limits<A>::infinity(), sum = 0;
    for_each_visible(call, t, [&](int64_t s) { max = std::max(max, score(s)); });
    std::array<A, kMaxHeadDim> weighted{};
    for_each_visible(call, t, [&](int64_t s) {
      const A p = std::exp(score(s) - max);
      sum += p;
      for (int64_t d = 0; d < V; ++d) weighted[d] += p * A(v[(s * K + j) * V + d]);
    });
    sum = checked_sum(call, t, sum);
    for (int64_t d = 0; d < V; ++d) out[th * V + d] = sum == 0 ? T(0) : T(weighted[d] / sum);
    lse[th] = max + std::log(sum);
  };
  call.ctx.threads->run(call.queries.num_tokens(), [&](int64_t t, int) {
    for (int64_t h = 0; h < N; ++h) one(t, h);
  });
}

// With P = exp(S - lse), delta = <dout, out>:  dv += P dout;  dS = P (<dout, v> - delta) scale;
// dq += dS k;  dk += dS q.
template <typename T, typename A>
void backward(const AttentionArgs& call, const AttentionGradients& gradients) {
  const int64_t N = call.shape.N, K = call.shape.K, D = call.shape.D, V = call.shape.V;
  const A scale = A(call.shape.scale);
  const T *q = call.q.as<T>(), *k = call.k.as<T>(), *v = call.v.as<T>();
  const T *out = call.out.as<T>(), *dout = gradients.dout.as<T>();
  const A* lse = call.lse_TN.as<A>();
  A *dq = gradients.dq.as<A>(), *dk = gradients.dk.as<A>(), *dv = gradients.dv.as<A>();
  for (const Tensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) fill_zero(*tensor);

  const auto one = [&](int64_t t, int64_t h) {
    const int64_t j = h / (N / K), th = (t * N + h) * D, out_th = (t * N + h) * V;
    const A delta = sum_of_products<A>(dout + out_th, out + out_th, V);
    for_each_visible(call, t, [&](int64_t s) {
      const int64_t sj = (s * K + j) * D, value_sj = (s * K + j) * V;
      const A p = std::exp(scale * sum_of_products<A>(q + th, k + sj, D) - lse[t * N + h]);
      const A ds = p * (sum_of_products<A>(dout + out_th, v + value_sj, V) - delta) * scale;
      for (int64_t d = 0; d < V; ++d) dv[value_sj + d] += p * A(dout[out_th + d]);
      for (int64_t d = 0; d < D; ++d) {
        dq[th + d] += ds * A(k[sj + d]);
        dk[sj + d] += ds * A(q[th + d]);
      }
    });
  };
  call.ctx.threads->run(K, [&](int64_t j, int) {  // kv heads share no gradient
    for (int64_t t = 0; t < call.queries.num_tokens(); ++t)
      for (int64_t h = j * (N / K); h < (j + 1) * (N / K); ++h) one(t, h);
  });
}

}  // namespace

void attention_forward_reference(const AttentionArgs& call) {
  if (call.q.dtype == DType::kF64) return forward<double, double>(call);
  if (call.q.dtype == DType::kF32) return forward<float, float>(call);
  return forward<bf16, float>(call);
}

void attention_backward_reference(const AttentionArgs& call, const AttentionGradients& gradients) {
  if (call.q.dtype == DType::kF64) return backward<double, double>(call, gradients);
  if (call.q.dtype == DType::kF32) return backward<float, float>(call, gradients);
  return backward<bf16, float>(call, gradients);
}

}  // namespace ashlar::kernels::cpu
