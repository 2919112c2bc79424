// A message as bytes on a link: a header of 36 bytes, little-endian, then the body.
//
//   "ACF2" | u16 kind | u16 zero | u32 length | u64 number | u8 mac[16]
//
// number counts the frames of one direction of one connection, from 0; mac is the beginning of
// HMAC-SHA-256 over the header before it and the body, with the key of that direction
// (handshake.h).  So nobody without the epoch can forge, change, omit, repeat or move a frame.
// Frames are not encrypted.
//
// Errors   kComm for a stream without the expected frames; the message says what was found.  The
//          stream cannot be used after that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/control/hmac.h"

namespace ashlar::control {

inline constexpr size_t kMacBytes = 16, kFrameHeaderBytes = 20 + kMacBytes;

struct Frame {
  uint16_t kind = 0;
  std::vector<std::byte> body;
};

class FrameWriter {
 public:
  explicit FrameWriter(const Hmac& key) : key_(key) {}
  std::vector<std::byte> next(uint16_t kind, std::span<const std::byte> body);

 private:
  Hmac key_;
  uint64_t number_ = 0;
};

// Turns bytes into frames.  It takes memory as bytes arrive, not as a header announces them.
class FrameReader {
 public:
  FrameReader(const Hmac& key, size_t max_body_bytes)
      : key_(key), max_body_bytes_(max_body_bytes) {}
  void feed(std::span<const std::byte> bytes);
  std::optional<Frame> next();  // nullopt: more bytes are needed

 private:
  Hmac key_;
  size_t max_body_bytes_;
  uint64_t number_ = 0;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;  // of the first frame not returned yet
};

}  // namespace ashlar::control
