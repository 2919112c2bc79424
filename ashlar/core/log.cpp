#include "ashlar/core/log.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ashlar/core/text.h"

namespace ashlar {
namespace {

// Writes each line with one call, so that lines of several processes do not mix.
void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

constexpr std::string_view kClearLine = "\r\033[K";

std::string amount(double value, const std::string& unit) {
  if (unit != "B") return format_count(value);
  if (value < 1000) return fmt::format("{:.0f} B", value);
  if (value < 999.95e3) return fmt::format("{:.1f} KB", value / 1e3);
  if (value < 999.95e6) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.1f} GB", value / 1e9);
}

}  // namespace

Log::Log()
    : sink_([](std::string_view line) { put(fmt::format("{}\n", line)); }),
      interactive_(isatty(STDERR_FILENO) == 1) {}

Log::Log(Sink sink) : sink_(std::move(sink)) {}

void Log::write(std::string_view prefix, const std::string& text) {
  put_printable(printable(fmt::format("{}{}", prefix, text)));
}

void Log::lines(std::string_view text) {
  put_printable(printable(text, NewLines::kKeep));
}

void Log::put_printable(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(line_open_, false)) put(kClearLine);
  sink_(text);
}

void Log::rewrite_line(const std::string& text) {
  if (!interactive_) return;
  const std::lock_guard lock(mutex_);
  put(fmt::format("{}{}", kClearLine, printable(text)));
  line_open_ = true;
}

void Log::close_line() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(line_open_, false)) put("\n");
}

Progress::Progress(Log& log, std::string label, int64_t total, std::string unit, Clock clock)
    : log_(log),
      label_(std::move(label)),
      unit_(std::move(unit)),
      clock_(std::move(clock)),
      total_(total),
      start_(clock_()),
      last_(start_) {}

Progress::~Progress() {
  if (!printed_) return;
  const std::string text = line(std::chrono::duration<double>(clock_() - start_).count());
  if (log_.interactive()) {
    log_.rewrite_line(text);
    log_.close_line();
  } else {
    log_.write("", text);
  }
}

void Progress::set(int64_t done) {
  done_ = done;
  const auto now = clock_();
  const double since_start = std::chrono::duration<double>(now - start_).count();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (since_last < (!printed_ ? 2.0 : log_.interactive() ? 0.2 : 10.0)) return;
  if (log_.interactive())
    log_.rewrite_line(line(since_start));
  else
    log_.write("", line(since_start));
  printed_ = true;
  last_ = now;
}

std::string Progress::line(double seconds) const {
  const double done = static_cast<double>(done_), total = static_cast<double>(total_);
  if (total_ <= 0 && unit_ == "s") return fmt::format("{}  {}", label_, format_duration(seconds));
  const double rate = seconds > 0 ? done / seconds : 0;
  const std::string name = unit_ == "B" ? "" : " " + unit_;
  const std::string speed = fmt::format("{}{}/s", amount(rate, unit_), name);
  if (total_ <= 0) return fmt::format("{}  {}{} {}", label_, amount(done, unit_), name, speed);
  std::string text =
      fmt::format("{}  {:.0f}% {}/{}{} {}", label_, 100 * std::min(1.0, done / total),
                  amount(done, unit_), amount(total, unit_), name, speed);
  if (done_ >= total_) return text + fmt::format(" in {}", format_duration(seconds));
  if (rate > 0)
    text +=
        fmt::format(" ETA {}", format_duration(std::max(1.0, std::round((total - done) / rate))));
  return text;
}

}  // namespace ashlar
