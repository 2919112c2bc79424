#include "ashlar/control/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ashlar/control/wire.h"

namespace ashlar::control {
namespace {

constexpr uint32_t kHelloMagic = 0x32484341, kMagicOfVersion1 = 0x31464341;  // "ACH2", "ACF1"
constexpr size_t kHelloBytes = 12 + sizeof(Nonce);
constexpr size_t kAnswerBytes = 4 + sizeof(Nonce) + sizeof(Digest);

void require_magic(std::span<const std::byte> bytes) {
  const auto magic = WireReader(bytes).get<uint32_t>();
  ASHLAR_REQUIRE(magic != kMagicOfVersion1, kComm,
                 "it speaks the control links of an older version; start all ranks with one build "
                 "of this program");
  ASHLAR_REQUIRE(magic == kHelloMagic, kComm, "it begins with {:08x}, not with a hello", magic);
}

void require_proof(std::span<const std::byte> said, const Digest& expected) {
  ASHLAR_REQUIRE(equal_secrets(said, expected), kComm,
                 "it does not know this start's epoch: it is of another start, or of no run");
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  ASHLAR_REQUIRE(getrandom(nonce.data(), nonce.size(), 0) == ssize_t(nonce.size()), kComm,
                 "getrandom: {}", std::strerror(errno));
  return nonce;
}

Handshake::Handshake(const Epoch& epoch, bool is_child, int child, int parent, const Nonce& nonce)
    : epoch_(std::as_bytes(std::span(epoch))), is_child_(is_child), child_(child), parent_(parent) {
  (is_child ? child_nonce_ : parent_nonce_) = nonce;
}

Handshake Handshake::of_child(const Epoch& epoch, int rank, int parent, const Nonce& nonce) {
  Handshake made(epoch, true, rank, parent, nonce);
  WireWriter out;
  out.put(kHelloMagic);
  out.put(uint32_t(rank));
  out.put(uint32_t(parent));
  out.put(nonce);
  made.out_ = out.take();
  return made;
}

Handshake Handshake::of_parent(const Epoch& epoch, int rank, std::vector<int> children,
                               const Nonce& nonce) {
  Handshake made(epoch, false, -1, rank, nonce);
  made.children_ = std::move(children);
  return made;
}

std::vector<std::byte> Handshake::take_outgoing() {
  return std::exchange(out_, {});
}

void Handshake::feed(std::span<const std::byte> bytes) {
  ASHLAR_ASSERT(!done());
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  const bool heard_hello = !is_child_ && child_ >= 0;
  if (!heard_hello && bytes_.size() >= sizeof(kHelloMagic)) require_magic(bytes_);
  if (is_child_) return hear_parent();
  if (!heard_hello) hear_child();
  if (child_ >= 0) hear_proof();
}

// The first `size` bytes of what came; nullopt: they are not all there.
std::optional<std::vector<std::byte>> Handshake::take(size_t size) {
  if (bytes_.size() < size) return std::nullopt;
  std::vector<std::byte> taken(bytes_.begin(), bytes_.begin() + ptrdiff_t(size));
  bytes_.erase(bytes_.begin(), bytes_.begin() + ptrdiff_t(size));
  return taken;
}

void Handshake::hear_child() {
  const auto hello = take(kHelloBytes);
  if (!hello) return;
  WireReader in(*hello);
  in.get<uint32_t>();
  const auto child = in.get<uint32_t>(), parent = in.get<uint32_t>();
  const bool known = parent == uint32_t(parent_) &&
                     std::ranges::find(children_, int64_t(child)) != children_.end();
  ASHLAR_REQUIRE(known, kComm, "rank {}, which asks for rank {}, is not a child of rank {}", child,
                 parent, parent_);
  child_ = int(child);
  child_nonce_ = in.get<Nonce>();
  WireWriter out;
  out.put(kHelloMagic);
  out.put(parent_nonce_);
  out.put_bytes(derive("ashlar parent proof"));
  out_ = out.take();
}

void Handshake::hear_parent() {
  const auto answer = take(kAnswerBytes);
  if (!answer) return;
  WireReader in(*answer);
  in.get<uint32_t>();
  parent_nonce_ = in.get<Nonce>();
  require_proof(in.rest(), derive("ashlar parent proof"));
  const Digest proof = derive("ashlar child proof");
  out_.assign(proof.begin(), proof.end());
  keys_ = make_keys("ashlar child to parent", "ashlar parent to child");
}

void Handshake::hear_proof() {
  const auto proof = take(sizeof(Digest));
  if (!proof) return;
  require_proof(*proof, derive("ashlar child proof"));
  keys_ = make_keys("ashlar parent to child", "ashlar child to parent");
}

// Labels differ in their first bytes or lengths, and all else has one length.
Digest Handshake::derive(std::string_view label) const {
  WireWriter out;
  out.put_text(label);
  out.put(uint32_t(child_));
  out.put(uint32_t(parent_));
  out.put(child_nonce_);
  out.put(parent_nonce_);
  return epoch_(out.take());
}

LinkKeys Handshake::make_keys(std::string_view sending, std::string_view receiving) const {
  return {Hmac(derive(sending)), Hmac(derive(receiving))};
}

}  // namespace ashlar::control
