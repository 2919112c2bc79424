// A message as bytes on a stream: a header of 36 bytes, little-endian, then the body.
//
//   "ACF1" | u16 kind | u16 zero | u8 epoch[16] | u32 source | u32 length | u32 crc32c
//
// The epoch is a random id of this start of the run, which only its ranks know: what connects by
// mistake, or is left from an earlier start, has another one.  crc32c covers header and body, and
// itself as zero.
//
// Errors   kComm: a stream that does not hold frames of this epoch, or too long ones; the message
//          says what was found.  The stream is of no use after that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ashlar::control {

using Epoch = std::array<uint8_t, 16>;
inline constexpr size_t kFrameHeaderBytes = 36;

struct Frame {
  uint16_t kind = 0;
  int source = 0;  // the rank that sent it
  std::vector<std::byte> body;
};

std::vector<std::byte> encode_frame(const Epoch& epoch, uint16_t kind, int source,
                                    std::span<const std::byte> body);

// Bytes in, frames out.  A length is believed once the header is seen to be of this epoch, and
// memory is taken as bytes arrive, not as a header promises them.
class FrameReader {
 public:
  FrameReader(const Epoch& epoch, size_t max_body_bytes)
      : epoch_(epoch), max_body_bytes_(max_body_bytes) {}
  void allow(size_t max_body_bytes) { max_body_bytes_ = max_body_bytes; }
  void feed(std::span<const std::byte> bytes);
  std::optional<Frame> next();  // nullopt: more bytes are needed

 private:
  Epoch epoch_;
  size_t max_body_bytes_;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;  // of the first frame that was not taken
};

}  // namespace ashlar::control
