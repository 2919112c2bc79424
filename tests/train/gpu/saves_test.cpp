// Saves of a trainer on a GPU, which is an emulator here that copies as late as it may.
#include <gtest/gtest.h>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/kernels/gpu/emulator/host_view.h"
#include "ashlar/train/device_snapshot.h"
#include "ashlar/train/state.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using device::emulator::kSidePatience;
using device::emulator::num_host_waits;
using device::emulator::set_side_patience;
using kernels::gpu::SideCopies;

enum class Slots {
  kPlanned,  // hold all of a tiny model
  kFew,      // are used again and again
};

Tensors state_of(const Trainer& trainer) {
  Tensors all;
  for (const auto& pieces : {trainer.model().pieces(true), trainer.optimizer_pieces(true)})
    for (const Piece& piece : pieces) all[piece.logical.name] = floats_of(piece.data);
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GpuSaves : public testing::Test {
 protected:
  ~GpuSaves() override { set_side_patience(kSidePatience); }

  // Saves the state after two steps while it takes the third.  held: the update waits for copies.
  // patience: how often the emulator is asked before it copies by itself.
  void save_beside_a_step(const Recipe& recipe, Slots slots, int64_t patience, bool held = true) {
    TestedTrainer gpu(recipe, DType::kF32, On::kGpu);
    Allocator& pinned = gpu.gpu_memory().pinned();
    SideCopies copies(pinned, slots == Slots::kFew ? 3 : gpu.plan.save_slots,
                      slots == Slots::kFew ? 4096 : SideCopies::kSlotBytes);
    if (slots == Slots::kPlanned) {
      EXPECT_EQ(pinned.counts().total.peak_bytes,
                gpu.plan.pinned_bytes + gpu.plan.pinned_save_bytes());
    }
    DeviceSnapshot snapshot(copies);
    StateWriter writer(gpu.trainer(), {}, "emulator");
    checkpoint::CheckpointOptions options;
    options.run_id = "run";
    options.source = &snapshot;
    checkpoint::Checkpointer checkpoints(*files_, "root", options, log_);
    gpu.step(0);
    int64_t waits = num_host_waits();
    gpu.step(1);
    const int64_t usual_waits = num_host_waits() - waits;  // the emulator's products wait too
    want_ = state_of(gpu.trainer());
    set_side_patience(patience);
    waits = num_host_waits();
    const int64_t own_waits = gpu.gpu_memory().stream().num_waits();
    const checkpoint::SaveRequest request = writer.request({.step = 2}, {}, {});
    snapshot.follow();
    checkpoints.save(request);
    const StepStats stats = gpu.measure(2);
    if (held) snapshot.before_update();
    gpu.trainer().apply(stats);
    EXPECT_EQ(num_host_waits() - waits, usual_waits);
    EXPECT_EQ(gpu.gpu_memory().stream().num_waits() - own_waits, 1);
    set_side_patience(0);  // for copies that nothing waits for
    checkpoints.wait();
    got_ = stored_state(*files_, checkpoints.newest()->directory);
    EXPECT_GT(num_changed(state_of(gpu.trainer())), 0);
  }
  // The tensors of `state` that are not what the save was to hold.
  int64_t num_changed(const Tensors& state) const {
    EXPECT_EQ(state.size(), want_.size());
    return std::count_if(state.begin(), state.end(), [&](const auto& tensor) {
      return !same_bits(tensor.second, want_.at(tensor.first));
    });
  }

  const std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_{[](std::string_view) {}};
  Tensors want_, got_;  // the state when it was saved, and what was stored
};

TEST_F(GpuSaves, HoldTheStateOfTheirStepAndWaitForNothing) {
  save_beside_a_step(tiny_llama(), Slots::kPlanned, INT64_MAX);
  expect_same_bits(got_, want_);
}

TEST_F(GpuSaves, GoThroughFewSlots) {
  for (const int64_t patience : {0, 2}) {
    SCOPED_TRACE(patience);
    save_beside_a_step(tiny_llama(), Slots::kFew, patience);
    expect_same_bits(got_, want_);
    files_->remove_all("root");
  }
}

// Its biases move with every micro-batch, before the update.
TEST_F(GpuSaves, HoldBiasesThatMoveInsideAStep) {
  save_beside_a_step(tiny_zaya1({"moe.balance.scope=micro_batch"}), Slots::kPlanned, INT64_MAX);
  expect_same_bits(got_, want_);
}

// A planted fault: the emulator shows an update that does not wait for the copies before it.
TEST_F(GpuSaves, ShowAnUpdateThatDoesNotWaitForThem) {
  save_beside_a_step(tiny_llama(), Slots::kPlanned, INT64_MAX, /*held=*/false);
  EXPECT_GT(num_changed(got_), 0);
}

}  // namespace
}  // namespace ashlar::train
