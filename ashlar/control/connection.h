// One TCP connection that never waits: first the handshake, then frames.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/control/address.h"
#include "ashlar/control/frame.h"
#include "ashlar/control/handshake.h"
#include "ashlar/core/clock.h"

namespace ashlar::control {

class Connection {
 public:
  // Takes an accepted socket.  max_body_bytes: the largest body of a frame.
  static Connection accepted(Socket socket, Handshake handshake, size_t max_body_bytes);
  // Starts a connection to a numeric address; kComm if the system refuses at once.
  static Connection start(const std::string& host, uint16_t port, Handshake handshake,
                          size_t max_body_bytes);

  int fd() const { return socket_.fd(); }
  short events() const;                              // for poll
  std::string peer() const;                          // "10.0.0.5:40213"
  const std::string& host() const { return host_; }  // "10.0.0.5"
  bool said_anything() const { return said_anything_; }
  bool proved() const { return handshake_.done(); }            // the other side knows the epoch
  int rank() const { return handshake_.peer(); }               // the other side's, once proved()
  void queue(uint16_t kind, std::span<const std::byte> body);  // requires proved()
  bool all_sent() const { return out_.empty(); }
  Clock::time_point begun() const { return begun_; }
  Clock::time_point last_heard() const { return last_heard_; }
  Clock::time_point last_sent() const { return last_sent_; }

  // Handles the events that poll found.  Errors: kComm, with the reason why this connection ended;
  // frames that arrived before are returned first.
  void serve(short found, const std::function<void(Frame)>& take);

 private:
  Connection(Socket socket, Handshake handshake, size_t max_body_bytes, bool connecting);
  void finish_connecting();
  void send();
  void receive(const std::function<void(Frame)>& take);
  void shake_hands(std::span<const std::byte> bytes);
  void queue_bytes(std::vector<std::byte> bytes);

  Socket socket_;
  Handshake handshake_;
  size_t max_body_bytes_;
  std::optional<FrameWriter> writer_;  // with reader_, present once the other side is proved
  std::optional<FrameReader> reader_;
  bool connecting_, said_anything_ = false;
  std::string host_;
  uint16_t port_ = 0;
  std::deque<std::vector<std::byte>> out_;
  size_t sent_ = 0, waiting_bytes_ = 0;  // of the first message; of all
  Clock::time_point begun_ = Clock::now(), last_heard_ = begun_, last_sent_ = begun_;
};

}  // namespace ashlar::control
