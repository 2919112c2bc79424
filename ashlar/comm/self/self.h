// A world of one rank: every operation is a copy, made in the call.
#pragma once

#include "ashlar/comm/world.h"

namespace ashlar::comm {

class SelfEngine final : public Engine {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool immediate() const override { return true; }
  std::unique_ptr<Transport> transport(std::string_view) override {
    ASHLAR_ASSERT(false && "nobody to exchange with");
  }
  void fail(const std::exception_ptr&) override {}
};

class SelfWorld {
 public:
  explicit SelfWorld(Allocator& allocator) : world_(engine_, Options{}, allocator) {}
  Group& group() { return world_.group; }

 private:
  SelfEngine engine_;
  World world_;
};

}  // namespace ashlar::comm
