// One TCP connection, without waiting: first the handshake, then frames go over it.
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
  // Takes a socket that was accepted.  max_body_bytes: of a frame.
  static Connection accepted(Socket socket, Handshake handshake, size_t max_body_bytes);
  // Starts a connection to a numeric address; kComm if the system refuses at once.
  static Connection start(const std::string& host, uint16_t port, Handshake handshake,
                          size_t max_body_bytes);

  int fd() const { return socket_.fd(); }
  short events() const;                              // for poll
  std::string peer() const;                          // "10.0.0.5:40213"
  const std::string& host() const { return host_; }  // "10.0.0.5"
  bool said_anything() const { return said_anything_; }
  bool proved() const { return handshake_.done(); }  // the other side knows the epoch
  int rank() const { return handshake_.peer(); }     // of the other side, once it has proved it
  void queue(uint16_t kind, std::span<const std::byte> body);  // once it has
  bool all_sent() const { return out_.empty(); }
  Clock::time_point begun() const { return begun_; }
  Clock::time_point last_heard() const { return last_heard_; }
  Clock::time_point last_sent() const { return last_sent_; }

  // What poll found.  Errors: kComm, with why this connection is over; frames that came before are
  // handed out first.
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
  std::optional<FrameWriter> writer_;  // these two once the other side has proved itself
  std::optional<FrameReader> reader_;
  bool connecting_, said_anything_ = false;
  std::string host_;
  uint16_t port_ = 0;
  std::deque<std::vector<std::byte>> out_;
  size_t sent_ = 0, waiting_bytes_ = 0;  // of the first; of all
  Clock::time_point begun_ = Clock::now(), last_heard_ = begun_, last_sent_ = begun_;
};

}  // namespace ashlar::control
