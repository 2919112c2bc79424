// How it works.  One thread turns: poll for at most a tick; take what send() queued; accept, read,
// write; then look after every neighbour (keep_up): connect, ping, notice silence, give up.
//
//   the child's side    no connection -> connecting -> connected, hello sent -> up, when the hello
//                       of the parent is there: before, nothing says that this port is its own
//   the parent's side   a stranger -> its first frame is the hello of a child -> up, hello sent
//                       back.  A child that comes again takes the place of its old connection,
//                       which may be half open.  A stranger has 64 bytes and 5 s to say hello.
//   both                up -> down, by any error or by silence -> up again, or lost for good
//
// All but queued_, to_break_ and stop_ belongs to the thread.  It ends with a goodbye on each link
// that is up, which makes the neighbour lose it at once and without a reason, and it stays until
// what was queued is sent, for two seconds at most.
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
constexpr size_t kHelloBytes = 64, kMaxStrangers = 64;
constexpr double kHello_s = 5, kTry_s = 0.5, kGoodbye_s = 2;
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
  std::vector<std::byte> frame = encode_frame(epoch_, kind, rank_, body);
  {
    const std::lock_guard lock(mutex_);
    queued_.emplace_back(rank, std::move(frame));
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
}

// The places of `found` are those of wake, listener, neighbours with a connection, strangers.
void TcpLinks::poll_all() {
  std::vector<pollfd> found{{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
  std::vector<int> ranks;
  for (const auto& [rank, neighbour] : neighbours_) {
    if (!neighbour.connection) continue;
    ranks.push_back(rank);
    found.push_back({neighbour.connection->fd(), neighbour.connection->events(), 0});
  }
  for (const auto& stranger : strangers_) found.push_back({stranger->fd(), POLLIN, 0});
  const size_t num_strangers = strangers_.size();
  const double left_s = options_.tick_s - seconds_since(last_tick_);
  const int timeout_ms = int(std::ceil(1e3 * std::max(0.0, left_s)));
  if (::poll(found.data(), found.size(), timeout_ms) < 0) return;  // EINTR: the next turn
  if (found[0].revents) {
    uint64_t count;
    [[maybe_unused]] const ssize_t size = ::read(wake_.fd(), &count, sizeof(count));
  }
  for (size_t i = 0; i < ranks.size(); ++i) serve(ranks[i], found[2 + i].revents);
  for (size_t i = 0; i < num_strangers; ++i) serve_stranger(i, found[2 + ranks.size() + i].revents);
  std::erase(strangers_, nullptr);
  if (found[1].revents) accept_all();
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
  for (auto& [rank, frame] : queued) {
    Neighbour& neighbour = neighbours_.at(rank);
    if (neighbour.up) neighbour.connection->queue(std::move(frame));
  }
  for (auto& [rank, neighbour] : neighbours_)
    if (neighbour.up) serve(rank, 0);
  for (const int rank : to_break) went_down(rank, "a test broke it");
}

void TcpLinks::accept_all() {
  for (;;) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    if (strangers_.size() >= kMaxStrangers) {
      refuse(*strangers_.front(), "it said nothing, and too many others wait");
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back(
        std::make_unique<Connection>(std::move(socket), epoch_, kHelloBytes, false));
  }
}

void TcpLinks::refuse(const Connection& stranger, const std::string& why) {
  if (++refusals_ > kToldRefusals) return;
  log_.warn("control links: a connection of {} was refused: {}{}", stranger.peer(), why,
            refusals_ == kToldRefusals ? "; further ones are not told of" : "");
}

// strangers_[place] becomes a neighbour, stays, or goes.
void TcpLinks::serve_stranger(size_t place, short found) {
  std::unique_ptr<Connection>& stranger = strangers_[place];
  int child = -1;
  try {
    if (found)
      stranger->serve(found, [&](const Frame& frame) {
        ASHLAR_REQUIRE(child < 0 && frame.kind == kHello && frame.source != parent_ &&
                           neighbours_.contains(frame.source),
                       kComm, "rank {} is not a child of rank {}", frame.source, rank_);
        child = frame.source;
      });
    ASHLAR_REQUIRE(child >= 0 || seconds_since(stranger->last_heard()) < kHello_s, kComm,
                   "it said no hello for {} s", kHello_s);
  } catch (const Error& error) {
    refuse(*stranger, error.what());
    stranger.reset();
    return;
  }
  if (child < 0) return;
  queue_frame(*stranger, kHello);
  adopt(child, std::move(stranger));
}

void TcpLinks::adopt(int rank, std::unique_ptr<Connection> connection) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (neighbour.lost) return;  // the user was told so, for good
  connection->allow(options_.max_body_bytes);
  neighbour.connection = std::move(connection);
  neighbour.up = neighbour.was_up = true;
  neighbour.since = Clock::now();
  user_.linked(rank);
}

void TcpLinks::serve(int rank, short found) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (!neighbour.connection) return;
  try {
    const bool was_connecting = neighbour.connection->connecting();
    // A frame may end the connection (a goodbye), which must live until serve() is back.
    const Connection* serving = neighbour.connection.get();
    std::vector<Frame> frames;
    std::string broken;
    try {
      neighbour.connection->serve(found, [&](Frame frame) { frames.push_back(std::move(frame)); });
    } catch (const Error& error) {
      broken = error.what();
    }
    if (was_connecting && broken.empty() && !neighbour.connection->connecting())
      queue_frame(*neighbour.connection, kHello);
    for (Frame& frame : frames)
      if (neighbour.connection.get() == serving) take(rank, std::move(frame));
    if (neighbour.connection.get() == serving && !broken.empty()) went_down(rank, broken);
  } catch (const Error& error) {  // of a frame, or of what the user made of it
    went_down(rank, error.what());
  }
}

void TcpLinks::take(int rank, Frame frame) {
  ASHLAR_REQUIRE(frame.source == rank, kComm, "a message of rank {} came from rank {}",
                 frame.source, rank);
  Neighbour& neighbour = neighbours_.at(rank);
  if (!neighbour.up) {  // the parent's answer to the hello
    ASHLAR_REQUIRE(frame.kind == kHello, kComm, "it does not say hello");
    adopt(rank, std::move(neighbour.connection));
  } else if (frame.kind == kGoodbye) {
    lose(rank, "");
  } else if (frame.kind < kFirstOwn) {
    user_.received(rank, frame.kind, frame.body);
  }
}

void TcpLinks::queue_frame(Connection& connection, uint16_t kind) {
  connection.queue(encode_frame(epoch_, kind, rank_, {}));
}

void TcpLinks::keep_up(int rank) {
  Neighbour& neighbour = neighbours_.at(rank);
  if (neighbour.lost) return;
  const Clock::time_point now = Clock::now();
  if (neighbour.up) {
    Connection& connection = *neighbour.connection;
    if (seconds_between(connection.last_heard(), now) > options_.silence_s)
      return went_down(rank, fmt::format("no sign of life for {} s", options_.silence_s));
    if (seconds_between(connection.last_sent(), now) > options_.ping_s)
      queue_frame(connection, kPing);
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
    neighbour.connection = std::make_unique<Connection>(
        Connection::start(host, parent_address_.port, epoch_, kHelloBytes));
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
    if (neighbour.up) queue_frame(*neighbour.connection, kGoodbye);
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
