// The address at which a rank listens for its children: a port that the system chooses, and a text
// with which other ranks reach it.
//
//   "NODE PORT ADDRESS[,ADDRESS...]"   NODE: host name, boot id and network namespace, equal on one
//                                      machine
//
// The rank listens at the addresses in the text and at no others.  If all ranks are on one machine,
// these are the loopback's, which no other machine reaches; otherwise those of all interfaces that
// are up except the loopback, IPv4 before IPv6, without link-local ones.  An interface can be named
// instead, as with btl_tcp_if_include of Open MPI and NCCL_SOCKET_IFNAME of NCCL.
//
// Errors   kComm: no socket, no address, an interface that does not exist (the message names those
//          that do), or a text of another form.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::control {

inline constexpr size_t kMaxAddressText = 512;

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

std::string this_node();  // NODE

enum class Reach : uint8_t { kMachine, kNetwork };  // the location of the other ranks

class Listener {
 public:
  explicit Listener(Reach reach, const std::string& interface_name = "");  // "": by reach
  const std::string& address() const { return address_; }  // at most kMaxAddressText bytes
  const std::vector<Socket>& sockets() const { return sockets_; }

 private:
  std::vector<Socket> sockets_;  // one for each address, all with one port
  std::string address_;
};

struct Address {
  std::string node;
  uint16_t port = 0;
  std::vector<std::string> hosts;  // numeric, IPv4 or IPv6
  std::string host_name() const { return node.substr(0, node.find('/')); }
};
Address parse_address(const std::string& text);

// A number for every rank, equal where the node is the same, for make_tree.
std::vector<int> nodes_of(std::span<const Address> addresses);

}  // namespace ashlar::control
