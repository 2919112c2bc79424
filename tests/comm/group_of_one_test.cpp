// Groups of one rank copy by the function of their world.
#include <gtest/gtest.h>

#include "ashlar/comm/self/self.h"
#include "tests/comm/checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;

TEST(GroupOfOne, CopiesAsItIsTold) {
  Allocator allocator(Device::kCpu);
  SelfWorld self(allocator);
  Group& world = self.group();
  std::vector<float> in = {1, 2, 3}, out(3);
  int num_copies = 0;
  world.copy_with([&](const Tensor& from, const Tensor& to) {
    ++num_copies;
    copy_convert(from, to);
  });
  world.all_reduce(tensor_of(in), tensor_of(out), "x").wait();
  EXPECT_EQ(out, in);
  EXPECT_EQ(num_copies, 1);
  world.all_reduce(tensor_of(in), tensor_of(in), "x").wait();  // in place
  const Transfer to{0, tensor_of(in)}, from{0, tensor_of(out)};
  world.split("part", [](int) { return SplitKey{}; })
      ->send_receive({&to, 1}, {&from, 1}, "x")
      .wait();
  EXPECT_EQ(num_copies, 2);
  world.copy_with(copy_convert);
  out = {};
  out.resize(3);
  world.all_gather(tensor_of(in), tensor_of(out), "x").wait();
  EXPECT_EQ(out, in);
  EXPECT_EQ(num_copies, 2);
}

}  // namespace
}  // namespace ashlar::comm
