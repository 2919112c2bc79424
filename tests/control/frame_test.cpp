// Frames over a stream that comes in any pieces, and what is not one.
#include "ashlar/control/frame.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "ashlar/control/wire.h"
#include "tests/support/errors.h"

namespace ashlar::control {
namespace {

using testing_support::message_of;

const Hmac kKey(std::as_bytes(std::span("a key", 5)));
using Bytes = std::vector<std::byte>;

Bytes body_of(size_t size) {
  Bytes body(size);
  for (size_t i = 0; i < size; ++i) body[i] = std::byte(i * 7);
  return body;
}

// Frames 0, 1, ... of these sizes.
std::vector<Bytes> frames_of(std::initializer_list<size_t> sizes, const Hmac& key = kKey) {
  FrameWriter writer(key);
  std::vector<Bytes> frames;
  for (const size_t size : sizes) frames.push_back(writer.next(uint16_t(size), body_of(size)));
  return frames;
}

// How many frames are taken, and why the next one is not.
std::pair<int, std::string> taken_of(const std::vector<Bytes>& frames, size_t most = 1000) {
  FrameReader reader(kKey, most);
  for (const Bytes& frame : frames) reader.feed(frame);
  int taken = 0;
  try {
    while (reader.next()) ++taken;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kComm);
    return {taken, error.what()};
  }
  return {taken, ""};
}

TEST(Frame, ComesOutOfAnyPieces) {
  Bytes stream;
  for (const Bytes& frame : frames_of({0, 1, 1000, 3}))
    stream.insert(stream.end(), frame.begin(), frame.end());
  for (const size_t piece : {1, 7, 36, 500, 5000}) {
    FrameReader reader(kKey, 1000);
    std::vector<size_t> sizes;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (const auto frame = reader.next()) {
        EXPECT_EQ(frame->kind, frame->body.size());
        EXPECT_EQ(frame->body, body_of(frame->body.size()));
        sizes.push_back(frame->body.size());
      }
    }
    EXPECT_EQ(sizes, (std::vector<size_t>{0, 1, 1000, 3}));
  }
}

TEST(Frame, EveryFlippedBitIsSeen) {
  const Bytes good = frames_of({20})[0];
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    const auto [taken, why] = taken_of({bad});
    EXPECT_EQ(taken, 0) << bit;
    // A longer length: it waits for more.
    EXPECT_EQ(why.empty(), 8 <= bit / 8 && bit / 8 < 12 && bad[bit / 8] > good[bit / 8] &&
                               bit / 8 < 9 + size_t(bit % 8 < 2))
        << bit << ": " << why;
  }
}

TEST(Frame, IsTakenOnceAndInItsOrder) {
  const std::vector<Bytes> f = frames_of({1, 2, 3});
  EXPECT_EQ(taken_of({f[0], f[1], f[2]}), std::pair(3, std::string()));
  EXPECT_EQ(taken_of({f[0], f[0]}), std::pair(1, std::string("its message 0 came where 1 is "
                                                             "expected")));
  EXPECT_EQ(taken_of({f[1]}), std::pair(0, std::string("its message 1 came where 0 is expected")));
  EXPECT_EQ(taken_of({f[0], f[2], f[1]}),
            std::pair(1, std::string("its message 2 came where 1 is expected")));
}

TEST(Frame, NeedsTheKeyOfItsDirection) {
  const Hmac other(std::as_bytes(std::span("a Key", 5)));
  EXPECT_EQ(taken_of(frames_of({5}, other)),
            std::pair(0, std::string("its message 0 was changed on the way, or is another's")));
  Bytes renumbered = frames_of({1, 2})[1];
  renumbered[12] = std::byte(0);  // of the number
  EXPECT_EQ(taken_of({renumbered}).second, "its message 0 was changed on the way, or is another's");
}

TEST(Frame, SaysWhatItFoundInstead) {
  EXPECT_EQ(taken_of({Bytes(36, std::byte('G'))}).second,
            "it goes on with 47474747, not with a frame");
  EXPECT_EQ(taken_of(frames_of({11}), 10).second,
            "it announces a message of 11 bytes; at most 10 are expected");
}

// Changes a stream at one place by chance: bits, a cut, bytes more or fewer, an earlier part again.
void change(Bytes& stream, std::mt19937_64& random) {
  const auto at = ptrdiff_t(random() % stream.size());
  const auto length = std::min(ptrdiff_t(1 + random() % 40), ptrdiff_t(stream.size()) - at);
  const auto begin = stream.begin() + at;
  switch (random() % 6) {
    case 0:
      *begin ^= std::byte(1 << random() % 8);
      break;
    case 1:
      stream.resize(size_t(at));
      break;
    case 2:
      stream.erase(begin, begin + length);
      break;
    case 3:
      std::generate(begin, begin + length, [&] { return std::byte(random()); });
      break;
    case 4:
      stream.insert(begin, size_t(length), std::byte(random()));
      break;
    default: {
      const Bytes again(stream.begin(), begin);
      stream.insert(begin, again.begin(), again.end());
    }
  }
}

// Feeds it in pieces by chance; the frames that come out before the first error.
std::vector<Frame> frames_in(const Bytes& stream, std::mt19937_64& random) {
  FrameReader reader(kKey, 1000);
  std::vector<Frame> frames;
  try {
    for (size_t at = 0; at < stream.size();) {
      const size_t size = std::min(stream.size() - at, size_t(1 + random() % 120));
      reader.feed(std::span(stream).subspan(at, size));
      at += size;
      while (auto frame = reader.next()) frames.push_back(std::move(*frame));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kComm);
  }
  return frames;
}

// More streams: ASHLAR_FUZZED_FRAMES (scripts/campaign frames).
TEST(Frame, AChangedStreamGivesTheFramesBeforeTheChangeAndNoOther) {
  const char* text = std::getenv("ASHLAR_FUZZED_FRAMES");
  const int64_t num_streams = text ? std::atoll(text) : 20'000;
  const std::vector<size_t> sizes = {0, 5, 40};
  Bytes good;
  std::vector<size_t> ends;
  for (const Bytes& frame : frames_of({0, 5, 40})) {
    good.insert(good.end(), frame.begin(), frame.end());
    ends.push_back(good.size());
  }
  std::mt19937_64 random(20260101);
  for (int64_t i = 0; i < num_streams; ++i) {
    Bytes stream = good;
    change(stream, random);
    const auto same = size_t(std::ranges::mismatch(stream, good).in1 - stream.begin());
    const auto want = size_t(std::ranges::upper_bound(ends, same) - ends.begin());
    const std::vector<Frame> frames = frames_in(stream, random);
    ASSERT_EQ(frames.size(), want) << "stream " << i;
    for (size_t f = 0; f < frames.size(); ++f)
      ASSERT_TRUE(frames[f].kind == sizes[f] && frames[f].body == body_of(sizes[f])) << i;
  }
  fmt::print("frames: {} changed streams gave no frame that was not sent\n", num_streams);
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
