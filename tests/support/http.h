// HTTP as bytes over a socket, so that tests can also send what no client would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace ashlar::testing_support {

class HttpConnection {
 public:
  explicit HttpConnection(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~HttpConnection() { close(socket_); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // False once the other side has closed.
  bool send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += size_t(count);
    }
    return true;
  }
  // Everything that comes until the other side closes, or until `end` has come.
  std::string receive(const std::string& end = "") const {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      pollfd entry{socket_, POLLIN, 0};
      if (poll(&entry, 1, 20'000) <= 0) throw std::runtime_error("nothing came for 20 s");
      const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
      if (count <= 0) break;
      text.append(buffer, size_t(count));
    }
    return text;
  }

 private:
  int socket_;
};

struct HttpAnswer {
  int status = 0;  // 0: the connection was closed without an answer
  std::string head, body;
};

inline HttpAnswer http(int port, const std::string& request) {
  const HttpConnection connection(port);
  connection.send(request);
  const std::string all = connection.receive();
  HttpAnswer answer;
  const size_t end = all.find("\r\n\r\n");
  if (end == all.npos) return answer;
  answer.status = std::stoi(all.substr(all.find(' ') + 1, 3));
  answer.head = all.substr(0, end);
  answer.body = all.substr(end + 4);
  return answer;
}

inline HttpAnswer http_get(int port, const std::string& path) {
  return http(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

inline std::string post_request(const std::string& path, const std::string& body,
                                const std::string& type = "application/json") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline HttpAnswer http_post(int port, const std::string& path, const std::string& body) {
  return http(port, post_request(path, body));
}

}  // namespace ashlar::testing_support
