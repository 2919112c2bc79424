// One TCP connection that frames go over, without waiting.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "ashlar/control/address.h"
#include "ashlar/control/frame.h"
#include "ashlar/core/clock.h"

namespace ashlar::control {

class Connection {
 public:
  // Of a socket that was accepted, or whose connect is under way.  max_body_bytes: of a frame.
  Connection(Socket socket, const Epoch& epoch, size_t max_body_bytes, bool connecting);

  // Starts a connection to a numeric address; kComm if the system refuses at once.
  static Connection start(const std::string& host, uint16_t port, const Epoch& epoch,
                          size_t max_body_bytes);

  int fd() const { return socket_.fd(); }
  bool connecting() const { return connecting_; }
  short events() const;  // for poll
  void allow(size_t max_body_bytes) { reader_.allow(max_body_bytes); }
  std::string peer() const;  // "10.0.0.5:40213"
  void queue(std::vector<std::byte> frame);
  bool all_sent() const { return out_.empty(); }
  Clock::time_point last_heard() const { return last_heard_; }
  Clock::time_point last_sent() const { return last_sent_; }

  // What poll found.  Errors: kComm, with why this connection is over; frames that came before are
  // handed out first.
  void serve(short found, const std::function<void(Frame)>& take);

 private:
  void finish_connecting();
  void send();
  void receive(const std::function<void(Frame)>& take);

  Socket socket_;
  FrameReader reader_;
  bool connecting_;
  std::deque<std::vector<std::byte>> out_;
  size_t sent_ = 0, waiting_bytes_ = 0;  // of the first; of all
  Clock::time_point last_heard_ = Clock::now(), last_sent_ = Clock::now();
};

}  // namespace ashlar::control
