#include "ashlar/launch/launch_metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/prometheus.h"

namespace ashlar::launch {
namespace {

// A socket that listens at the address, and its port.
std::pair<int, int> listen_at(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string port = address.substr(colon == address.npos ? 0 : colon + 1);
  const std::string host = colon == address.npos ? "127.0.0.1" : address.substr(0, colon);
  const bool is_port = !port.empty() && port.size() <= 5 &&
                       port.find_first_not_of("0123456789") == port.npos &&
                       std::stoi(port) <= 65535;
  ASHLAR_REQUIRE(is_port && !host.empty(), kConfig,
                 "launch: --metrics is '{}'; expected HOST:PORT, or PORT of the loopback", address);
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  ASHLAR_REQUIRE(error == 0, kLaunch, "launch: --metrics is '{}': {}", address,
                 gai_strerror(error));
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens =
      bind(listener, found->ai_addr, found->ai_addrlen) == 0 && listen(listener, 16) == 0;
  const int reason = errno;
  freeaddrinfo(found);
  if (!listens) close(listener);
  ASHLAR_REQUIRE(listens, kLaunch, "launch: --metrics is '{}': {}", address, strerror(reason));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size);
  return {listener, ntohs(own.sin_port)};
}

constexpr size_t kMostOfRequest = 8192;

// The request up to the end of its head; "" if that does not come in time or is too long.
std::string read_head(int connection, double patience_s) {
  const Clock::time_point start = Clock::now();
  std::string head;
  std::array<char, 1024> bytes{};
  while (head.find("\r\n\r\n") == head.npos) {
    pollfd ready{connection, POLLIN, 0};
    const double left_s = patience_s - seconds_since(start);
    if (head.size() > kMostOfRequest || left_s <= 0) return "";
    if (poll(&ready, 1, int(left_s * 1000) + 1) != 1) return "";
    const ssize_t count = recv(connection, bytes.data(), bytes.size(), 0);
    if (count <= 0) return "";
    head.append(bytes.data(), size_t(count));
  }
  return head;
}

}  // namespace

std::string metrics_text(const LaunchNumbers& numbers, const Goodput& goodput) {
  PrometheusText text;
  text.begin("ashlar_launch_state", "gauge", "1 for the state of the launcher.");
  for (LaunchPhase phase :
       {LaunchPhase::kForm, LaunchPhase::kStart, LaunchPhase::kRun, LaunchPhase::kClassify,
        LaunchPhase::kDrain, LaunchPhase::kFence, LaunchPhase::kStop})
    text.add(phase == numbers.phase, fmt::format("state=\"{}\"", name_of(phase)));
  text.add("ashlar_launch_attempt", "gauge", "Number of the attempt.", numbers.attempt);
  text.add("ashlar_step", "gauge", "Steps done.", double(numbers.step));
  text.add("ashlar_tokens", "gauge", "Tokens of all steps done.", double(numbers.tokens));
  text.begin("ashlar_launch_faults_total", "counter", "Faults by class.");
  for (const auto& [fault, count] : numbers.faults)
    text.add(count, fmt::format("class=\"{}\"", fault));
  text.add("ashlar_launch_restarts_total", "counter", "Restarts that did a step.",
           numbers.num_restarts);
  text.add("ashlar_launch_detect_seconds_total", "counter",
           "Seconds from the last sign of life to the name of a fault.", numbers.detect_s);
  text.add("ashlar_launch_restart_seconds_total", "counter",
           "Seconds from the name of a fault to the next first step.", numbers.restart_s);
  text.begin("ashlar_launch_seconds", "gauge", "Wall time by class.");
  for (int i = 0; i < kNumTimeClasses; ++i)
    text.add(goodput.seconds(TimeClass(i)), fmt::format("class=\"{}\"", name_of(TimeClass(i))));
  return text.text();
}

MetricsServer::MetricsServer(const std::string& address, double patience_s)
    : patience_s_(patience_s) {
  std::tie(listener_, port_) = listen_at(address);
  const bool piped = pipe2(wake_, O_CLOEXEC) == 0;
  const int error = errno;
  if (!piped) close(listener_);
  ASHLAR_REQUIRE(piped, kLaunch, "launch: --metrics: pipe: {}", strerror(error));
  thread_ = std::thread([this] { serve(); });
}

MetricsServer::~MetricsServer() {
  close(wake_[1]);
  thread_.join();
  close(wake_[0]);
  close(listener_);
}

void MetricsServer::set_text(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void MetricsServer::serve() {
  for (;;) {
    std::array<pollfd, 2> ready{{{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}}};
    poll(ready.data(), ready.size(), -1);
    if (ready[1].revents) return;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    answer(connection);
    close(connection);
  }
}

void MetricsServer::answer(int connection) {
  const timeval patience{1, 0};
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const std::string head = read_head(connection, patience_s_);
  if (head.empty()) return;
  const bool known = head.starts_with("GET /metrics ") || head.starts_with("GET /metrics?");
  std::string body;
  if (known) {
    const std::lock_guard lock(mutex_);
    body = text_;
  }
  const std::string whole = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      known ? "200 OK" : "404 Not Found", kPrometheusType, body.size(), body);
  send(connection, whole.data(), whole.size(), MSG_NOSIGNAL);
}

}  // namespace ashlar::launch
