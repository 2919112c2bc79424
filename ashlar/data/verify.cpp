#include "ashlar/data/verify.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "ashlar/core/checksum.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/threads.h"
#include "ashlar/data/prepare.h"

namespace ashlar::data {
namespace {

constexpr int64_t kVerifyBytes = 1 << 20;

struct Target {
  std::string prefix, suffix;
  int64_t bytes;
  uint32_t expected;

  std::string path() const { return prefix + suffix; }
};

// The files of a dataset with a sidecar that have a checksum in it.
std::vector<Target> targets_of(const IndexedDataset& dataset) {
  const Sidecar& sidecar = *dataset.sidecar();
  const int64_t tokens = dataset.index().num_tokens();
  std::vector<Target> targets = {
      {dataset.prefix(), ".bin", tokens * size_of(dataset.index().type()), sidecar.bin_crc32c}};
  if (sidecar.mask)
    targets.push_back({dataset.prefix(), ".mask", mask_bytes(tokens), sidecar.mask->crc32c});
  return targets;
}

// Reads all of the file and returns its fault, or "".  Calls go_on(bytes of the chunk) after each
// chunk; false ends reading without a finding.
std::string compare(FileSystem& files, const Target& target, function_ref<bool(int64_t)> go_on) {
  const auto file = files.open(target.path());
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kVerifyBytes, target.bytes)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < target.bytes;) {
    const int64_t count = std::min(kVerifyBytes, target.bytes - at);
    const auto part = std::span(chunk).first(static_cast<size_t>(count));
    file->read_at(part, at);
    crc = crc32c(part, crc);
    at += count;
    if (!go_on(count)) return "";
  }
  if (crc == target.expected) return "";
  return fmt::format(
      "{}: checksum is {:08x} but {}.json recorded {:08x}; the file is damaged: restore it from a "
      "copy or prepare it again",
      target.path(), crc, target.prefix, target.expected);
}

std::string finding_of(FileSystem& files, const std::string& prefix, Log& log,
                       DatasetReport& report) {
  const IndexedDataset dataset(files, prefix);
  report.documents = dataset.index().num_documents();
  report.tokens = dataset.index().num_tokens();
  report.bytes = dataset.index().num_tokens() * size_of(dataset.index().type());
  report.has_checksum = dataset.sidecar().has_value();
  if (!report.has_checksum) return "";
  const std::vector<Target> targets = targets_of(dataset);
  report.bytes = 0;
  for (const Target& target : targets) report.bytes += target.bytes;
  tokenizer_of_dataset(files, prefix);
  Progress progress(log, "verifying " + prefix, report.bytes, "B");
  for (const Target& target : targets) {
    std::string finding = compare(files, target, [&](int64_t bytes) {
      progress.advance(bytes);
      return true;
    });
    if (!finding.empty()) return finding;
  }
  return "";
}

}  // namespace

DatasetReport verify_dataset(FileSystem& files, const std::string& prefix, Log& log) {
  const auto is_there = [&](const char* suffix) {
    return files.stat(prefix + suffix, LinkPolicy::kFollow).has_value();
  };
  ASHLAR_REQUIRE(
      is_there(".idx") || is_there(".bin") || is_there(".json"), kData,
      "{}: there is no {}.idx, .bin or .json; expected the --out of `ashlar data prepare`{}",
      prefix, prefix, why_no_index(files, prefix));
  DatasetReport report;
  try {
    report.finding = finding_of(files, prefix, log, report);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
    report.finding = error.what();
  }
  return report;
}

struct BackgroundVerify::State {
  void run() {
    // On Linux this is the priority of the calling thread alone.  If it is refused, the thread
    // competes with compute, and has the same result.
    setpriority(PRIO_PROCESS, 0, 19);
    const auto start = Clock::now();
    std::optional<Error> found;
    try {
      for (size_t i = 0; i < targets.size() && !found && !stopped(); ++i) {
        const std::string finding = compare(*files, targets[i], [&](int64_t bytes) {
          read += bytes;
          // The time until which this many bytes may be read.  A thread that is late does not wait;
          // one that is early waits here, where `stop` ends the wait at once.
          const std::chrono::duration<double> due(double(read) / bytes_per_s);
          std::unique_lock lock(mutex);
          return !wake.wait_until(lock, start + std::chrono::duration_cast<Clock::duration>(due),
                                  [&] { return stop; });
        });
        if (!finding.empty()) found.emplace(ErrorKind::kData, finding);
      }
    } catch (const Error& error) {
      found = error;
    } catch (const std::bad_alloc&) {
      found.emplace(ErrorKind::kMemory, report_of(std::current_exception()).message);
    }
    const std::lock_guard lock(mutex);
    failure = std::move(found);
    ended = true;
    wake.notify_all();
  }
  bool stopped() {
    const std::lock_guard lock(mutex);
    return stop;
  }

  FileSystem* files = nullptr;
  std::vector<Target> targets;
  double bytes_per_s = 0;
  int64_t total = 0;
  std::atomic<int64_t> read{0};
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false, ended = false;
  std::optional<Error> failure;
  std::thread thread;
};

BackgroundVerify::BackgroundVerify(FileSystem& files, const Sources& sources, double bytes_per_s)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.files = &files;
  s.bytes_per_s = bytes_per_s;
  for (const auto* part : {&sources.train, &sources.validation})
    for (const Source& source : *part) {
      const auto& sidecar = source.dataset->sidecar();
      const bool known = std::any_of(s.targets.begin(), s.targets.end(),
                                     [&](const Target& t) { return t.prefix == source.prefix(); });
      if (!sidecar || known) continue;  // training and validation may be parts of one dataset
      for (Target& target : targets_of(*source.dataset)) {
        s.total += target.bytes;
        s.targets.push_back(std::move(target));
      }
    }
  s.ended = s.targets.empty();
  if (!s.ended) s.thread = start_thread("that verifies the data", [&s] { s.run(); });
}

BackgroundVerify::~BackgroundVerify() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

std::optional<Error> BackgroundVerify::failure(double patience_s) {
  std::unique_lock lock(state_->mutex);
  state_->wake.wait_for(lock, std::chrono::duration<double>(patience_s),
                        [&] { return state_->ended; });
  return state_->failure;
}

bool BackgroundVerify::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended;
}

int64_t BackgroundVerify::bytes_done() const {
  return state_->read;
}

int64_t BackgroundVerify::bytes_total() const {
  return state_->total;
}

}  // namespace ashlar::data
