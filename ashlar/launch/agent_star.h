// The leader's side of the links with all agents: it listens, and each agent connects.
//
// Agents have numbers from 1.  Both sides prove that they know the epoch's key before anything else
// is sent, and every frame carries a proof (control/handshake.h, control/frame.h).  A connection
// replaces an earlier one of its agent, which is broken if the agent comes again.  Strangers are
// refused and counted; at most kMaxStrangers have their handshake at a time, for 5 s at most.
//
// Threads  one; nothing waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/control/connection.h"

namespace ashlar::launch {

class AgentStar {
 public:
  static constexpr int kMaxAgents = 4096, kMaxStrangers = 64;
  AgentStar(control::Listener listener, const control::Epoch& key);

  using Take = std::function<void(int agent, std::span<const std::byte> body)>;
  // Accepts, reads and writes what is there, and gives the bodies of frames of this kind to `take`.
  void serve(uint16_t kind, const Take& take);
  void send(int agent, uint16_t kind, std::span<const std::byte> body);  // unless it is not linked
  const std::string& address() const { return listener_.address(); }
  int num_refused() const { return num_refused_; }

 private:
  void accept_all();
  bool serve_one(control::Connection& connection, short found, uint16_t kind, const Take& take);
  control::Listener listener_;
  const control::Epoch key_;
  std::vector<int> numbers_;  // 1 to kMaxAgents
  std::map<int, std::unique_ptr<control::Connection>> agents_;
  std::vector<std::unique_ptr<control::Connection>> strangers_;
  int num_refused_ = 0;
};

}  // namespace ashlar::launch
