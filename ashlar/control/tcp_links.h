// Control links over TCP: one thread, poll(2), sockets that do not wait.
//
//   every rank   Listener listener(reach, interface);   before the ranks' one exchange:
//                all = addresses of all ranks           listener.address() of each, and one epoch
//                auto tree = make_tree(nodes_of(all));
//                TcpLinks links(std::move(listener), epoch, rank, all, tree, user, options, log);
//
// A child connects to its parent, with all of the parent's addresses in turn, and connects again
// when the connection breaks.  A link that cannot be made within connect_s, or made again within
// reconnect_s, is lost for good.
//
// Both sides prove that they know the epoch before anything else is said, and every frame is proved
// to be the next one of that connection (handshake.h, frame.h).  Nothing that anybody else sends
// does more than end a connection.  The first three that said something are told of by address and
// reason; all are counted, which is told at the end.  A connection does not take the place of one
// on which something came within the last two pings.
//
// Errors   kComm: an address is not one, or the system grants no thread.  All later trouble is a
//          link that is lost.
// Threads  the user is called on the links' own thread; send() from any.
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
  double ping_s = 2;                        // what is sent on a link on which nothing else is
  double silence_s = 30;                    // a connection on which nothing came is broken
  double tick_s = 0.25;
  size_t max_body_bytes = size_t(256) << 20;
};

class TcpLinks : public Links {
 public:
  TcpLinks(Listener listener, const Epoch& epoch, int rank, const std::vector<Address>& all,
           const Tree& tree, LinkUser& user, const LinkOptions& options, Log& log);
  ~TcpLinks() override;
  void send(int rank, uint16_t kind, std::span<const std::byte> body) override;
  // For tests: breaks the connection to that neighbour, as a network may.
  void break_connection(int rank);

 private:
  // A neighbour's link.  `connection` without `up`: under way, or in its handshake.
  struct Neighbour {
    std::unique_ptr<Connection> connection;
    bool up = false, was_up = false, lost = false;
    Clock::time_point since = Clock::now();     // it is down, or up
    Clock::time_point next_try = Clock::now();  // of a parent
    size_t next_host = 0;
    std::string why = "it never connected";  // it is down
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
  int64_t refusals_ = 0, silent_refusals_ = 0;          // of them, those that said nothing
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
