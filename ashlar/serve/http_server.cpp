#include "ashlar/serve/http_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"

namespace ashlar::serve {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMostDropped = size_t{1} << 20;

using Milliseconds = std::chrono::milliseconds;

// Whether one of the events comes within this time; an error of the socket counts as one.
bool poll_for(socket_t sock, short events, Milliseconds most) {
  pollfd entry{sock, events, 0};
  return poll(&entry, 1, int(std::max<int64_t>(0, most.count()))) > 0;
}

Milliseconds left_of(Clock::time_point deadline) {
  return std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
}

// One connection, as cpp-httplib reads and writes it.
class Connection final : public httplib::Stream {
 public:
  Connection(socket_t sock, const HttpLimits& limits)
      : sock_(sock), limits_(limits), deadline_(Clock::now() + limits.header_time) {}

  // The client has closed the connection, or its half of it.
  bool is_closed() const { return poll_for(sock_, POLLRDHUP, Milliseconds(0)); }

  bool is_readable() const override { return begin_ < end_ || poll_for(sock_, POLLIN, {}); }
  bool is_writable() const override { return !is_closed(); }
  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_ && !fill()) return -1;
    const size_t count = in_header_ ? 1 : std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count;
    const bool fits = in_header_ ? count_header(*to) : count_body(count);
    return fits ? ssize_t(count) : -1;
  }
  ssize_t write(const char* from, size_t size) override {
    for (size_t sent = 0; sent < size;) {
      if (!poll_for(sock_, POLLOUT, limits_.write_time)) return -1;
      const ssize_t count = send(sock_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (count <= 0) return -1;
      sent += size_t(count);
    }
    return ssize_t(size);
  }
  // Nothing here depends on addresses.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return sock_; }

 private:
  bool fill() {
    begin_ = end_ = 0;
    if (!poll_for(sock_, POLLIN, left_of(deadline_))) return false;
    const ssize_t count = recv(sock_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count > 0) end_ = size_t(count);
    return count > 0;
  }
  // A line that is "\r\n" and no more ends the headers, as for the library, which passes over a
  // line that is "\n" alone.  False: they are too long.
  bool count_header(char c) {
    ++num_line_bytes_;
    if (c == '\n' && num_line_bytes_ == 2 && last_ == '\r') {
      in_header_ = false;
      deadline_ = Clock::now() + limits_.body_time;
    }
    if (c == '\n') num_line_bytes_ = 0;
    last_ = c;
    return ++num_header_bytes_ <= limits_.header_bytes;
  }
  bool count_body(size_t count) {
    num_body_bytes_ += count;
    return num_body_bytes_ <= limits_.body_bytes;
  }

  const socket_t sock_;
  const HttpLimits& limits_;
  std::array<char, 16384> buffer_{};
  size_t begin_ = 0, end_ = 0;
  size_t num_header_bytes_ = 0, num_line_bytes_ = 0, num_body_bytes_ = 0;
  char last_ = '\0';
  bool in_header_ = true;
  Clock::time_point deadline_;
};

// Threads with a queue that is not longer than they are many; what does not fit runs on the thread
// that brings it.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  explicit BoundedQueue(size_t threads) : most_(threads) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  void enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.size() < most_) {
        tasks_.push_back(std::move(task));
        came_.notify_one();
        return;
      }
    }
    task();
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      came_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        came_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  const size_t most_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::list<std::function<void()>> tasks_;
  bool stopped_ = false;
};

// Does not wait for the client, since nothing else is accepted meanwhile.
void refuse(socket_t sock) {
  constexpr std::string_view kAnswer =
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: 59\r\n\r\n{\"error\": {\"message\": \"too many connections; try later\"}} "
      "\n";
  [[maybe_unused]] const ssize_t ignored =
      send(sock, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  std::array<char, 4096> dropped;
  for (int i = 0; i < 16 && recv(sock, dropped.data(), dropped.size(), MSG_DONTWAIT) > 0; ++i)
    continue;
  close(sock);
}

// Closes the connection.  A client that is still sending would lose the answer if what it sends
// were not taken.
void finish(socket_t sock, Milliseconds most) {
  shutdown(sock, SHUT_WR);
  const auto deadline = Clock::now() + std::min(most, Milliseconds(500));
  std::array<char, 16384> dropped;
  for (size_t total = 0; total < kMostDropped && poll_for(sock, POLLIN, left_of(deadline));) {
    const ssize_t count = recv(sock, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (count <= 0) break;
    total += size_t(count);
  }
  close(sock);
}

// Other processes may not bind to the port beside this one, as SO_REUSEPORT would let them.
void set_options(socket_t sock) {
  const int yes = 1;
  setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
}

}  // namespace

HttpServer::HttpServer(const HttpLimits& limits) : limits_(limits) {
  set_socket_options(set_options);
  set_tcp_nodelay(true);
  new_task_queue = [this] { return new BoundedQueue(limits_.threads); };
}

int HttpServer::bind(const std::string& host, int port) {
  errno = 0;
  const int bound = port > 0 ? (bind_to_port(host, port) ? port : -1) : bind_to_any_port(host);
  ASHLAR_REQUIRE(bound > 0, kConfig, "cannot listen on {} port {}: {}", host, port,
                 errno != 0 ? std::generic_category().message(errno) : "no such address");
  // The library's backlog is 5.
  ASHLAR_REQUIRE(::listen(svr_sock_, kBacklog) == 0, kConfig, "cannot listen on {} port {}: {}",
                 host, port, std::generic_category().message(errno));
  host_ = host, port_ = bound;
  return bound;
}

void HttpServer::start() {
  accepting_ = std::thread([this] { accept_until_stopped(); });
  while (!is_running()) std::this_thread::yield();
}

// The library gives up where a connection ends before it is accepted.
void HttpServer::accept_until_stopped() {
  acceptor_ = std::this_thread::get_id();
  while (!stopped_) {
    listen_after_bind();
    while (!stopped_ && !bind_again()) std::this_thread::sleep_for(Milliseconds(100));
  }
  ended_ = true;
}

bool HttpServer::bind_again() {
  return bind_to_port(host_, port_) && ::listen(svr_sock_, kBacklog) == 0;
}

HttpServer::~HttpServer() {
  if (!accepting_.joinable()) return;
  stopped_ = true;
  // A stop that comes between two calls of listen does nothing.
  for (; !ended_; std::this_thread::sleep_for(Milliseconds(1))) stop();
  accepting_.join();
}

// One request for each connection: one that waits holds no thread, and what a handler left unread
// is never taken for another request.
bool HttpServer::process_and_close_socket(socket_t sock) {
  if (std::this_thread::get_id() == acceptor_.load()) return refuse(sock), true;
  if (wait_for_request(sock)) serve(sock);
  finish(sock, limits_.idle);
  return true;
}

bool HttpServer::wait_for_request(socket_t sock) const {
  constexpr Milliseconds kStep{200};
  const auto deadline = Clock::now() + limits_.idle;
  while (svr_sock_ != INVALID_SOCKET && Clock::now() < deadline)
    if (poll_for(sock, POLLIN, std::min(kStep, limits_.idle))) return true;
  return false;
}

void HttpServer::serve(socket_t sock) {
  Connection connection(sock, limits_);
  bool closed = false;
  try {
    process_request(connection, true, closed, [&](httplib::Request& request) {
      request.progress = [&](uint64_t, uint64_t) { return !connection.is_closed(); };
      request.ranges.clear();  // many of them would multiply an answer
    });
  } catch (const std::exception&) {
    // Memory is short: this connection ends, and no other.
  }
}

}  // namespace ashlar::serve
