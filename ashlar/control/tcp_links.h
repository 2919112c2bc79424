// Control links over TCP: one thread, poll(2), sockets that do not wait.
//
//   every rank   Listener listener(reach, interface);   before the ranks' one exchange:
//                all = addresses of all ranks           listener.address() of each, and one epoch
//                auto tree = make_tree(nodes_of(all));
//                TcpLinks links(std::move(listener), epoch, rank, all, tree, user, options, log);
//
// A child connects to its parent, trying all of its addresses in turn, and connects again when the
// connection breaks.  A link that cannot be made within connect_s, or restored within reconnect_s,
// is lost for good.
//
// Both sides prove that they know the epoch before anything else is sent, and every frame is proved
// to be the next one of that connection (handshake.h, frame.h).  Anything that a stranger sends can
// only end its own connection.  The first three strangers that sent something are reported with
// address and reason, and the number of all is reported at the end.  A connection does not replace
// one on which something arrived within the last two pings.
//
// Errors   kComm: an invalid address, or the system grants no thread.  Later trouble loses a link.
// Threads  the user is called on the links' thread; send() may be called on any.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/control/connection.h"
#include "ashlar/control/links.h"
#include "ashlar/control/tree.h"
#include "ashlar/core/log.h"

namespace ashlar::control {

struct LinkOptions {
  double connect_s = 60, reconnect_s = 15;  // until a link is lost for good
  double ping_s = 2;                        // between pings on a link that sends nothing else
  double silence_s = 30;                    // after which a silent connection counts as broken
  double tick_s = 0.25;
  size_t max_body_bytes = size_t(256) << 20;
};

class TcpLinks : public Links {
 public:
  TcpLinks(Listener listener, const Epoch& epoch, int rank, const std::vector<Address>& all,
           const Tree& tree, LinkUser& user, const LinkOptions& options, Log& log);
  ~TcpLinks() override;
  void send(int rank, uint16_t kind, std::span<const std::byte> body) override;
  // For tests: breaks the connection to that neighbour, as a network might.
  void break_connection(int rank);

 private:
  // A neighbour's link.  `connection` without `up`: connecting, or in its handshake.
  struct Neighbour {
    std::unique_ptr<Connection> connection;
    bool up = false, was_up = false, lost = false;
    Clock::time_point since = Clock::now();     // it is down, or up
    Clock::time_point next_try = Clock::now();  // of a parent
    size_t next_host = 0;
    std::string why = "it never connected";  // the reason why it is down
  };

  void loop();
  void poll_all();
  void send_queued();
  void accept_some(const Socket& listening);
  void serve_stranger(size_t place, short found);
  void require_free(int child) const;
  void serve(int rank, short found);
  void take_all(int rank, std::vector<Frame> frames, const std::string& broken);
  void take(int rank, Frame frame);
  void adopt(int rank, std::unique_ptr<Connection> connection);
  void keep_up(int rank);
  void connect_parent(Neighbour& neighbour);
  void went_down(int rank, const std::string& why);
  void lose(int rank, const std::string& why);
  void refuse(const Connection& stranger, const std::string& why);
  void say_goodbye();
  void tell_refusals();
  void wake();

  const Listener listener_;
  const Epoch epoch_;
  const int rank_, parent_;
  Address parent_address_;
  LinkUser& user_;
  const LinkOptions options_;
  Log& log_;
  std::map<int, Neighbour> neighbours_;
  std::vector<std::unique_ptr<Connection>> strangers_;  // accepted, not yet known
  int64_t refusals_ = 0, silent_refusals_ = 0;          // all; those that sent nothing
  std::set<std::string> refused_hosts_;                 // up to kMaxHosts
  Clock::time_point last_tick_ = Clock::now();

  Socket wake_;  // an eventfd
  std::mutex mutex_;
  struct Message {
    int rank;
    uint16_t kind;
    std::vector<std::byte> body;
  };
  std::deque<Message> queued_;  // under mutex_
  std::vector<int> to_break_;   // likewise
  bool stop_ = false;           // likewise
  std::thread thread_;
};

}  // namespace ashlar::control
