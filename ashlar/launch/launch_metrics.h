// The numbers of a launch for Prometheus, and the server that gives them: http://HOST:PORT/metrics.
//
// The server has one thread, which answers one request after the other and gives each a second.  It
// reads at most 8 KiB of a request, of which only the first line counts, and has no other page.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "ashlar/launch/goodput.h"
#include "ashlar/launch/policy.h"

namespace ashlar::launch {

struct LaunchNumbers {
  LaunchPhase phase = LaunchPhase::kForm;
  int attempt = 0;
  int64_t step = 0, tokens = 0;        // tokens: 0 until a row has them
  std::map<std::string, int> faults;   // by class
  int num_restarts = 0;                // after which a step was done
  double detect_s = 0, restart_s = 0;  // sums over the faults, and over these restarts
};
std::string metrics_text(const LaunchNumbers& numbers, const Goodput& goodput);

class MetricsServer {
 public:
  // address: HOST:PORT, or PORT of the loopback; port 0: one that the system chooses.
  // Errors   kConfig for another text; kLaunch if nothing can listen there.
  explicit MetricsServer(const std::string& address, double patience_s = 1);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  void set_text(std::string text);  // of the page from now on
  int port() const { return port_; }

 private:
  void serve();
  void answer(int connection);

  const double patience_s_;
  int listener_ = -1, wake_[2] = {-1, -1};
  int port_ = 0;
  std::mutex mutex_;
  std::string text_;
  std::thread thread_;
};

}  // namespace ashlar::launch
