// Makes branches; a new kind of branch adds a function to make_branch.cpp.
#pragma once

#include <memory>

#include "ashlar/nn/branch.h"

namespace ashlar::nn {

std::unique_ptr<Branch> make_mixer(const MixerSpec&);
std::unique_ptr<Branch> make_feed_forward(const FeedForwardSpec&);

}  // namespace ashlar::nn
