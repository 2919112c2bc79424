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

std::string node_text() {
  std::array<char, 256> host{};
  ASHLAR_REQUIRE(gethostname(host.data(), host.size() - 1) == 0, kComm, "gethostname: {}",
                 std::strerror(errno));
  std::string boot = "unknown";  // where /proc is not there: the host's name must do
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return fmt::format("{}/{}", host.data(), boot);
}

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

// IPv4 first; the loopback's only where there is nothing else, or it is asked for.
std::vector<std::string> hosts(const std::string& interface_name) {
  const std::vector<Found> all = interfaces();
  std::set<std::string> names;
  std::vector<std::string> chosen;
  for (const bool loopback : {false, true}) {
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

// IPv6, which takes IPv4 too; IPv4 alone where the kernel has no IPv6.
Socket listening() {
  const int off = 0;
  Socket both(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (both) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    if (setsockopt(both.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0 &&
        bind(both.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0 &&
        listen(both.fd(), SOMAXCONN) == 0)
      return both;
  }
  Socket v4(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ASHLAR_REQUIRE(v4 && bind(v4.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0 &&
                     listen(v4.fd(), SOMAXCONN) == 0,
                 kComm, "listening on a port: {}", std::strerror(errno));
  return v4;
}

uint16_t port_of(const Socket& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ASHLAR_REQUIRE(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) == 0, kComm,
                 "getsockname: {}", std::strerror(errno));
  return ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                          : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Listener::Listener(const std::string& interface_name) : socket_(listening()) {
  address_ = fmt::format("{} {} ", node_text(), port_of(socket_));
  const size_t begin = address_.size();
  for (const std::string& host : hosts(interface_name))
    if (address_.size() + 1 + host.size() <= kMaxAddressText)
      address_ += (address_.size() > begin ? "," : "") + host;
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
