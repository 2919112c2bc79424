#include "ashlar/models/fingerprint.h"

#include <vector>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/file_sample.h"
#include "ashlar/core/rng.h"
#include "ashlar/models/hf/files.h"

namespace ashlar::models {
namespace {

class Hash {
 public:
  void add(uint64_t value) { value_ = splitmix64(value_ ^ value); }
  void add(std::span<const std::byte> bytes) { add(xxh3_64(bytes)); }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace

uint64_t model_fingerprint(FileSystem& files, const ModelSource& source) {
  Hash hash;
  if (!source.hugging_face) {
    hash.add(read_text(files, join(source.resolved, checkpoint::kCommitName)));
    return hash.value();
  }
  for (const std::string_view name : {kHfConfigFile, kHfIndexFile}) {
    const std::string path = join(source.resolved, std::string(name));
    if (files.stat(path, LinkPolicy::kFollow)) hash.add(read_text(files, path));
  }
  for (const HfShard& shard : open_hf_files(files, source.resolved).shards) {
    hash.add(std::string_view(shard.path).substr(shard.path.rfind('/') + 1));
    std::vector<std::byte> header(size_t(shard.data_begin));
    shard.file->read_at(header, 0);
    hash.add(header);
    hash.add(sample_hash(*shard.file));
  }
  return hash.value();
}

}  // namespace ashlar::models
