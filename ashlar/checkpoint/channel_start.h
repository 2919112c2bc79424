// Makes the control channel of a run's ranks over TCP, in two halves around one exchange of texts
// that the ranks make by what they have: a collective, before training begins.
//
//   ChannelStart start(interface, log);
//   all = every rank's start.address(), gathered; epoch = 16 random bytes of rank 0's, sent to all
//   auto channel = start.connect(epoch, rank, all);        null on every rank, or on none
//   options.channel = channel.get();                       of the Checkpointer
//
// The address is at most control::kMaxAddressText bytes, "" if this rank cannot listen: then there
// is no channel for anybody, rank 0 logs why, and saves go through the directory.  connect() does
// not wait for the links: one that cannot be made breaks the channel later (save_channel.h).
//
// Errors   none: what goes wrong is logged.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save_channel.h"
#include "ashlar/control/tcp_links.h"

namespace ashlar::checkpoint {

class ChannelStart {
 public:
  // interface_name: "" for all that are up (control/address.h).
  ChannelStart(const std::string& interface_name, Log& log);
  std::string address() const { return listener_ ? listener_->address() : ""; }
  // Once.  The channel outlives neither log nor what uses it.
  std::unique_ptr<SaveChannel> connect(const control::Epoch& epoch, int rank,
                                       const std::vector<std::string>& all);

 private:
  Log& log_;
  std::optional<control::Listener> listener_;
};

}  // namespace ashlar::checkpoint
