#include "ashlar/checkpoint/format/commit.h"

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/fields.h"

namespace ashlar::checkpoint {
namespace {

constexpr std::string_view kCrcKey = ",\"crc32c\":\"";
constexpr size_t kTailBytes = kCrcKey.size() + 8 + 3;  // ,"crc32c":"xxxxxxxx"}\n

nlohmann::ordered_json to_json(const FileDigest& digest) {
  nlohmann::ordered_json json;
  json["size"] = digest.size_bytes;
  json["crc32c"] = fmt::format("{:08x}", digest.crc);
  if (digest.xxh3) json["xxh3"] = fmt::format("{:016x}", *digest.xxh3);
  return json;
}

FileDigest parse_digest(const Fields& fields) {
  FileDigest digest;
  digest.size_bytes = fields.count("size");
  digest.crc = uint32_t(fields.hex("crc32c", 8));
  if (fields.has("xxh3")) digest.xxh3 = fields.hex("xxh3", 16);
  return digest;
}

void check_line(std::string_view text, const std::string& path) {
  const auto require = [&](bool condition, std::string_view message) {
    if (!condition) raise(ErrorKind::kCorrupt, "{}: {}", path, message);
  };
  require(int64_t(text.size()) <= kMaxCommitBytes, "longer than 4096 bytes");
  require(
      text.size() > kTailBytes && text.ends_with("\"}\n") &&
          text.substr(text.size() - kTailBytes).starts_with(kCrcKey),
      "does not end with ,\"crc32c\":\"xxxxxxxx\"} and one newline; it is cut short or damaged");
  const std::string recorded(text.substr(text.size() - 11, 8));
  const std::string found = fmt::format("{:08x}", crc32c(text.substr(0, text.size() - kTailBytes)));
  if (recorded != found)
    raise(ErrorKind::kCorrupt, "{}: checksum is {} but '{}' was recorded; the file is damaged",
          path, found, recorded);
}

}  // namespace

FileDigest digest_of(std::string_view bytes) {
  return {int64_t(bytes.size()), crc32c(bytes), xxh3_64(std::as_bytes(std::span(bytes)))};
}

std::string build_commit(const Commit& commit) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar";
  json["v"] = 1;
  json["step"] = commit.step;
  json["run_id"] = commit.run_id;
  json["attempt"] = to_text(commit.attempt);
  json["manifest"] = to_json(commit.manifest);
  json["index"] = to_json(commit.index);
  json["bytes"] = commit.bytes;
  json["files"] = commit.files;
  std::string line = json.dump();
  line.pop_back();  // the closing brace
  line += fmt::format("{}{:08x}\"}}\n", kCrcKey, crc32c(line));
  ASHLAR_ASSERT(int64_t(line.size()) <= kMaxCommitBytes);
  return line;
}

Commit parse_commit(std::string_view text, const std::string& path) {
  check_line(text, path);
  const Json json = parse_json(text.substr(0, text.size() - 1), path, ErrorKind::kCorrupt);
  const Fields fields(json, path);
  if (fields.text("format") != "ashlar")
    fields.fail("format is '{}'; expected 'ashlar'", fields.text("format"));
  if (fields.count("v") != 1)
    fields.fail("format version {} is unknown; this program reads version 1", fields.count("v"));
  Commit commit;
  commit.step = fields.count("step");
  if (commit.step > kMaxStep) fields.fail("step {} has more than 12 digits", commit.step);
  commit.run_id = fields.text("run_id");
  const auto attempt = parse_id(fields.text("attempt"));
  if (!attempt)
    fields.fail("attempt is '{}'; expected 32 lower-case hex digits", fields.text("attempt"));
  commit.attempt = *attempt;
  commit.manifest = parse_digest(fields.object("manifest"));
  commit.index = parse_digest(fields.object("index"));
  commit.bytes = fields.count("bytes");
  commit.files = fields.count("files");
  return commit;
}

}  // namespace ashlar::checkpoint
