// The plain reference of the recurrence, in fp64: against its formulas, against finite differences,
// and its maps against the run as one chunk.
#include "tests/kernels/recurrence_case.h"

namespace ashlar::kernels {
namespace {

// Short documents, the first of which began before; two of them end inside a chunk.
RecurrenceCase small(std::vector<int64_t> chunks) {
  return {.name = "small",
          .shape = {.K = 2, .H = 4, .dk = 3, .dv = 2, .scale = 0.7},
          .documents = {{5, 4}, {0, 3}, {0, 1}, {3, 4}},
          .chunks = std::move(chunks)};
}

// M_t and o_t as matrices: M_t = B_t M_{t-1} + beta_t k_t v_t^T, where B_t = Diag(a_t), and with
// beta (I - beta_t k_t k_t^T) Diag(a_t).
std::vector<double> outputs_by_formula(const RecurrenceTensors& r) {
  const auto& [K, H, dk, dv, scale] = r.c.shape;
  const int64_t T = r.c.num_tokens();
  const double *q = r.q.as<double>(), *k = r.k.as<double>(), *v = r.v.as<double>();
  std::vector<double> out(size_t(T * H * dv));
  for (int64_t h = 0; h < H; ++h) {
    const int64_t j = h / (H / K);
    for (size_t chunk = 0; chunk < r.ranges.size(); ++chunk) {
      std::vector<double> M(size_t(dk * dv), 0.0), before;
      if (r.entering)
        for (size_t e = 0; e < M.size(); ++e)
          M[e] = r.entering.as<double>()[(chunk * size_t(H) + size_t(h)) * M.size() + e];
      for (int64_t t = r.ranges[chunk].begin; t < r.ranges[chunk].end; ++t) {
        const double beta = r.c.beta ? r.beta.as<double>()[t * H + h] : 1;
        const auto log_a = [&, H = H, dk = dk](int64_t c) {
          if (r.c.decay == Decay::kNone) return 0.0;
          const double* x = r.log_decay.as<double>();
          if (r.c.decay == Decay::kHead) return x[h];
          return r.c.decay == Decay::kToken ? x[t * H + h] : x[(t * H + h) * dk + c];
        };
        before = M;
        if (r.sequence.position_T()[size_t(t)] == 0) before.assign(before.size(), 0.0);
        for (int64_t c = 0; c < dk; ++c)
          for (int64_t e = 0; e < dv; ++e) {
            double sum = beta * k[(t * K + j) * dk + c] * v[(t * H + h) * dv + e];
            for (int64_t b = 0; b < dk; ++b) {
              const double reflection =
                  r.c.beta ? beta * k[(t * K + j) * dk + c] * k[(t * K + j) * dk + b] : 0;
              sum += ((b == c) - reflection) * std::exp(log_a(b)) * before[size_t(b * dv + e)];
            }
            M[size_t(c * dv + e)] = sum;
          }
        for (int64_t e = 0; e < dv; ++e)
          for (int64_t c = 0; c < dk; ++c)
            out[size_t((t * H + h) * dv + e)] +=
                scale * q[(t * K + j) * dk + c] * M[size_t(c * dv + e)];
      }
    }
  }
  return out;
}

TEST(Recurrence, ReferenceIsTheFormula) {
  for (const RecurrenceCase& c : every_recurrence(small({5, 7}))) {
    RecurrenceBench bench;
    const RecurrenceTensors r = make_tensors(bench, c);
    bench.kernels.forward(r);
    const std::vector<double> want = outputs_by_formula(r), got = values_of(r.out);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-13 * largest(want)) << c.name << " [" << i << "]";
  }
}

// d loss / d x by central differences, within 1e-8 of the largest.
void expect_differences(const std::string& what, const Tensor& x, const Tensor& gradient,
                        const std::function<double()>& loss) {
  constexpr double kStep = 1e-4;
  ASSERT_EQ(x.numel(), gradient.numel()) << what;
  const double scale = std::max(1.0, largest(values_of(gradient)));
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.as<double>()[i];
    const double kept = value;
    const auto at = [&](double steps) {
      value = kept + steps * kStep;
      return loss();
    };
    // Two central differences cancel the error of the second order in the step.
    const double near = (at(1) - at(-1)) / (2 * kStep), far = (at(2) - at(-2)) / (4 * kStep);
    value = kept;
    ASSERT_NEAR((4 * near - far) / 3, gradient.as<double>()[i], 1e-8 * scale)
        << what << " [" << i << "]";
  }
}

TEST(Recurrence, GradientsAreThoseOfFiniteDifferences) {
  for (const RecurrenceCase& c : every_recurrence(small({5, 7}))) {
    RecurrenceBench bench;
    const RecurrenceTensors r = make_tensors(bench, c);
    bench.kernels.run(r);
    const auto loss = [&] {
      bench.kernels.forward(r);
      return dot(r.out, r.dout) + dot(r.leaving, r.d_leaving);
    };
    expect_differences(c.name + " q", r.q, r.dq, loss);
    expect_differences(c.name + " k", r.k, r.dk, loss);
    expect_differences(c.name + " v", r.v, r.dv, loss);
    if (c.decays_by_token())
      expect_differences(c.name + " log_decay", r.log_decay, r.dlog_decay, loss);
    if (c.beta) expect_differences(c.name + " beta", r.beta, r.dbeta, loss);

    // The entering state has its gradient through the maps: transition^T d_leaving + d_made.
    const auto& [K, H, dk, dv, scale] = c.shape;
    const Shape shape = transition_shape(c.shape, c.decay, c.beta, c.num_chunks());
    const Tensor transition = bench.stream(shape), made = bench.stream(c.states_shape()),
                 d_made = bench.stream(c.states_shape()),
                 d_entering = bench.stream(c.states_shape());
    recurrence_maps(bench.roomy, DType::kF64, r.call(), transition, made);
    recurrence_backward_maps(bench.roomy, DType::kF64, r.call(), Matrix::of(r.dout), d_made);
    copy_convert(r.d_leaving, d_entering);
    for (int64_t chunk = 0; chunk < c.num_chunks(); ++chunk) {
      const auto of_heads = [&, H = H, dk = dk, dv = dv](const Tensor& states) {
        return states.slice(chunk, chunk + 1).view({H, dk, dv});
      };
      const Tensor own = transition.slice(chunk, chunk + 1);
      apply_map(bench.roomy,
                own.view(shape.ndim() == 4   ? Shape{H, dk, dk}
                         : shape.ndim() == 3 ? Shape{H, dk}
                                             : Shape{H}),
                of_heads(d_made), of_heads(d_entering), true);
    }
    expect_differences(c.name + " entering", r.entering, d_entering, loss);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ashlar::kernels
