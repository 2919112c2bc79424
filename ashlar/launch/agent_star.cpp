#include "ashlar/launch/agent_star.h"

#include <poll.h>
#include <sys/socket.h>

#include <numeric>
#include <utility>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/launch/agent_messages.h"

namespace ashlar::launch {
namespace {

constexpr double kHandshake_s = 5;

}  // namespace

AgentStar::AgentStar(control::Listener listener, const control::Epoch& key)
    : listener_(std::move(listener)), key_(key), numbers_(kMaxAgents) {
  std::iota(numbers_.begin(), numbers_.end(), 1);
}

void AgentStar::accept_all() {
  for (const control::Socket& listening : listener_.sockets())
    while (strangers_.size() < kMaxStrangers) {  // the others wait in the kernel's queue
      control::Socket socket(
          accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) break;
      strangers_.push_back(std::make_unique<control::Connection>(control::Connection::accepted(
          std::move(socket),
          control::Handshake::of_parent(key_, 0, numbers_, control::random_nonce()),
          kMaxAgentBody)));
    }
}

// False: the connection has ended.
bool AgentStar::serve_one(control::Connection& connection, short found, uint16_t kind,
                          const Take& take) {
  try {
    connection.serve(found, [&](const control::Frame& frame) {
      if (frame.kind == kind) take(connection.rank(), frame.body);
    });
  } catch (const Error&) {
    return false;
  }
  return connection.proved() || seconds_since(connection.begun()) < kHandshake_s;
}

void AgentStar::serve(uint16_t kind, const Take& take) {
  accept_all();
  std::vector<pollfd> found;
  for (const auto& [number, agent] : agents_) found.push_back({agent->fd(), agent->events(), 0});
  for (const auto& stranger : strangers_) found.push_back({stranger->fd(), stranger->events(), 0});
  if (poll(found.data(), found.size(), 0) < 0) return;  // EINTR: the next turn
  auto next = found.begin();
  for (auto agent = agents_.begin(); agent != agents_.end(); ++next)
    if (serve_one(*agent->second, next->revents, kind, take))
      ++agent;
    else
      agent = agents_.erase(agent);
  for (auto& stranger : strangers_) {
    if (!serve_one(*stranger, (next++)->revents, kind, take)) {
      stranger.reset();
      ++num_refused_;
    } else if (stranger->proved()) {
      const int number = stranger->rank();
      agents_[number] = std::move(stranger);
    }
  }
  std::erase(strangers_, nullptr);
}

void AgentStar::send(int agent, uint16_t kind, std::span<const std::byte> body) {
  if (const auto found = agents_.find(agent); found != agents_.end())
    found->second->queue(kind, body);
}

}  // namespace ashlar::launch
