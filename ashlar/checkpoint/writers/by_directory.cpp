#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/writers/coordination.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {

FailedPart failed_part(const Id& attempt, int64_t step, const Error& error, bool begun) {
  std::string why = error.what();
  const std::string start = fmt::format("step {} is not saved: ", step);
  if (why.starts_with(start)) why.erase(0, start.size());
  return {attempt, step, std::move(why), begun};
}

void Coordination::require_going_on(int64_t step) const {
  ASHLAR_REQUIRE(!given_up(), kStorage, "step {} is not saved: {}", step, kGivenUp);
}

namespace {

// The functions that are the same whenever nothing is sent to followers.
class Unlinked : public Coordination {
 public:
  std::string host() const override { return ""; }
  void begin(const Id&, int64_t) override {}
  void status(const Id&, Phase, int64_t, int64_t) override {}
  void await_heard(const FailedPart&) override {}
  void decide(const AttemptResult&) override {}
  std::optional<ReadBackResult> read_back(const Id&, int64_t, std::vector<IndexFile>,
                                          const ReadBackWork&) override {
    return std::nullopt;
  }
  bool serves() const override { return false; }
  void serve(double, const ReadBackWork&) override { ASHLAR_ASSERT(false && "nobody is asked"); }
};

class OneWriter final : public Unlinked {
 public:
  std::optional<std::string> publish(AttemptFiles&) override {
    ASHLAR_ASSERT(false && "the only writer leads");
    return std::nullopt;
  }
  void fail(FailedPart&) override { ASHLAR_ASSERT(false && "the only writer leads"); }
  std::optional<AllParts> collect(AttemptFiles& own) override {
    require_going_on(own.step());
    return std::nullopt;
  }
};

// The file of a follower that failed appears with all of the text, or not at all.  If the directory
// that the follower made is gone, the leader has ended the attempt already.
void write_failure(FileSystem& files, const std::string& directory, const std::string& name,
                   const FailedPart& part) {
  if (part.begun && !files.stat(directory)) return;
  if (!part.begun) files.make_directories(directory);
  const std::string path = join(directory, name), aside = path + ".part";
  files.remove_all(aside);  // what the try before left
  const auto file = files.create(aside);
  file->write_at(std::as_bytes(std::span(part.why)), 0);
  file->sync();
  file->close();
  files.rename_new(aside, path);
}

class ByDirectory final : public Unlinked {
 public:
  ByDirectory(FileSystem& files, std::string root, const DirectoryOptions& options, Log& log)
      : files_(files), root_(std::move(root)), options_(options), log_(log) {}

  std::optional<std::string> publish(AttemptFiles& own) override {
    own.publish_part();
    return std::nullopt;
  }

  void fail(FailedPart& part) override {
    constexpr int kTries = 4;
    const std::string directory = join(root_, tmp_name(part.step, to_text(part.attempt)));
    const std::string name = part_error_name(options_.writer_rank);
    double delay_s = options_.retry_delay_s;
    for (int attempt = 1; attempt <= kTries; ++attempt, delay_s *= 4) {
      try {
        return write_failure(files_, directory, name, part);
      } catch (const std::exception& error) {
        if (attempt == kTries)
          return log_.warn("the leader was not told, and will wait until its time is out: {}",
                           error.what());
        std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
      }
    }
  }

  // Looks for the parts after 1, 2, 4, ... ms, later ten times a second, and once more when the
  // time is over.
  std::optional<AllParts> collect(AttemptFiles& own) override {
    const Clock::time_point start = Clock::now();
    double delay_s = 0.001;
    for (;;) {
      require_going_on(own.step());
      const bool late = seconds_since(start) >= options_.timeout_s;
      std::vector<int> missing = own.missing_writers();
      if (missing.empty()) return std::nullopt;
      for (int& writer : missing) writer = writer_number(writer);
      ASHLAR_REQUIRE(
          !late, kStorage,
          "step {} is not saved: waiting for parts: {}: writer{} {} of {} did not finish "
          "within {:.4g} s (checkpoint writers must share this directory)",
          own.step(), own.directory(), missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
          options_.num_writers, options_.timeout_s);
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
      delay_s = std::min(0.1, 2 * delay_s);
    }
  }

 private:
  FileSystem& files_;
  const std::string root_;
  const DirectoryOptions options_;
  Log& log_;
};

}  // namespace

std::unique_ptr<Coordination> alone() {
  return std::make_unique<OneWriter>();
}

std::unique_ptr<Coordination> by_directory(FileSystem& files, std::string root,
                                           const DirectoryOptions& options, Log& log) {
  return std::make_unique<ByDirectory>(files, std::move(root), options, log);
}

}  // namespace ashlar::checkpoint
