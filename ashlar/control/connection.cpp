#include "ashlar/control/connection.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <tuple>

#include "ashlar/core/error.h"

namespace ashlar::control {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kMaxWaitingBytes = size_t(1) << 30;

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

SocketAddress resolve(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.bytes);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.size = sizeof(v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.size = sizeof(v6);
  } else {
    ASHLAR_FAIL(kComm, "'{}' is not a numeric address", host);
  }
  return address;
}

// The address at the other end; "nobody" if it has gone again.
std::pair<std::string, uint16_t> peer_of(const Socket& socket) {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(bytes);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&bytes), &size) != 0)
    return {"nobody", uint16_t(0)};
  if (bytes.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<sockaddr_in&>(bytes);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<sockaddr_in6&>(bytes);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return {text.data(), ntohs(v6.sin6_port)};
}

}  // namespace

Connection::Connection(Socket socket, Handshake handshake, size_t max_body_bytes, bool connecting)
    : socket_(std::move(socket)),
      handshake_(std::move(handshake)),
      max_body_bytes_(max_body_bytes),
      connecting_(connecting) {
  const int on = 1;  // small messages go out at once; that this fails costs only time
  setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  queue_bytes(handshake_.take_outgoing());
}

Connection Connection::accepted(Socket socket, Handshake handshake, size_t max_body_bytes) {
  Connection made(std::move(socket), std::move(handshake), max_body_bytes, false);
  std::tie(made.host_, made.port_) = peer_of(made.socket_);
  return made;
}

Connection Connection::start(const std::string& host, uint16_t port, Handshake handshake,
                             size_t max_body_bytes) {
  const SocketAddress address = resolve(host, port);
  Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASHLAR_REQUIRE(socket, kComm, "socket: {}", std::strerror(errno));
  ASHLAR_REQUIRE(connect(socket.fd(), address.get(), address.size) == 0 || errno == EINPROGRESS,
                 kComm, "connect to {} port {}: {}", host, port, std::strerror(errno));
  Connection made(std::move(socket), std::move(handshake), max_body_bytes, true);
  made.host_ = host;
  made.port_ = port;
  return made;
}

std::string Connection::peer() const {
  return host_.find(':') == host_.npos ? fmt::format("{}:{}", host_, port_)
                                       : fmt::format("[{}]:{}", host_, port_);
}

short Connection::events() const {
  if (connecting_) return POLLOUT;
  return short(POLLIN | (out_.empty() ? 0 : POLLOUT));
}

void Connection::queue(uint16_t kind, std::span<const std::byte> body) {
  queue_bytes(writer_->next(kind, body));
}

void Connection::queue_bytes(std::vector<std::byte> bytes) {
  if (bytes.empty()) return;
  waiting_bytes_ += bytes.size();
  out_.push_back(std::move(bytes));
  last_sent_ = Clock::now();
}

void Connection::serve(short found, const std::function<void(Frame)>& take) {
  if (connecting_) {
    if (found & (POLLOUT | POLLERR | POLLHUP)) finish_connecting();
    return;
  }
  if (found & (POLLIN | POLLERR | POLLHUP)) receive(take);
  send();
}

void Connection::finish_connecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  ASHLAR_REQUIRE(error == 0, kComm, "connect: {}", std::strerror(error));
  connecting_ = false;
  last_heard_ = Clock::now();
  send();
}

void Connection::send() {
  ASHLAR_REQUIRE(waiting_bytes_ <= kMaxWaitingBytes, kComm, "{} bytes wait to be sent",
                 waiting_bytes_);
  while (!out_.empty()) {
    const std::vector<std::byte>& frame = out_.front();
    const ssize_t count =
        ::send(fd(), frame.data() + sent_, frame.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      ASHLAR_FAIL(kComm, "send: {}", std::strerror(errno));
    }
    sent_ += size_t(count);
    waiting_bytes_ -= size_t(count);
    if (sent_ < frame.size()) return;
    out_.pop_front();
    sent_ = 0;
  }
}

// One read a call, so that no neighbour keeps the others waiting.
void Connection::receive(const std::function<void(Frame)>& take) {
  thread_local std::vector<std::byte> buffer(kReadBytes);
  const ssize_t count = recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
    ASHLAR_FAIL(kComm, "receive: {}", std::strerror(errno));
  }
  ASHLAR_REQUIRE(count > 0, kComm, "the connection was closed");
  last_heard_ = Clock::now();
  said_anything_ = true;
  const auto bytes = std::span<const std::byte>(buffer).first(size_t(count));
  if (proved())
    reader_->feed(bytes);
  else
    shake_hands(bytes);
  while (auto frame = reader_ ? reader_->next() : std::nullopt) take(std::move(*frame));
}

void Connection::shake_hands(std::span<const std::byte> bytes) {
  handshake_.feed(bytes);
  queue_bytes(handshake_.take_outgoing());
  if (!proved()) return;
  writer_.emplace(handshake_.keys().sending);
  reader_.emplace(handshake_.keys().receiving, max_body_bytes_);
  reader_->feed(handshake_.rest());
}

}  // namespace ashlar::control
