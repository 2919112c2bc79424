#include "ashlar/optim/balance.h"

#include <cmath>

#include "ashlar/kernels/balance.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::optim {
namespace {

kernels::BalanceRates rates_of(const BalanceSpec& spec, double lr, int64_t update) {
  return {.lr = lr,
          .beta1 = spec.beta1,
          .beta2 = spec.beta2,
          .eps = spec.eps,
          .correction1 = 1.0 - std::pow(spec.beta1, double(update)),
          .correction2 = 1.0 - std::pow(spec.beta2, double(update))};
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

std::optional<Tensor> Balancer::copy_of(const Tensor& live) const {
  for (const Kept& kept : kept_)
    if (kept.live.data == live.data) return kept.copy.tensor;
  return std::nullopt;
}

void Balancer::update(const kernels::Context& ctx, std::span<const Tensor> counts_X,
                      double factor) {
  ++num_updates_;
  const double lr = spec_.lr * factor;
  for (size_t i = 0; i < biases_.size(); ++i) {
    const auto& [bias, name, block] = biases_[i];
    ASHLAR_ASSERT(block < counts_X.size());
    const Tensor& counts = counts_X[block];
    const int64_t X = bias.numel(), E = counts.numel() - 1;
    const bool all = spec_.target == BalanceTarget::kAllClasses && X > E;
    balance_update(ctx, {.rates = rates_of(spec_, lr, num_updates_),
                         .num_trained = all ? X : E,
                         .centered = !all && lr != 0.0,
                         .counts_E1 = counts,
                         .bias_X = bias,
                         .first_X = first_[i].tensor,
                         .second_X = second_[i].tensor});
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
