// Frames over a stream that comes in any pieces, and what is not one.
#include "ashlar/control/frame.h"

#include <gtest/gtest.h>

#include "ashlar/control/wire.h"
#include "tests/support/errors.h"

namespace ashlar::control {
namespace {

using testing_support::message_of;

const Epoch kEpoch{1, 2, 3};

std::vector<std::byte> body_of(size_t size) {
  std::vector<std::byte> body(size);
  for (size_t i = 0; i < size; ++i) body[i] = std::byte(i * 7);
  return body;
}

TEST(Frame, ComesOutOfAnyPieces) {
  std::vector<std::byte> stream;
  for (const size_t size : {0, 1, 1000, 3})
    for (const std::byte byte : encode_frame(kEpoch, uint16_t(size), 5, body_of(size)))
      stream.push_back(byte);
  for (const size_t piece : {1, 7, 36, 500, 5000}) {
    FrameReader reader(kEpoch, 1000);
    std::vector<size_t> sizes;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (const auto frame = reader.next()) {
        EXPECT_EQ(frame->source, 5);
        EXPECT_EQ(frame->kind, frame->body.size());
        EXPECT_EQ(frame->body, body_of(frame->body.size()));
        sizes.push_back(frame->body.size());
      }
    }
    EXPECT_EQ(sizes, (std::vector<size_t>{0, 1, 1000, 3}));
  }
}

TEST(Frame, EveryFlippedBitIsSeen) {
  const std::vector<std::byte> good = encode_frame(kEpoch, 3, 5, body_of(20));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    FrameReader reader(kEpoch, 1000);
    reader.feed(bad);
    try {
      EXPECT_FALSE(reader.next()) << bit;  // a longer length: it waits for more
      EXPECT_TRUE(28 <= bit / 8 && bit / 8 < 32) << bit;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kComm);
    }
  }
}

TEST(Frame, SaysWhatItFoundInstead) {
  const auto refusal = [](std::vector<std::byte> bytes, size_t most) {
    FrameReader reader(kEpoch, most);
    reader.feed(bytes);
    return message_of(ErrorKind::kComm, [&] { reader.next(); });
  };
  EXPECT_EQ(refusal(std::vector<std::byte>(36, std::byte('G')), 10),
            "it begins with 47474747, not with a frame");
  EXPECT_EQ(refusal(encode_frame(Epoch{9}, 1, 1, {}), 10), "it is of another start of a run");
  EXPECT_EQ(refusal(encode_frame(kEpoch, 1, 1, body_of(11)), 10),
            "it announces a message of 11 bytes; at most 10 are expected");
}

TEST(Wire, ReadsWhatWasWrittenAndNoMore) {
  WireWriter out;
  out.put(uint16_t(7));
  out.put(1.5);
  out.put_text("text");
  const std::vector<std::byte> bytes = out.take();
  WireReader in(bytes);
  EXPECT_EQ(in.get<uint16_t>(), 7);
  EXPECT_EQ(in.get<double>(), 1.5);
  EXPECT_EQ(in.get_text(), "text");
  in.end();
  for (size_t size = 0; size < bytes.size(); ++size) {
    WireReader cut{std::span<const std::byte>(bytes).first(size)};
    EXPECT_NE(message_of(ErrorKind::kComm,
                         [&] {
                           cut.get<uint16_t>();
                           cut.get<double>();
                           cut.get_text();
                         })
                  .find("ends early"),
              std::string::npos);
  }
  WireReader longer(bytes);
  longer.get<uint16_t>();
  EXPECT_NE(message_of(ErrorKind::kComm, [&] { longer.end(); }).find("too many"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::control
