#include "ashlar/launch/events.h"

#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "ashlar/core/clock.h"

namespace ashlar::launch {
namespace {

constexpr int kEventsVersion = 1;

template <class TimePoint>
double seconds_of(TimePoint time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void append_row(File& file, const std::string& row) {
  file.write_at(std::as_bytes(std::span(row)), file.size());
}

}  // namespace

EventLog::EventLog(FileSystem& files, const std::string& path, int64_t epoch, Notifier& notifier,
                   Log& log)
    : epoch_(epoch), log_(log), notifier_(notifier), file_(files.append(path)) {
  std::byte last{'\n'};
  if (file_->size() > 0) file_->read_at({&last, 1}, file_->size() - 1);
  if (last != std::byte{'\n'}) append_row(*file_, "\n");
}

void EventLog::add(const char* event, int attempt, const Ordered& members) {
  Ordered row{{"v", kEventsVersion},
              {"t", seconds_of(std::chrono::system_clock::now())},
              {"mono", seconds_of(Clock::now())},
              {"epoch", epoch_},
              {"attempt", attempt},
              {"event", event}};
  row.update(members);
  const std::string line = one_line(row) + "\n";
  notifier_.tell(line);
  try {
    append_row(*file_, line);
  } catch (const Error& error) {
    if (!std::exchange(warned_, true)) log_.warn("events.jsonl is not complete: {}", error.what());
  }
}

const char* name_of(EvidenceKind kind) {
  constexpr std::array kNames{"exit",    "signal",   "gone",  "out_of_memory", "suspended",
                              "missing", "disagree", "stuck", "silent",        "node_lost"};
  return kNames[size_t(kind)];
}

Ordered members_of(const Cause& cause) {
  Ordered evidence = Ordered::array();
  for (const Evidence& seen : cause.evidence)
    evidence.push_back({{"kind", name_of(seen.kind)}, {"rank", seen.rank}, {"text", seen.text}});
  return {{"class", name_of(cause.fault)},
          {"confidence", cause.confidence},
          {"rank", cause.rank},
          {"evidence", evidence}};
}

}  // namespace ashlar::launch
