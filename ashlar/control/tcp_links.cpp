// How it works.  One thread runs a loop: poll for at most a tick; take the messages that send()
// queued; accept, read, write; then check every neighbour (keep_up): connect, ping, notice silence,
// give up.
//
//   the child's side    no connection -> connecting -> handshake -> up, once the first frame of the
//                       parent, a hello, has arrived: the parent is then proved, and has accepted
//                       this child
//   the parent's side   a stranger -> handshake -> a child -> up, hello sent.  A child that
//                       connects again replaces its old connection, if that may be half open.  A
//                       stranger has 5 s for its whole handshake.
//   both                up -> down, by any error or by silence -> up again, or lost for good
//
// Everything but queued_, to_break_ and stop_ belongs to the thread.  It ends with a goodbye on
// each link that is up, on which the neighbour loses the link at once and without a reason, and it
// stays until queued messages are sent, for two seconds at most.
#include "ashlar/control/tcp_links.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::control {
namespace {

// Above all kinds of users.
constexpr uint16_t kHello = 0xffff, kPing = 0xfffe, kGoodbye = 0xfffd, kFirstOwn = kGoodbye;
constexpr size_t kMaxStrangers = 64, kMaxHosts = 4096;
constexpr int kMaxAccepts = 64;  // in a turn, so that neighbours get theirs
constexpr double kHandshake_s = 5, kTry_s = 0.5, kGoodbye_s = 2;
constexpr int kToldRefusals = 3;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

TcpLinks::TcpLinks(Listener listener, const Epoch& epoch, int rank, const std::vector<Address>& all,
                   const Tree& tree, LinkUser& user, const LinkOptions& options, Log& log)
    : listener_(std::move(listener)),
      epoch_(epoch),
      rank_(rank),
      parent_(tree.parent[size_t(rank)]),
      user_(user),
      options_(options),
      log_(log),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  ASHLAR_ASSERT(int(all.size()) == tree.size());
  ASHLAR_REQUIRE(wake_, kComm, "eventfd: {}", std::strerror(errno));
  if (parent_ >= 0) {
    parent_address_ = all[size_t(parent_)];
    neighbours_[parent_];
  }
  for (const int child : tree.children[size_t(rank)]) neighbours_[child];
  thread_ = start_thread("of control links", [this] { loop(); });
}

TcpLinks::~TcpLinks() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void TcpLinks::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t count = ::write(wake_.fd(), &one, sizeof(one));
}

void TcpLinks::send(int rank, uint16_t kind, std::span<const std::byte> body) {
  ASHLAR_ASSERT(kind < kFirstOwn && body.size() <= options_.max_body_bytes);
  Message message{rank, kind, {body.begin(), body.end()}};
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back(std::move(message));
  }
  wake();
}

void TcpLinks::break_connection(int rank) {
  {
    const std::lock_guard lock(mutex_);
    to_break_.push_back(rank);
  }
  wake();
}

void TcpLinks::loop() {
  for (;;) {
    poll_all();
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    for (auto& [rank, neighbour] : neighbours_) keep_up(rank);
    if (seconds_since(last_tick_) < options_.tick_s) continue;
    last_tick_ = Clock::now();
    user_.tick();
  }
  say_goodbye();
  tell_refusals();
}

// The places of `found` are those of wake, listeners, neighbours with a connection, strangers.
void TcpLinks::poll_all() {
  std::vector<pollfd> found{{wake_.fd(), POLLIN, 0}};
  for (const Socket& listening : listener_.sockets()) found.push_back({listening.fd(), POLLIN, 0});
  const size_t first_rank = found.size();
  std::vector<int> ranks;
  for (const auto& [rank, neighbour] : neighbours_) {
    if (!neighbour.connection) continue;
    ranks.push_back(rank);
    found.push_back({neighbour.connection->fd(), neighbour.connection->events(), 0});
  }
  for (const auto& stranger : strangers_) found.push_back({stranger->fd(), stranger->events(), 0});
  const size_t num_strangers = strangers_.size();
  const double left_s = options_.tick_s - seconds_since(last_tick_);
  const int timeout_ms = int(std::ceil(1e3 * std::max(0.0, left_s)));
  if (::poll(found.data(), found.size(), timeout_ms) < 0) return;  // EINTR: the next turn
  if (found[0].revents) {
    uint64_t count;
    [[maybe_unused]] const ssize_t size = ::read(wake_.fd(), &count, sizeof(count));
  }
  for (size_t i = 0; i < ranks.size(); ++i) serve(ranks[i], found[first_rank + i].revents);
  for (size_t i = 0; i < num_strangers; ++i)
    serve_stranger(i, found[first_rank + ranks.size() + i].revents);
  std::erase(strangers_, nullptr);
  for (size_t i = 1; i < first_rank; ++i)
    if (found[i].revents) accept_some(listener_.sockets()[i - 1]);
  send_queued();
}

