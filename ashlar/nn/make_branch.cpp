#include "ashlar/nn/make_branch.h"

#include "ashlar/kernels/attention.h"
#include "ashlar/nn/attention.h"
#include "ashlar/nn/cca_attention.h"
#include "ashlar/nn/linear_attention.h"
#include "ashlar/nn/linear_router.h"
#include "ashlar/nn/mlp.h"
#include "ashlar/nn/mlp_router.h"
#include "ashlar/nn/moe.h"

namespace ashlar::nn {
namespace {

// Recipes and checkpoints may have heads as wide as the kernels hold, and no wider.
static_assert(ashlar::kMaxHeadDim == kernels::kMaxHeadDim);

std::unique_ptr<Branch> make(const CcaSpec&) {
  return std::make_unique<CcaBranch>();
}

std::unique_ptr<Branch> make(const AttentionSpec&) {
  return std::make_unique<AttentionBranch>();
}

std::unique_ptr<Branch> make(const LinearSpec&) {
  return std::make_unique<LinearBranch>();
}

std::unique_ptr<Branch> make(const MlpSpec&) {
  return std::make_unique<MlpBranch>();
}

std::unique_ptr<Branch> make(const MoeSpec& spec) {
  return std::make_unique<MoeBranch>(make_router(spec.router));
}

std::unique_ptr<Router> make(const MlpRouterSpec&) {
  return std::make_unique<MlpRouter>();
}

std::unique_ptr<Router> make(const LinearRouterSpec&) {
  return std::make_unique<LinearRouter>();
}

}  // namespace

std::unique_ptr<Branch> make_mixer(const MixerSpec& mixer) {
  return std::visit([](const auto& spec) { return make(spec); }, mixer);
}

std::unique_ptr<Branch> make_feed_forward(const FeedForwardSpec& feed_forward) {
  return std::visit([](const auto& spec) { return make(spec); }, feed_forward);
}

std::unique_ptr<Router> make_router(const RouterSpec& router) {
  return std::visit([](const auto& spec) { return make(spec); }, router);
}

}  // namespace ashlar::nn
