#include "ashlar/optim/balance.h"

#include <cmath>

#include "ashlar/kernels/copy.h"

namespace ashlar::optim {
namespace {

template <typename T>
void update_block(const BalanceSpec& spec, double lr, int64_t step, const Tensor& counts_X,
                  const Tensor& bias_X, const Tensor& first_X, const Tensor& second_X) {
  const int64_t X = bias_X.numel(), E = counts_X.numel() - 1;
  const bool all = spec.target == BalanceTarget::kAllClasses && X > E;
  const int64_t trained = all ? X : E;
  const int64_t* counts = counts_X.as<int64_t>();
  T *b = bias_X.as<T>(), *m = first_X.as<T>(), *v = second_X.as<T>();
  int64_t choices = 0;
  for (int64_t e = 0; e <= E; ++e) choices += counts[e];
  if (choices == 0) return;
  const double c1 = 1.0 - std::pow(spec.beta1, double(step)),
               c2 = 1.0 - std::pow(spec.beta2, double(step));
  double mean = 0.0;
  for (int64_t e = 0; e < trained; ++e) {
    const double g = double(counts[e]) / double(choices) - 1.0 / double(trained);
    m[e] = T(spec.beta1 * double(m[e]) + (1.0 - spec.beta1) * g);
    v[e] = T(spec.beta2 * double(v[e]) + (1.0 - spec.beta2) * g * g);
    b[e] = T(double(b[e]) - lr * (double(m[e]) / c1) / (std::sqrt(double(v[e]) / c2) + spec.eps));
    mean += double(b[e]) / double(trained);
  }
  if (all || lr == 0.0) return;
  for (int64_t e = 0; e < E; ++e) b[e] = T(double(b[e]) - mean);
}

}  // namespace

double load_entropy(std::span<const int64_t> counts) {
  double total = 0.0, entropy = 0.0;
  for (const int64_t count : counts) total += double(count);
  if (total == 0.0 || counts.size() < 2) return 0.0;
  for (const int64_t count : counts)
    if (count > 0) entropy -= double(count) / total * std::log(double(count) / total);
  return entropy / std::log(double(counts.size()));
}

Balancer::Balancer(Allocator& allocator, std::vector<Biases> biases, const BalanceSpec& spec)
    : biases_(std::move(biases)), spec_(spec) {
  for (const auto& [bias, name, counts] : biases_) {
    first_.push_back(make_tensor(allocator, bias.dtype, bias.shape, Tag::kOptimizer));
    second_.push_back(make_tensor(allocator, bias.dtype, bias.shape, Tag::kOptimizer));
    if (spec_.scope != BalanceScope::kMicroBatch) continue;
    for (const Tensor& live : {bias, first_.back().tensor, second_.back().tensor})
      kept_.push_back({live, make_tensor(allocator, live.dtype, live.shape, Tag::kOptimizer)});
  }
}

void Balancer::keep(const kernels::Context& ctx) {
  for (const Kept& kept : kept_) kernels::copy(ctx, kept.live, kept.copy.tensor);
  kept_updates_ = num_updates_;
}

void Balancer::undo(const kernels::Context& ctx) {
  for (const Kept& kept : kept_) kernels::copy(ctx, kept.copy.tensor, kept.live);
  if (!kept_.empty()) num_updates_ = kept_updates_;
}

void Balancer::update(std::span<const Tensor> counts_X, double factor) {
  ++num_updates_;
  for (size_t i = 0; i < biases_.size(); ++i) {
    const auto& [bias, name, counts] = biases_[i];
    ASHLAR_ASSERT(counts < counts_X.size());
    if (bias.device == Device::kMeta) continue;
    const auto update = bias.dtype == DType::kF64 ? update_block<double> : update_block<float>;
    update(spec_, spec_.lr * factor, num_updates_, counts_X[counts], bias, first_[i].tensor,
           second_[i].tensor);
  }
}

std::vector<LogicalTensor> balancing_state(const LogicalTensor& biases) {
  std::vector<LogicalTensor> list;
  for (const char* state : {"exp_avg", "exp_avg_sq"})
    list.push_back({std::string("optim.") + state + "." + biases.name, biases.dtype,
                    biases.global_shape, Role::kOptimizerState});
  return list;
}

std::vector<Piece> Balancer::pieces() const {
  std::vector<Piece> list;
  for (size_t i = 0; i < biases_.size(); ++i) {
    const Tensor& values = biases_[i].values;
    const auto logical =
        balancing_state({biases_[i].name, values.dtype, values.shape, Role::kBuffer});
    const Tensor* state[] = {&first_[i].tensor, &second_[i].tensor};
    for (size_t s = 0; s < logical.size(); ++s)
      list.push_back({logical[s], Box::whole(values.shape), *state[s]});
  }
  return list;
}

}  // namespace ashlar::optim
