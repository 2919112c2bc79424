// The kinds of branches: a new one is a line in make_branch.cpp.
#pragma once

#include <memory>

#include "ashlar/nn/branch.h"

namespace ashlar::nn {

std::unique_ptr<Branch> make_branch(const CcaSpec&);
std::unique_ptr<Branch> make_branch(const MoeSpec&);

}  // namespace ashlar::nn
