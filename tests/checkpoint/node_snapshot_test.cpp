// The members of a machine copy what they keep into one memory, from where one of them writes it.
#include "ashlar/checkpoint/save/node_snapshot.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <set>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "tests/support/errors.h"

namespace ashlar::checkpoint {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t end) { return int64_t((state_ = splitmix64(state_ + 1)) % uint64_t(end)); }

 private:
  uint64_t state_;
};

Shape random_shape(Random& random) {
  Shape shape;
  std::vector<int64_t> dims;
  for (int64_t d = 0, ndim = random.below(4); d < ndim; ++d) dims.push_back(1 + random.below(7));
  return Shape(dims);
}

// The elements [begin, end) of the tensor, cut at random places, as boxes.
std::vector<Box> random_cuts(Random& random, const Shape& shape) {
  std::set<int64_t> cuts{0, shape.numel()};
  for (int64_t i = 0, more = random.below(6); i < more; ++i)
    cuts.insert(random.below(shape.numel() + 1));
  std::vector<Box> boxes;
  for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at)
    for (const Box& box : boxes_of_range(Box::whole(shape), *at, *std::next(at)))
      boxes.push_back(box);
  return boxes;
}

TEST(JoinBoxes, NeighboursBecomeWholeTensors) {
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(random);
    std::vector<Box> boxes = random_cuts(random, shape);
    for (size_t i = boxes.size(); i > 1; --i)
      std::swap(boxes[i - 1], boxes[random.below(int64_t(i))]);
    EXPECT_EQ(join_boxes(boxes), std::vector{Box::whole(shape)}) << shape.to_string();
  }
}

TEST(JoinBoxes, WhatHasGapsStaysApart) {
  const Box low{{0, 0}, {2, 3}}, high{{3, 0}, {1, 3}}, right{{0, 3}, {1, 1}};
  EXPECT_EQ(join_boxes(std::vector{high, right, low}).size(), 3u);
  EXPECT_EQ(join_boxes(std::vector<Box>()).size(), 0u);
  // Half of the rows of every expert, as ranks of tensor parallelism keep them.
  const Box upper{{0, 0, 0}, {4, 2, 3}}, lower{{0, 2, 0}, {4, 2, 3}};
  EXPECT_EQ(join_boxes(std::vector{lower, upper}), std::vector{Box::whole({4, 4, 3})});
}

// A state that members keep in parts, each with memory of its own.
class Members {
 public:
  Members(Random& random, int num_members) : shares_(size_t(num_members)) {
    for (int t = 0; t < 5; ++t) {
      const LogicalTensor logical{"t" + std::to_string(t), t % 2 ? DType::kF32 : DType::kBF16,
                                  random_shape(random)};
      for (const Box& box : random_cuts(random, logical.global_shape))
        add(shares_[size_t(random.below(num_members))], logical, box, t < 3);
    }
  }
  // Every element of every save has bytes of its own.
  void fill(int64_t save) {
    for (NodeShare& share : shares_)
      for (auto* pieces : {&share.model, &share.optim})
        for (Piece& piece : *pieces)
          for (int64_t i = 0; i < piece.data.numel(); ++i)
            set(piece.data, i, value(save, piece.logical, piece.box, i));
  }
  static uint16_t value(int64_t save, const LogicalTensor& logical, const Box& box, int64_t i) {
    int64_t index = 0, scale = 1;
    for (int d = box.length.ndim() - 1; d >= 0; --d) {
      index += (box.offset[d] + i % box.length[d]) * scale;
      i /= box.length[d];
      scale *= logical.global_shape[d];
    }
    return uint16_t(splitmix64(uint64_t(save * 1000 + index + logical.name.back() * 7919)));
  }
  static void set(const Tensor& data, int64_t i, uint16_t value) {
    if (data.dtype == DType::kF32)
      data.as<float>()[i] = value;
    else
      std::memcpy(data.data + 2 * i, &value, 2);
  }
  static uint16_t get(const Tensor& data, int64_t i) {
    uint16_t value = 0;
    if (data.dtype == DType::kF32) return uint16_t(data.as<float>()[i]);
    std::memcpy(&value, data.data + 2 * i, 2);
    return value;
  }
  const std::vector<NodeShare>& shares() const { return shares_; }

 private:
  void add(NodeShare& share, const LogicalTensor& logical, const Box& box, bool model) {
    memory_.emplace_back(size_t(box.length.numel() * size_of(logical.dtype)));
    (model ? share.model : share.optim)
        .push_back(
            {logical, box, {memory_.back().data(), logical.dtype, Device::kCpu, box.length}});
  }
  std::vector<NodeShare> shares_;
  std::list<std::vector<std::byte>> memory_;
};

