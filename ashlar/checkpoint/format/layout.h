// Names inside a checkpoint root, and identifiers of runs, attempts and files.
//
//   ROOT/LATEST                                   advisory: name of the newest step
//   ROOT/step-000000012000/                       immutable once visible
//     COMMIT manifest.json index.bin
//     model/shard-00001-model-00001-of-00001.safetensors  optim/...  loader/...  extra/...
//   ROOT/.tmp-step-000000012000-ATTEMPT/          being written
//     part-00002.bin or part-00002.error          writer 2 is done, or failed; gone when committed
//   ROOT/.trash-UUID/                             being deleted
//   ROOT/.bad/step-000000012000-ATTEMPT.json      failed; beside it lie quarantined steps
//   ROOT/.verified/step-000000012000-ATTEMPT.json passed a deep verification
//   ROOT/.superseded/step-000000012000-ATTEMPT/   a run went back to an earlier step
//   ROOT/.lease/trainer.json                      the process that trains into this root
//   ROOT/.lease/step-000000012000-ATTEMPT/        readers and pin of the step (step_guard.h)
//   ROOT/.lease/fence-TOKEN/                      what the process with that token moves (fence.h)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar::checkpoint {

inline constexpr const char* kCommitName = "COMMIT";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kIndexName = "index.bin";
inline constexpr const char* kLatestName = "LATEST";
inline constexpr const char* kBadDirectory = ".bad";
inline constexpr const char* kSupersededDirectory = ".superseded";
inline constexpr const char* kVerifiedDirectory = ".verified";
inline constexpr const char* kLeaseDirectory = ".lease";
inline constexpr const char* kTrashPrefix = ".trash-";
inline constexpr const char* kTmpPrefix = ".tmp-step-";
inline constexpr const char* kPartPrefix = "part-";

inline constexpr int64_t kMaxLeaseBytes = 4096;       // of a file under .lease
inline constexpr int64_t kMaxStep = 999'999'999'999;  // 12 digits: lexical order is numeric order

std::string step_name(int64_t step);                            // "step-000000012000"
std::optional<int64_t> parse_step_name(std::string_view name);  // nullopt: not such a name
std::optional<int64_t> step_of_path(std::string_view path);     // of its last name
std::string tmp_name(int64_t step, std::string_view attempt);
// "step-000000012000-ATTEMPT.json"
std::string verdict_name(int64_t step, std::string_view attempt);
// Writers are ranks from 0; in names of files, and in messages, they have numbers from 1.
constexpr int writer_number(int writer_rank) {
  return writer_rank + 1;
}
std::string shard_name(int writer_rank, int part, int num_parts);  // part: from 1
std::string part_name(int writer_rank);                            // "part-00002.bin" of rank 1
std::string part_error_name(int writer_rank);                      // "part-00002.error"

// 128 random bits from the system; their text form is 32 lower-case hex digits.
using Id = std::array<uint8_t, 16>;
Id random_id();
std::string to_text(const Id& id);
std::optional<Id> parse_id(std::string_view text);

// A name usable as a file under extra/: letters, digits, '.', '_', '-', not starting with '.'.
bool is_plain_name(std::string_view name);
// A relative path without "..", ".", empty parts or backslashes.
bool is_safe_path(std::string_view path);

std::string utc_now();  // "2026-01-31T12:34:56Z"

}  // namespace ashlar::checkpoint
