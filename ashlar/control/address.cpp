#include "ashlar/control/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "ashlar/core/error.h"

namespace ashlar::control {
namespace {

struct Found {
  std::string interface_name, host;
  bool loopback, v6;
};

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes =
      address->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text.data(), text.size()) ? text.data() : "";
}

bool usable(const sockaddr* address) {
  if (!address) return false;
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::vector<Found> interfaces() {
  ifaddrs* list = nullptr;
  ASHLAR_REQUIRE(getifaddrs(&list) == 0, kComm, "getifaddrs: {}", std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Found> found;
  for (const ifaddrs* each = list; each; each = each->ifa_next)
    if ((each->ifa_flags & IFF_UP) && usable(each->ifa_addr))
      found.push_back({each->ifa_name, text_of(each->ifa_addr),
                       (each->ifa_flags & IFF_LOOPBACK) != 0,
                       each->ifa_addr->sa_family == AF_INET6});
  return found;
}

// IPv4 first.
std::vector<std::string> hosts(Reach reach, const std::string& interface_name) {
  const std::vector<Found> all = interfaces();
  std::set<std::string> names;
  std::vector<std::string> chosen;
  // The other kind of addresses only where there are none of the one that is wanted.
  const bool first = reach == Reach::kMachine;
  for (const bool loopback : {first, !first}) {
    for (const bool v6 : {false, true})
      for (const Found& each : all) {
        names.insert(each.interface_name);
        const bool wanted = interface_name.empty() || each.interface_name == interface_name;
        if (wanted && each.loopback == loopback && each.v6 == v6) chosen.push_back(each.host);
      }
    if (!chosen.empty()) break;
  }
  ASHLAR_REQUIRE(!chosen.empty(), kComm, "interface '{}' has no address; those that have one: {}",
                 interface_name, fmt::join(names, ", "));
  return chosen;
}

uint16_t port_of(const Socket& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ASHLAR_REQUIRE(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) == 0, kComm,
                 "getsockname: {}", std::strerror(errno));
  return ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                          : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
}

// Port 0: the system chooses one.  An empty socket, and errno, where that cannot be done.
Socket listening_at(const std::string& host, uint16_t port) {
  sockaddr_storage bytes{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(bytes);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(bytes);
  const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (is_v4) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
  } else {
    inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
  }
  Socket made(socket(bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool good = made &&
                    bind(made.fd(), reinterpret_cast<const sockaddr*>(&bytes),
                         is_v4 ? sizeof(v4) : sizeof(v6)) == 0 &&
                    listen(made.fd(), SOMAXCONN) == 0;
  return good ? std::move(made) : Socket();
}

// Sockets at one port of those hosts that can be bound; the others are taken out of `hosts`.  None:
// another process has that port at one of them.
std::vector<Socket> listening_at_all(std::vector<std::string>& hosts) {
  std::vector<Socket> sockets;
  std::vector<std::string> bound;
  uint16_t port = 0;
  std::string problem;
  for (const std::string& host : hosts) {
    Socket socket = listening_at(host, port);
    if (!socket && errno == EADDRINUSE && port != 0) return {};
    if (!socket) {  // an IPv6 address that is not ready yet, or a kernel without IPv6
      problem = fmt::format("listening at {}: {}", host, std::strerror(errno));
      continue;
    }
    if (port == 0) port = port_of(socket);
    sockets.push_back(std::move(socket));
    bound.push_back(host);
  }
  ASHLAR_REQUIRE(!sockets.empty(), kComm, "{}", problem);
  hosts = std::move(bound);
  return sockets;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

std::string this_node() {
  std::array<char, 256> host{};
  ASHLAR_REQUIRE(gethostname(host.data(), host.size() - 1) == 0, kComm, "gethostname: {}",
                 std::strerror(errno));
  std::string boot = "unknown";  // where /proc is not there: the host's name must do
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Containers on one machine have loopbacks of their own.
  std::array<char, 64> network{};
  const ssize_t length = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return fmt::format("{}/{}/{}", host.data(), boot, length > 0 ? network.data() : "unknown");
}

Listener::Listener(Reach reach, const std::string& interface_name) {
  constexpr int kTries = 20;
  std::vector<std::string> chosen;
  size_t size = this_node().size() + sizeof("65535 ");
  for (const std::string& host : hosts(reach, interface_name))
    if (size += 1 + host.size(); size <= kMaxAddressText) chosen.push_back(host);
  for (int tries = 0; sockets_.empty(); ++tries) {
    ASHLAR_REQUIRE(tries < kTries, kComm, "no port is free at all of {}", fmt::join(chosen, ", "));
    sockets_ = listening_at_all(chosen);
  }
  address_ = fmt::format("{} {} {}", this_node(), port_of(sockets_[0]), fmt::join(chosen, ","));
}

Address parse_address(const std::string& text) {
  Address address;
  const size_t first = text.find(' '), second = text.find(' ', first + 1);
  bool good = text.size() <= kMaxAddressText && first != text.npos && second != text.npos;
  if (good) {
    address.node = text.substr(0, first);
    const char* end = text.data() + second;
    const auto port = std::from_chars(text.data() + first + 1, end, address.port);
    good = port.ec == std::errc() && port.ptr == end && address.port > 0;
    for (size_t begin = second + 1; begin < text.size();) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      address.hosts.push_back(text.substr(begin, comma - begin));
      begin = comma + 1;
    }
  }
  ASHLAR_REQUIRE(good && !address.hosts.empty(), kComm,
                 "'{}' is not an address of a control link; expected 'NODE PORT ADDRESS,...'",
                 text.substr(0, kMaxAddressText));
  return address;
}

std::vector<int> nodes_of(std::span<const Address> addresses) {
  std::map<std::string, int> numbers;
  std::vector<int> nodes;
  for (const Address& address : addresses)
    nodes.push_back(numbers.try_emplace(address.node, int(numbers.size())).first->second);
  return nodes;
}

}  // namespace ashlar::control
