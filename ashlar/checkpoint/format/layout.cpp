#include "ashlar/checkpoint/format/layout.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 12;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("step-{:012}", step);
}

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (name.size() != kStepPrefix.size() + kStepDigits || !name.starts_with(kStepPrefix))
    return std::nullopt;
  int64_t step = 0;
  for (const char c : name.substr(kStepPrefix.size())) {
    if (!is_digit(c)) return std::nullopt;
    step = step * 10 + (c - '0');
  }
  return step;
}

std::optional<int64_t> step_of_path(std::string_view path) {
  const size_t end = path.find_last_not_of('/');
  path = path.substr(0, end == path.npos ? 0 : end + 1);
  return parse_step_name(path.substr(path.rfind('/') + 1));  // npos + 1 is 0
}

std::string tmp_name(int64_t step, std::string_view attempt) {
  return fmt::format("{}{:012}-{}", kTmpPrefix, step, attempt);
}

std::string verdict_name(int64_t step, std::string_view attempt) {
  return fmt::format("{}-{}.json", step_name(step), attempt);
}

std::string shard_name(int writer_rank, int part, int num_parts) {
  return fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors", writer_number(writer_rank),
                     part, num_parts);
}

std::string part_name(int writer_rank) {
  return fmt::format("part-{:05}.bin", writer_number(writer_rank));
}

std::string part_error_name(int writer_rank) {
  return fmt::format("part-{:05}.error", writer_number(writer_rank));
}

// Asks the kernel: the processor's random instructions take milliseconds on some virtual machines.
Id random_id() {
  Id id;
  ASHLAR_REQUIRE(getrandom(id.data(), id.size(), 0) == ssize_t(id.size()), kStorage,
                 "getrandom: {}", strerror(errno));
  return id;
}

std::string to_text(const Id& id) {
  std::string text;
  for (const uint8_t byte : id) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<Id> parse_id(std::string_view text) {
  Id id{};
  if (text.size() != 2 * id.size()) return std::nullopt;
  for (size_t i = 0; i < id.size(); ++i) {
    const int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    id[i] = uint8_t(high * 16 + low);
  }
  return id;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
                  c == '_' || c == '-';
         });
}

bool is_safe_path(std::string_view path) {
  if (path.find('\\') != path.npos || path.find('\0') != path.npos) return false;
  for (size_t begin = 0;;) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == path.size()) return true;
    begin = end + 1;
  }
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace ashlar::checkpoint
