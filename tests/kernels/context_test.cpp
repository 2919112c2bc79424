#include "ashlar/kernels/context.h"

#include <gtest/gtest.h>

namespace ashlar::kernels {
namespace {

TEST(Context, RecorderAddsUp) {
  Recorder recorder;
  const Context ctx{.device = Device::kMeta, .recorder = &recorder};
  ctx.record("a", {2, 3}, {10, 100});
  ctx.record("b", {4}, {1, 2});
  EXPECT_EQ(recorder.records.size(), 2u);
  EXPECT_EQ(recorder.total().flop, 11);
  EXPECT_EQ(recorder.total().bytes, 102);
}

}  // namespace
}  // namespace ashlar::kernels