void expect_state(const NodeShare& state, int64_t save) {
  std::set<std::string> names;
  for (const auto* pieces : {&state.model, &state.optim})
    for (const Piece& piece : *pieces) {
      EXPECT_EQ(piece.box, Box::whole(piece.logical.global_shape));
      EXPECT_TRUE(names.insert(piece.logical.name).second);
      for (int64_t i = 0; i < piece.data.numel(); ++i)
        ASSERT_EQ(Members::get(piece.data, i), Members::value(save, piece.logical, piece.box, i))
            << piece.logical.name << " " << i;
    }
  EXPECT_EQ(names.size(), 5u);
}

std::unique_ptr<NodeSnapshot> member_of(const Members& members, int member,
                                        const std::string& path) {
  std::vector<NodeShare> told;  // as the others read it
  for (const NodeShare& share : members.shares()) told.push_back(decode_share(encode(share)));
  return std::make_unique<NodeSnapshot>(SharedMemory::open(path), lay_out(told), member,
                                        int(told.size()), members.shares()[size_t(member)]);
}

TEST(NodeSnapshot, TheWriterHasWhatAllMembersHad) {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    const int num = 1 + int(random.below(4));
    Members members(random, num);
    const SharedMemory memory =
        SharedMemory::create(NodeSnapshot::shared_bytes(lay_out(members.shares()), num));
    std::vector<std::unique_ptr<NodeSnapshot>> sides;
    for (int m = 0; m < num; ++m) sides.push_back(member_of(members, m, memory.path()));
    for (auto& side : sides) side->prepare();
    std::vector<const NodeShare*> states;
    for (int64_t save = 0; save < 5; ++save) {
      members.fill(save);
      for (auto& side : sides) side->copy();
      sides[0]->wait_for_members(60)();
      for (auto& side : sides) side->before_update();
      states.push_back(&sides[0]->state());
      expect_state(*states.back(), save);
      if (save > 0) expect_state(*states[size_t(save - 1)], save - 1);  // the one before is there
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NodeSnapshot, ALateMemberIsNamedAndAWaitCanEnd) {
  Random random(3);
  Members members(random, 3);
  members.fill(0);
  const SharedMemory memory =
      SharedMemory::create(NodeSnapshot::shared_bytes(lay_out(members.shares()), 3));
  const auto writer = member_of(members, 0, memory.path());
  const auto second = member_of(members, 1, memory.path());
  const auto third = member_of(members, 2, memory.path());
  writer->copy();
  third->copy();
  EXPECT_EQ(testing_support::message_of(ErrorKind::kStorage, writer->wait_for_members(0.05)),
            "rank 1 of this machine did not copy its part within 0.05 s");
  const auto wait = writer->wait_for_members(60);
  std::thread stops([&] { writer->stop(); });
  EXPECT_EQ(testing_support::message_of(ErrorKind::kStorage, wait),
            "the copy of rank 1 of this machine was given up");
  stops.join();
}

TEST(NodeSnapshot, OtherMemoryOrSharesAreRefused) {
  Random random(5);
  Members members(random, 2);
  const SharedMemory memory = SharedMemory::create(64);
  EXPECT_NE(
      testing_support::message_of(ErrorKind::kComm, [&] { member_of(members, 0, memory.path()); })
          .find("shared memory of 64 bytes; expected "),
      std::string::npos);
  for (const char* text : {"", "{", "{}", R"({"model":[[1]],"optim":[]})",
                           R"({"model":[["x",0,0,[1,1,1,1,1,1,1,1,1],[0],[1]]],"optim":[]})"})
    EXPECT_NE(testing_support::message_of(ErrorKind::kComm, [&] { decode_share(text); }), "");
}

TEST(SharedMemory, IsSeenByAnotherProcess) {
  const SharedMemory memory = SharedMemory::create(1 << 20);
  const pid_t child = fork();
  if (child == 0) {
    const SharedMemory same = SharedMemory::open(memory.path());
    same.bytes().back() = std::byte{7};
    _exit(int(same.bytes().size() != 1 << 20));
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory.bytes().back(), std::byte{7});
  EXPECT_EQ(memory.bytes().front(), std::byte{0});
  EXPECT_NE(testing_support::message_of(ErrorKind::kStorage,
                                        [] { SharedMemory::open("/proc/self/fd/999"); })
                .find("No such file"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::checkpoint
