#include "ashlar/control/frame.h"

#include <algorithm>

#include "ashlar/control/wire.h"
#include "ashlar/core/checksum.h"

namespace ashlar::control {
namespace {

constexpr uint32_t kMagic = 0x31464341;  // "ACF1"
constexpr size_t kCrcAt = kFrameHeaderBytes - sizeof(uint32_t);

uint32_t frame_crc(std::span<const std::byte> header, std::span<const std::byte> body) {
  constexpr std::byte kZero[sizeof(uint32_t)]{};
  return crc32c(body, crc32c(kZero, crc32c(header.first(kCrcAt))));
}

}  // namespace

std::vector<std::byte> encode_frame(const Epoch& epoch, uint16_t kind, int source,
                                    std::span<const std::byte> body) {
  WireWriter out;
  out.put(kMagic);
  out.put(kind);
  out.put(uint16_t(0));
  out.put(epoch);
  out.put(uint32_t(source));
  out.put(uint32_t(body.size()));
  out.put(uint32_t(0));
  out.put_bytes(body);
  std::vector<std::byte> bytes = out.take();
  const uint32_t crc = frame_crc(std::span(bytes).first(kFrameHeaderBytes), body);
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof(crc));
  return bytes;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::next() {
  const auto have = std::span<const std::byte>(bytes_).subspan(begin_);
  if (have.size() < kFrameHeaderBytes) return std::nullopt;
  const auto header = have.first(kFrameHeaderBytes);
  WireReader in(header);
  const auto magic = in.get<uint32_t>();
  ASHLAR_REQUIRE(magic == kMagic, kComm, "it begins with {:08x}, not with a frame", magic);
  Frame frame;
  frame.kind = in.get<uint16_t>();
  const auto zero = in.get<uint16_t>();
  const auto epoch = in.get<Epoch>();
  ASHLAR_REQUIRE(epoch == epoch_ && zero == 0, kComm, "it is of another start of a run");
  frame.source = int(in.get<uint32_t>());
  const size_t length = in.get<uint32_t>();
  ASHLAR_REQUIRE(length <= max_body_bytes_, kComm,
                 "it announces a message of {} bytes; at most {} are expected", length,
                 max_body_bytes_);
  const auto crc = in.get<uint32_t>();
  if (have.size() - kFrameHeaderBytes < length) return std::nullopt;
  const auto body = have.subspan(kFrameHeaderBytes, length);
  const uint32_t found = frame_crc(header, body);
  ASHLAR_REQUIRE(found == crc, kComm, "a message's checksum is {:08x} but {:08x} was sent", found,
                 crc);
  frame.body.assign(body.begin(), body.end());
  begin_ += kFrameHeaderBytes + length;
  if (begin_ == bytes_.size() || begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + ptrdiff_t(begin_));
    begin_ = 0;
  }
  return frame;
}

}  // namespace ashlar::control
