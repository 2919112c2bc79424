// What carries messages between a rank and its parent and children in the tree (tree.h), beside
// training and never waited for by it.
//
// A link is up, down while it is being made again, or lost for good.  Messages on a link that is
// up arrive whole, once and in their order; those under way when it goes down may be lost.  So who
// uses links says again what is still open whenever a link comes up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ashlar::control {

// Called on the thread of the links, one call at a time; none of them may wait.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  virtual void linked(int rank) = 0;  // the link is up, for the first time or again
  virtual void received(int rank, uint16_t kind, std::span<const std::byte> body) = 0;
  // The link is lost for good.  why: one clause; "" if that rank has ended in good order.
  virtual void lost(int rank, const std::string& why) = 0;
  virtual void tick() = 0;  // some times a second
};

class Links {
 public:
  virtual ~Links() = default;  // says goodbye; no call of the user's comes after
  // Does not wait.  Dropped if the link is not up.  From any thread.
  virtual void send(int rank, uint16_t kind, std::span<const std::byte> body) = 0;
};

}  // namespace ashlar::control
