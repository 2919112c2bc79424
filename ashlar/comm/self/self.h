// A world of one rank: every operation is a copy, done in the call.
#pragma once

#include "ashlar/comm/world.h"

namespace ashlar::comm {

class SelfTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool immediate() const override { return true; }
  void exchange(const Round&) override { ASHLAR_ASSERT(false && "nobody to exchange with"); }
  void interrupt() override {}
  void fail(const std::exception_ptr&) override {}
};

class SelfWorld {
 public:
  explicit SelfWorld(Allocator& allocator) : world_(transport_, Options{}, allocator) {}
  Group& group() { return world_.group; }

 private:
  SelfTransport transport_;
  World world_;
};

}  // namespace ashlar::comm
