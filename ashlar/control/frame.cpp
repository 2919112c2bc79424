#include "ashlar/control/frame.h"

#include "ashlar/control/wire.h"

namespace ashlar::control {
namespace {

constexpr uint32_t kFrameMagic = 0x32464341;  // "ACF2"
constexpr size_t kMacAt = kFrameHeaderBytes - kMacBytes;

}  // namespace

std::vector<std::byte> FrameWriter::next(uint16_t kind, std::span<const std::byte> body) {
  WireWriter out;
  out.put(kFrameMagic);
  out.put(kind);
  out.put(uint16_t(0));
  out.put(uint32_t(body.size()));
  out.put(number_++);
  std::vector<std::byte> bytes = out.take();
  const Digest mac = key_(bytes, body);
  bytes.reserve(kFrameHeaderBytes + body.size());
  bytes.insert(bytes.end(), mac.begin(), mac.begin() + kMacBytes);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::next() {
  const auto have = std::span<const std::byte>(bytes_).subspan(begin_);
  if (have.size() < kFrameHeaderBytes) return std::nullopt;
  WireReader in(have.first(kFrameHeaderBytes));
  const auto magic = in.get<uint32_t>();
  ASHLAR_REQUIRE(magic == kFrameMagic, kComm, "it goes on with {:08x}, not with a frame", magic);
  Frame frame;
  frame.kind = in.get<uint16_t>();
  in.get<uint16_t>();  // what it is, the mac says
  const size_t length = in.get<uint32_t>();
  ASHLAR_REQUIRE(length <= max_body_bytes_, kComm,
                 "it announces a message of {} bytes; at most {} are expected", length,
                 max_body_bytes_);
  const auto number = in.get<uint64_t>();
  ASHLAR_REQUIRE(number == number_, kComm, "its message {} came where {} is expected", number,
                 number_);
  if (have.size() - kFrameHeaderBytes < length) return std::nullopt;
  const auto body = have.subspan(kFrameHeaderBytes, length);
  const Digest mac = key_(have.first(kMacAt), body);
  ASHLAR_REQUIRE(equal_secrets(in.rest(), std::span(mac).first(kMacBytes)), kComm,
                 "its message {} was changed on the way, or is another's", number);
  ++number_;
  frame.body.assign(body.begin(), body.end());
  begin_ += kFrameHeaderBytes + length;
  if (begin_ == bytes_.size() || begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + ptrdiff_t(begin_));
    begin_ = 0;
  }
  return frame;
}

}  // namespace ashlar::control
