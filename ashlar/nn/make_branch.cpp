#include "ashlar/nn/make_branch.h"

#include "ashlar/nn/cca_attention.h"
#include "ashlar/nn/moe.h"

namespace ashlar::nn {

std::unique_ptr<Branch> make_branch(const CcaSpec&) {
  return std::make_unique<CcaBranch>();
}

std::unique_ptr<Branch> make_branch(const MoeSpec&) {
  return std::make_unique<MoeBranch>();
}

}  // namespace ashlar::nn
