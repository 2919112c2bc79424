#include "ashlar/launch/rank_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "ashlar/core/pulse_hang.h"
#include "ashlar/core/text.h"

namespace ashlar::launch {
namespace {

constexpr size_t kMostHeld = 1000;  // lines

// "0-3,7", or "-" for the starter.
std::string ranks_text(const std::set<int>& ranks) {
  const std::vector<int> list(ranks.begin(), ranks.end());
  if (list == std::vector<int>{-1}) return "-";
  const std::string text = format_ranks(list);
  return text.substr(text.find(' ') + 1);
}

}  // namespace

std::string time_text(double unix_s) {
  const double whole = std::floor(unix_s);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(time_t(whole)),
                     int((unix_s - whole) * 1000));
}

RankLog::RankLog(FileSystem& files, std::string directory, Log& console,
                 std::function<double()> clock)
    : files_(files),
      directory_(std::move(directory)),
      console_(console),
      clock_(std::move(clock)) {}

RankLog::~RankLog() {
  write_all();
}

void RankLog::begin(int attempt) {
  write_all();
  attempt_ = attempt;
  std::erase_if(open_,
                [&](const auto& file) { return file.first.find("/ranks/") != std::string::npos; });
  try {  // the directory counts the attempt, should no rank say a word
    files_.make_directories(fmt::format("{}/ranks/{}", directory_, attempt_));
  } catch (const Error& error) {
    warn(error);
  }
}

void RankLog::add(const OutputLine& line, const std::string& host) {
  if (line.rank >= 0)
    append(fmt::format("{}/ranks/{}/{}.log", directory_, attempt_, line.rank), line.text);
  const auto same = std::ranges::find_if(held_, [&](const Held& held) {
    return held.text == line.text && !held.ranks.contains(line.rank);
  });
  if (same != held_.end())
    same->ranks.insert(line.rank);
  else
    held_.push_back({clock_(), host, line.text, {line.rank}});
  if (held_.size() > kMostHeld) {
    write_held(held_.front());
    held_.erase(held_.begin());
  }
}

void RankLog::flush() {
  const double until_s = clock_() - kFold_s;
  const auto fresh =
      std::ranges::find_if(held_, [&](const Held& held) { return held.time_s > until_s; });
  for (auto held = held_.begin(); held != fresh; ++held) write_held(*held);
  held_.erase(held_.begin(), fresh);
}

void RankLog::write_all() {
  for (const Held& held : std::exchange(held_, {})) write_held(held);
}

void RankLog::note(const std::string& text) {
  write_all();
  append(directory_ + "/log",
         fmt::format("{} {} launcher: {}", time_text(clock_()), attempt_, printable(text)));
}

// The console shows rank 0, which speaks for all, without its number.
void RankLog::write_held(const Held& held) {
  append(directory_ + "/log", fmt::format("{} {} {} {}: {}", time_text(held.time_s), attempt_,
                                          held.host.empty() ? "-" : held.host,
                                          ranks_text(held.ranks), printable(held.text)));
  if (held.ranks.contains(-1)) return;
  if (held.ranks == std::set<int>{0})
    console_.info("{}", held.text);
  else
    console_.info("{}: {}", format_ranks(std::vector<int>(held.ranks.begin(), held.ranks.end())),
                  held.text);
}

void RankLog::append(const std::string& path, const std::string& line) {
  try {
    std::unique_ptr<File>& file = open_[path];
    if (!file) {
      files_.make_directories(parent_of(path));
      file = files_.append(path);
    }
    const std::string row = line + "\n";
    file->write_at(std::as_bytes(std::span(row)), file->size());
  } catch (const Error& error) {
    warn(error);
  }
}

void RankLog::warn(const Error& error) {
  if (!std::exchange(warned_, true))
    console_.warn("the launcher's log is not complete: {}", error.what());
}

}  // namespace ashlar::launch
