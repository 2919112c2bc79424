// Two sides that prove the epoch to each other, over bytes in any pieces, and whoever cannot.
#include "ashlar/control/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ashlar/control/frame.h"
#include "tests/support/errors.h"

namespace ashlar::control {
namespace {

using testing_support::message_of;
using Bytes = std::vector<std::byte>;

const Epoch kSharedEpoch{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
const Epoch kOther{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17};
const Nonce kOne{1}, kTwo{2};
constexpr const char* kNotKnown =
    "it does not know this start's epoch: it is of another start, or of no run";

Handshake child(const Epoch& epoch = kSharedEpoch, const Nonce& nonce = kOne, int rank = 5,
                int parent = 0) {
  return Handshake::of_child(epoch, rank, parent, nonce);
}
Handshake parent(const Epoch& epoch = kSharedEpoch, const Nonce& nonce = kTwo) {
  return Handshake::of_parent(epoch, 0, {3, 5}, nonce);
}

// All that is said until nobody has more to say.
struct Talk {
  Bytes from_child, from_parent;
};
Talk talk(Handshake& a_child, Handshake& a_parent) {
  Talk said;
  for (;;) {
    const Bytes up = a_child.take_outgoing();
    said.from_child.insert(said.from_child.end(), up.begin(), up.end());
    if (!up.empty()) a_parent.feed(up);
    const Bytes down = a_parent.take_outgoing();
    said.from_parent.insert(said.from_parent.end(), down.begin(), down.end());
    if (!down.empty()) a_child.feed(down);
    if (up.empty() && down.empty()) return said;
  }
}

bool holds(const Bytes& said, const Epoch& epoch) {
  const auto secret = std::as_bytes(std::span(epoch));
  return std::ranges::search(said, secret).size() == secret.size();
}

TEST(Handshake, GivesBothSidesTheKeysOfEachDirectionAndSaysNoEpoch) {
  Handshake a = child(), b = parent();
  const Talk said = talk(a, b);
  ASSERT_TRUE(a.done() && b.done());
  EXPECT_EQ(a.peer(), 0);
  EXPECT_EQ(b.peer(), 5);
  const Digest up = a.keys().sending("text"), down = a.keys().receiving("text");
  EXPECT_EQ(up, b.keys().receiving("text"));
  EXPECT_EQ(down, b.keys().sending("text"));
  EXPECT_NE(up, down);
  EXPECT_FALSE(holds(said.from_child, kSharedEpoch) || holds(said.from_parent, kSharedEpoch));
}

TEST(Handshake, ComesInAnyPiecesAndKeepsWhatFollows) {
  Handshake a = child(), b = parent();
  const auto feed = [](Handshake& to, Bytes bytes) {
    for (const std::byte& byte : bytes) to.feed({&byte, 1});
  };
  feed(b, a.take_outgoing());
  feed(a, b.take_outgoing());
  Bytes last = a.take_outgoing();
  const Bytes frame = FrameWriter(a.keys().sending).next(7, last);
  last.insert(last.end(), frame.begin(), frame.end());
  b.feed(last);
  FrameReader reader(b.keys().receiving, 100);
  reader.feed(b.rest());
  EXPECT_EQ(reader.next()->kind, 7);
}

TEST(Handshake, KeysAreNewForEveryConnectionAndPairOfRanks) {
  std::vector<Digest> seen;
  const auto note = [&](Handshake a, Handshake b) {
    talk(a, b);
    ASSERT_TRUE(b.done());
    seen.push_back(b.keys().sending("text"));
    seen.push_back(b.keys().receiving("text"));
  };
  note(child(), parent());
  note(child(kSharedEpoch, Nonce{9}), parent());
  note(child(), parent(kSharedEpoch, Nonce{9}));
  note(child(kSharedEpoch, kOne, 3), parent());
  note(child(kOther), parent(kOther));
  note(child(kSharedEpoch, kTwo), parent(kSharedEpoch, kOne));
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

TEST(Handshake, WhoHasAnotherEpochIsSeenByBothSides) {
  {
    Handshake a = child(kOther), b = parent();
    EXPECT_EQ(message_of(ErrorKind::kComm, [&] { talk(a, b); }), kNotKnown);  // says the child
    EXPECT_FALSE(a.done() || b.done());
  }
  Handshake b = parent();
  b.feed(child(kOther).take_outgoing());
  EXPECT_EQ(message_of(ErrorKind::kComm, [&] { b.feed(Bytes(sizeof(Digest))); }), kNotKnown);
}

// A stranger heard everything of an earlier connection, or sends the parent's own words back.
TEST(Handshake, WhatWasSaidBeforeProvesNothing) {
  Handshake a = child(), b = parent();
  const Talk said = talk(a, b);
  Handshake again = parent(kSharedEpoch, Nonce{77});
  EXPECT_EQ(message_of(ErrorKind::kComm, [&] { again.feed(said.from_child); }), kNotKnown);
  Handshake same_child = child(kSharedEpoch, Nonce{78});
  EXPECT_EQ(message_of(ErrorKind::kComm, [&] { same_child.feed(said.from_parent); }), kNotKnown);
  Handshake mirror = parent();
  mirror.feed(child().take_outgoing());
  const Bytes answer = mirror.take_outgoing();
  EXPECT_EQ(
      message_of(ErrorKind::kComm, [&] { mirror.feed(std::span(answer).last(sizeof(Digest))); }),
      kNotKnown);
}

TEST(Handshake, EveryFlippedBitIsRefused) {
  Handshake a = child(), b = parent();
  const Talk said = talk(a, b);
  const auto refused = [](Handshake& at, Bytes bytes) {
    try {
      at.feed(bytes);
      return !at.done();  // a child's changed number or nonce shows in its proof
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kComm;
    }
  };
  for (size_t bit = 0; bit < 8 * said.from_child.size(); ++bit) {
    Bytes bad = said.from_child;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    Handshake at = parent();
    EXPECT_TRUE(refused(at, bad)) << bit;
  }
  for (size_t bit = 0; bit < 8 * said.from_parent.size(); ++bit) {
    Bytes bad = said.from_parent;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    Handshake at = child();
    EXPECT_TRUE(refused(at, bad)) << bit;
  }
}

TEST(Handshake, SaysWhatItFoundInstead) {
  const auto refusal = [](const Bytes& bytes) {
    return message_of(ErrorKind::kComm, [&] { parent().feed(bytes); });
  };
  EXPECT_EQ(refusal(Bytes(5, std::byte('G'))), "it begins with 47474747, not with a hello");
  EXPECT_EQ(refusal(child(kSharedEpoch, kOne, 4).take_outgoing()),
            "rank 4, which asks for rank 0, is not a child of rank 0");
  EXPECT_EQ(refusal(child(kSharedEpoch, kOne, -1).take_outgoing()),
            "rank 4294967295, which asks for rank 0, is not a child of rank 0");
  EXPECT_EQ(refusal(child(kSharedEpoch, kOne, 5, 1).take_outgoing()),
            "rank 5, which asks for rank 1, is not a child of rank 0");
  const Bytes version_1 = {std::byte('A'), std::byte('C'), std::byte('F'), std::byte('1')};
  EXPECT_EQ(refusal(version_1),
            "it speaks the control links of an older version; start all ranks with one build of "
            "this program");
  EXPECT_EQ(message_of(ErrorKind::kComm, [&] { child().feed(version_1); }), refusal(version_1));
}

TEST(Handshake, NoncesDiffer) {
  EXPECT_NE(random_nonce(), random_nonce());
}

}  // namespace
}  // namespace ashlar::control