void TcpLinks::send_queued() {
  decltype(queued_) queued;
  std::vector<int> to_break;
  {
    const std::lock_guard lock(mutex_);
    queued.swap(queued_);
    to_break.swap(to_break_);
  }
  for (const Message& message : queued) {
    Neighbour& neighbour = neighbours_.at(message.rank);
    if (neighbour.up) neighbour.connection->queue(message.kind, message.body);
  }
  for (auto& [rank, neighbour] : neighbours_)
    if (neighbour.up) serve(rank, 0);
  for (const int rank : to_break) went_down(rank, "a test broke it");
}

void TcpLinks::accept_some(const Socket& listening) {
  std::vector<int> children;
  for (const auto& [rank, neighbour] : neighbours_)
    if (rank != parent_) children.push_back(rank);
  for (int accepted = 0; accepted < kMaxAccepts; ++accepted) {
    Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    if (strangers_.size() >= kMaxStrangers) {
      refuse(*strangers_.front(), "it did not prove itself, and too many others wait");
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back(std::make_unique<Connection>(Connection::accepted(
        std::move(socket), Handshake::of_parent(epoch_, rank_, children, random_nonce()),
        options_.max_body_bytes)));
  }
}

void TcpLinks::refuse(const Connection& stranger, const std::string& why) {
  ++refusals_;
  silent_refusals_ += !stranger.said_anything();
  if (refused_hosts_.size() < kMaxHosts) refused_hosts_.insert(stranger.host());
  const int64_t told = refusals_ - silent_refusals_;
  if (stranger.said_anything() && told <= kToldRefusals)
    log_.warn("control links of rank {}: a connection of {} was refused: {}{}", rank_,
              stranger.peer(), why,
              told == kToldRefusals ? "; further ones are counted, and told at the end" : "");
}

void TcpLinks::tell_refusals() {
  if (refusals_ == 0) return;
  const size_t hosts = refused_hosts_.size();
  log_.warn(
      "control links of rank {}: {} connection{} from {}{} address{} {} refused in all, {} of "
      "which said nothing",
      rank_, refusals_, refusals_ == 1 ? "" : "s", hosts == kMaxHosts ? "over " : "", hosts,
      hosts == 1 ? "" : "es", refusals_ == 1 ? "was" : "were", silent_refusals_);
}

// strangers_[place] becomes a neighbour, stays, or goes.
void TcpLinks::serve_stranger(size_t place, short found) {
  std::unique_ptr<Connection>& stranger = strangers_[place];
  std::vector<Frame> frames;
  try {
    if (found) stranger->serve(found, [&](Frame frame) { frames.push_back(std::move(frame)); });
    if (stranger->proved()) require_free(stranger->rank());
    ASHLAR_REQUIRE(stranger->proved() || seconds_since(stranger->begun()) < kHandshake_s, kComm,
                   "it did not prove itself within {} s", kHandshake_s);
  } catch (const Error& error) {
    refuse(*stranger, error.what());
    stranger.reset();
    return;
  }
  if (!stranger->proved()) return;
  const int child = stranger->rank();
  stranger->queue(kHello, {});
  adopt(child, std::move(stranger));
  take_all(child, std::move(frames), "");
}

// A link that lives keeps its place: who comes beside it is no child that lost its connection.
void TcpLinks::require_free(int child) const {
  const Neighbour& neighbour = neighbours_.at(child);
  if (!neighbour.up) return;
  const double silent_s = seconds_since(neighbour.connection->last_heard());
  ASHLAR_REQUIRE(silent_s > 2 * options_.ping_s, kComm,
                 "it says that it is rank {}, which was heard {:.2g} s ago on another connection",
                 child, silent_s);
}

void TcpLinks::adopt(int rank, std::unique_ptr<Connection> connection) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (neighbour.lost) return;  // the user was told so, for good
  neighbour.connection = std::move(connection);
  neighbour.up = neighbour.was_up = true;
  neighbour.since = Clock::now();
  user_.linked(rank);
}

