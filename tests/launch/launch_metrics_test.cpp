#include "ashlar/launch/launch_metrics.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

// A connection to a port of this machine; -1: nobody listens there.
int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// Sends bytes to the server, and returns all that it answers; "" if there is none.
std::string ask(int port, const std::string& request) {
  const int fd = connect_to(port);
  if (fd < 0) return "";
  send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd, bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, size_t(count));
  close(fd);
  return answer;
}

LaunchNumbers numbers() {
  LaunchNumbers numbers;
  numbers.phase = LaunchPhase::kRun;
  numbers.attempt = 3;
  numbers.step = 412;
  numbers.faults = {{"killed", 2}, {"hang", 1}};
  numbers.num_restarts = 2;
  numbers.detect_s = 0.5;
  return numbers;
}

TEST(LaunchMetrics, AreAllThere) {
  Goodput goodput(10);
  goodput.charge(TimeClass::kUseful, 12.5);
  const std::string text = metrics_text(numbers(), goodput);
  for (const char* line :
       {"ashlar_launch_attempt 3\n", "ashlar_step 412\n",
        "ashlar_launch_faults_total{class=\"killed\"} 2\n",
        "ashlar_launch_faults_total{class=\"hang\"} 1\n", "ashlar_launch_restarts_total 2\n",
        "ashlar_launch_detect_seconds_total 0.5\n", "ashlar_launch_seconds{class=\"useful\"} 2.5\n",
        "ashlar_launch_seconds{class=\"detect\"} 0\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_NE(
      text.find(fmt::format("ashlar_launch_state{{state=\"{}\"}} 1\n", name_of(LaunchPhase::kRun))),
      std::string::npos)
      << text;
}

TEST(MetricsServer, AnswersWhatPrometheusAsks) {
  MetricsServer server("0");
  server.set_text("ashlar_step 7\n");
  const std::string answer =
      ask(server.port(), "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nashlar_step 7\n")) << answer;
  server.set_text("ashlar_step 8\n");
  EXPECT_TRUE(ask(server.port(), "GET /metrics HTTP/1.0\r\n\r\n").ends_with("ashlar_step 8\n"));
}

// A connection that says nothing, or too much, holds up no other for long.
TEST(MetricsServer, IsNotHeldUp) {
  MetricsServer server("127.0.0.1:0", 0.05);
  server.set_text("ashlar_step 7\n");
  EXPECT_TRUE(ask(server.port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_EQ(ask(server.port(), "GET /metrics HTTP/1.1\r\n"), "");
  EXPECT_EQ(ask(server.port(), std::string(20'000, 'x')), "");
  EXPECT_TRUE(ask(server.port(), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("ashlar_step 7\n"));
}

TEST(MetricsServer, RefusesOtherAddresses) {
  for (const char* address : {"", "x", "127.0.0.1:", ":80", "127.0.0.1:99999", "1:-1"}) try {
      const MetricsServer server(address);
      ADD_FAILURE() << address;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << address;
    }
  const MetricsServer first("0");
  EXPECT_THROW(MetricsServer(fmt::format("{}", first.port())), Error);
}

TEST(LaunchMetrics, PrometheusAcceptsThem) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is not installed: apt-get install prometheus";
  const ashlar::testing_support::TemporaryDirectory root;
  std::ofstream(root / "metrics") << metrics_text(numbers(), Goodput(0));
  const std::string command =
      fmt::format("promtool check metrics < '{}'", (root / "metrics").string());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

int free_port() {
  const MetricsServer server("0");
  return server.port();
}

// A real Prometheus reads the numbers, and answers a query about one of them.
TEST(Prometheus, ScrapesTheNumbers) {
  if (std::system("command -v prometheus >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "prometheus is not installed: apt-get install prometheus";
  const ashlar::testing_support::TemporaryDirectory root;
  MetricsServer server("0");
  server.set_text(metrics_text(numbers(), Goodput(0)));
  std::ofstream(root / "config.yml") << fmt::format(
      "global: {{scrape_interval: 100ms}}\n"
      "scrape_configs: [{{job_name: run, static_configs: [{{targets: ['127.0.0.1:{}']}}]}}]\n",
      server.port());
  const int port = free_port();
  const pid_t prometheus = fork();
  if (prometheus == 0) {
    const std::string config = "--config.file=" + (root / "config.yml").string(),
                      data = "--storage.tsdb.path=" + (root / "data").string(),
                      address = fmt::format("--web.listen-address=127.0.0.1:{}", port);
    freopen("/dev/null", "w", stderr);
    execlp("prometheus", "prometheus", config.c_str(), data.c_str(), address.c_str(), nullptr);
    _exit(127);
  }
  const std::string query =
      "GET /api/v1/query?query=ashlar_launch_faults_total HTTP/1.1\r\nHost: x\r\n"
      "Connection: close\r\n\r\n";
  std::string answer;
  const auto begin = Clock::now();
  while (answer.find("\"hang\"") == answer.npos && seconds_since(begin) < 60)
    answer = ask(port, query);
  kill(prometheus, SIGKILL);
  waitpid(prometheus, nullptr, 0);
  EXPECT_NE(answer.find("\"class\":\"hang\""), answer.npos) << answer;
  EXPECT_NE(answer.find(",\"1\"]"), answer.npos) << answer;
  EXPECT_NE(answer.find(",\"2\"]"), answer.npos) << answer;
}

}  // namespace
}  // namespace ashlar::launch
