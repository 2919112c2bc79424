// Carries messages between a rank and its parent and children in the tree (tree.h), beside
// training, which never waits for them.
//
// A link is up, down while it is being restored, or lost for good.  Messages on a link that is up
// arrive whole, once and in order; those in flight when it goes down may be lost.  So a user of
// links sends again whatever is still open whenever a link comes up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ashlar::control {

// Called on the links' thread, one call at a time; no call may wait.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  virtual void linked(int rank) = 0;  // the link is up, for the first time or again
  virtual void received(int rank, uint16_t kind, std::span<const std::byte> body) = 0;
  // The link is lost for good.  why: one clause; "" if that rank ended in good order.
  virtual void lost(int rank, const std::string& why) = 0;
  virtual void tick() = 0;  // a few times a second
};

class Links {
 public:
  virtual ~Links() = default;  // takes leave; calls nothing of the user after it
  // Does not wait, and drops the message if the link is not up.  May be called on any thread.
  virtual void send(int rank, uint16_t kind, std::span<const std::byte> body) = 0;
};

}  // namespace ashlar::control
