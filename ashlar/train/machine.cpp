#include "ashlar/train/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "ashlar/comm/agree.h"

namespace ashlar::train {

std::string host_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string machine_id() {
  std::array<char, 64> processes{};
  if (readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) < 0) return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return fmt::format("{} {} {}", host_name(), boot, processes.data());
}

bool is_first_of(comm::Group& ranks, std::string_view place, std::string_view label) {
  const std::vector<std::string> places = comm::all_said(ranks, place, label);
  return std::find(places.begin(), places.end(), place) - places.begin() == ranks.rank();
}

}  // namespace ashlar::train
