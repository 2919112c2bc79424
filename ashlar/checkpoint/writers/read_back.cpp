#include "ashlar/checkpoint/writers/read_back.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "ashlar/checkpoint/format/stale_retry.h"
#include "ashlar/checkpoint/writers/save_channel.h"
#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

void read_file(FileSystem& files, const std::string& path, const IndexFile& entry,
               std::span<std::byte> buffer, RateLimit& limit, StaleRetry& retry,
               const std::function<void(int64_t)>& advance) {
  // Otherwise memory would serve small files, and all files if direct reads are refused.
  files.drop_cached_pages(path);
  const auto file = open_committed(files, path, entry.size_bytes, retry);
  for (int64_t chunk = 0; chunk < num_chunks(entry.size_bytes); ++chunk) {
    const int64_t begin = chunk * kChunkBytes;
    const auto bytes = buffer.first(size_t(std::min(kChunkBytes, entry.size_bytes - begin)));
    limit.spend(int64_t(bytes.size()));
    file->read_direct(bytes, begin);
    const uint32_t found = crc32c(bytes), written = entry.chunk_crcs[size_t(chunk)];
    ASHLAR_REQUIRE(found == written, kCorrupt,
                   "{}: chunk {} (bytes {} to {}): checksum is {:08x} but {:08x} was recorded; the "
                   "file is damaged",
                   path, chunk, begin, begin + int64_t(bytes.size()), found, written);
    advance(int64_t(bytes.size()));
  }
}

}  // namespace

std::vector<int> read_back_partners(const control::Tree& tree) {
  std::vector<int> order(size_t(tree.size()));
  std::iota(order.begin(), order.end(), 0);
  // Nodes in the order of their first ranks.
  std::vector<int> first(order.size(), tree.size());
  std::map<int, int> first_of_node;
  for (int rank = 0; rank < tree.size(); ++rank)
    first[size_t(rank)] = first_of_node.try_emplace(tree.node[size_t(rank)], rank).first->second;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return first[size_t(a)] < first[size_t(b)]; });
  std::vector<int> partner(order.size());
  for (size_t place = 0; place < order.size(); ++place)
    partner[size_t(order[place])] = order[(place + order.size() / 2) % order.size()];
  return partner;
}

void RateLimit::spend(int64_t bytes) {
  if (bytes_per_s_ <= 0) return;
  const double ahead_s = bytes_ / double(bytes_per_s_) - seconds_since(start_);
  if (ahead_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(ahead_s));
  bytes_ += double(bytes);
}

ReadBackResult read_back_files(FileSystem& files, const std::string& directory,
                               std::span<const IndexFile> what, int rank, RateLimit& limit,
                               const std::function<bool(int64_t)>& progress) {
  ReadBackResult result;
  bool goes_on = true;
  result.count = 1;
  const AlignedMemory memory = aligned_memory(kChunkBytes, "reading back");
  const std::span buffer(memory.get(), size_t{kChunkBytes});
  StaleRetry retry(files, directory);
  PhaseRecorder times(Clock::now());
  RankTimes& mine = result.ranks.emplace_back();
  mine.rank = rank;
  for (const IndexFile& entry : what) {
    const Clock::time_point begin = Clock::now();
    const std::string path = join(directory, entry.path);
    for (int tries = 1; tries <= 2; ++tries) {
      const int64_t before = result.bytes;
      try {
        read_file(files, path, entry, buffer, limit, retry, [&](int64_t bytes) {
          result.bytes += bytes;
          goes_on = progress(result.bytes);
          ASHLAR_REQUIRE(goes_on, kStorage, "{}", kGivenUp);
        });
        break;
      } catch (const Error& error) {
        result.bytes = before;
        if (tries == 1 && goes_on) continue;
        result.bad_rank = rank;
        result.damaged = error.kind() == ErrorKind::kCorrupt;
        result.why = error.what();
        return result;
      }
    }
    times.add(Phase::kVerify, begin, entry.size_bytes);
    mine.file_s.push_back(float(seconds_since(begin)));
  }
  mine.phases = times.times();
  return result;
}

ReadBackResult read_back_alone(FileSystem& files, const StepRef& step, int64_t bytes_per_s,
                               Log& log, const std::function<bool(int64_t)>& progress) {
  const VerifyReport report = verify_step(files, step.directory, VerifyLevel::kFiles, log);
  if (!report.ok()) return {1, 0, 0, true, report.findings.front().message};
  const StepReader reader(files, step.directory);
  RateLimit limit(bytes_per_s);
  return read_back_files(files, step.directory, reader.index().files, 0, limit, progress);
}

std::optional<std::string> damage_of(const ReadBackResult& result) {
  if (result.bad_rank < 0) return std::nullopt;
  ASHLAR_REQUIRE(result.damaged, kStorage, "rank {} cannot read it back: {}", result.bad_rank,
                 result.why);
  return result.why;
}

std::vector<std::byte> encode_files(const Id& attempt, std::vector<IndexFile> files) {
  Index index;
  index.attempt = attempt;
  index.files = std::move(files);
  return build_index(index);
}

std::vector<IndexFile> decode_files(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  return parse_index(bytes, "files to read back").files;
}

}  // namespace ashlar::checkpoint