void TcpLinks::serve(int rank, short found) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (!neighbour.connection) return;
  std::vector<Frame> frames;
  std::string broken;
  try {
    neighbour.connection->serve(found, [&](Frame frame) { frames.push_back(std::move(frame)); });
  } catch (const Error& error) {
    broken = error.what();
  }
  take_all(rank, std::move(frames), broken);
}

// broken: why the connection is over after these frames; "" if it is not.
void TcpLinks::take_all(int rank, std::vector<Frame> frames, const std::string& broken) {
  Neighbour& neighbour = neighbours_.at(rank);
  const Connection* serving = neighbour.connection.get();
  try {
    for (Frame& frame : frames)  // one of them may end the connection (a goodbye)
      if (serving && neighbour.connection.get() == serving) take(rank, std::move(frame));
    if (serving && neighbour.connection.get() == serving && !broken.empty())
      went_down(rank, broken);
  } catch (const Error& error) {  // of a frame, or of what the user made of it
    went_down(rank, error.what());
  }
}

void TcpLinks::take(int rank, Frame frame) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (!neighbour.up) {  // the parent takes this child
    ASHLAR_REQUIRE(frame.kind == kHello, kComm, "it does not say hello");
    adopt(rank, std::move(neighbour.connection));
  } else if (frame.kind == kGoodbye) {
    lose(rank, "");
  } else if (frame.kind < kFirstOwn) {
    user_.received(rank, frame.kind, frame.body);
  }
}

void TcpLinks::keep_up(int rank) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (neighbour.lost) return;
  const Clock::time_point now = Clock::now();
  if (neighbour.up) {
    Connection& connection = *neighbour.connection;
    if (seconds_between(connection.last_heard(), now) > options_.silence_s)
      return went_down(rank, fmt::format("no sign of life for {} s", options_.silence_s));
    if (seconds_between(connection.last_sent(), now) > options_.ping_s) connection.queue(kPing, {});
    return;
  }
  if (seconds_between(neighbour.since, now) >
      (neighbour.was_up ? options_.reconnect_s : options_.connect_s))
    return lose(rank, neighbour.why);
  if (rank == parent_ && now >= neighbour.next_try) connect_parent(neighbour);
}

// One try ends when the next one's time has come.
void TcpLinks::connect_parent(Neighbour& neighbour) {
  const std::string& host =
      parent_address_.hosts[neighbour.next_host++ % parent_address_.hosts.size()];
  if (neighbour.connection) neighbour.why = "no answer at " + host;
  neighbour.connection.reset();
  neighbour.next_try = Clock::now() + of_seconds(std::max(kTry_s, options_.connect_s / 30));
  try {
    neighbour.connection = std::make_unique<Connection>(Connection::start(
        host, parent_address_.port, Handshake::of_child(epoch_, rank_, parent_, random_nonce()),
        options_.max_body_bytes));
  } catch (const Error& error) {
    neighbour.why = error.what();
  }
}

void TcpLinks::went_down(int rank, const std::string& why) {
  Neighbour& neighbour = neighbours_.at(rank);
  neighbour.connection.reset();
  neighbour.why = why;
  if (!neighbour.up) return;  // a try that failed: the next one has its time
  neighbour.up = false;
  neighbour.since = Clock::now();
  neighbour.next_try = Clock::now();
}

void TcpLinks::lose(int rank, const std::string& why) {
  Neighbour& neighbour = neighbours_.at(rank);
  neighbour.connection.reset();
  neighbour.up = false;
  neighbour.lost = true;
  user_.lost(rank, why);
}

// A neighbour that hears it closes the connection.  To close first would be to drop what it sent
// last, which makes TCP drop what was sent to it.
void TcpLinks::say_goodbye() {
  send_queued();
  const Clock::time_point start = Clock::now();
  for (auto& [rank, neighbour] : neighbours_)
    if (neighbour.up) neighbour.connection->queue(kGoodbye, {});
  for (auto& [rank, neighbour] : neighbours_) {
    bool open = neighbour.up;
    while (open && seconds_since(start) < kGoodbye_s) {
      Connection& connection = *neighbour.connection;
      pollfd found{connection.fd(), connection.events(), 0};
      ::poll(&found, 1, 100);
      try {
        connection.serve(found.revents,
                         [&](const Frame& frame) { open &= frame.kind != kGoodbye; });
      } catch (const Error&) {
        open = false;
      }
    }
  }
}

}  // namespace ashlar::control
