// The beginning of a link: each side proves that it knows the epoch, and neither sends it.
//
//   the child    "ACH2" | u32 child | u32 parent | u8 nonce[16]
//   the parent   "ACH2" | u8 nonce[16] | u8 proof[32]
//   the child    u8 proof[32]
//
// The epoch is a random id of this start of the run, known only to its ranks: a process that
// connects by mistake, or is left from an earlier start, does not have it.  Both proofs, and the
// keys of the frames (frame.h) that follow in each direction, are derived from it by
// HMAC-SHA-256(epoch, label | child | parent | child's nonce | parent's nonce).  Nonces are new for
// each connection, so that nothing sent on one can be used on another.
//
// The class is a state machine from bytes to bytes, without sockets or a clock.
//
// Errors   kComm, with what the other side did instead; the connection must then be closed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/control/hmac.h"

namespace ashlar::control {

using Epoch = std::array<uint8_t, 16>;
using Nonce = std::array<uint8_t, 16>;
Nonce random_nonce();  // kComm if the system cannot provide one

// The keys of frames, from the view of one side.
struct LinkKeys {
  Hmac sending, receiving;
};

class Handshake {
 public:
  static Handshake of_child(const Epoch& epoch, int rank, int parent, const Nonce& nonce);
  static Handshake of_parent(const Epoch& epoch, int rank, std::vector<int> children,
                             const Nonce& nonce);

  void feed(std::span<const std::byte> bytes);  // requires !done()
  std::vector<std::byte> take_outgoing();       // the bytes to send now
  // Once the other side has proved itself: its rank, the keys, and the bytes that came after.
  bool done() const { return keys_.has_value(); }
  int peer() const { return is_child_ ? parent_ : child_; }
  const LinkKeys& keys() const { return *keys_; }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  Handshake(const Epoch& epoch, bool is_child, int child, int parent, const Nonce& nonce);
  std::optional<std::vector<std::byte>> take(size_t size);
  void hear_child();   // reads its first message
  void hear_parent();  // reads its only message
  void hear_proof();
  Digest derive(std::string_view label) const;
  LinkKeys make_keys(std::string_view sending, std::string_view receiving) const;

  Hmac epoch_;
  bool is_child_;
  int child_, parent_;  // child_ is -1 until the parent has received it
  std::vector<int> children_;
  Nonce child_nonce_{}, parent_nonce_{};
  std::vector<std::byte> bytes_, out_;
  std::optional<LinkKeys> keys_;
};

}  // namespace ashlar::control
