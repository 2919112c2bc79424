#include "ashlar/checkpoint/writers/writer_part.h"

#include <fmt/core.h>

#include "ashlar/control/wire.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

// Adds `sign` times the length of its file's header to the offset of every box.
void shift_boxes(std::vector<IndexTensor>& tensors, const std::vector<IndexFile>& files,
                 int64_t sign) {
  for (IndexTensor& tensor : tensors)
    for (IndexBox& box : tensor.boxes) {
      ASHLAR_REQUIRE(box.file < files.size(), kCorrupt,
                     "tensor '{}' is in file {} of a writer that has {}", tensor.logical.name,
                     box.file, files.size());
      box.byte_offset += sign * files[box.file].data_begin;
    }
}

}  // namespace

Id layout_hash(const Index& index) {
  Index bare;
  bare.tensors = index.tensors;
  shift_boxes(bare.tensors, index.files, -1);
  for (const IndexFile& file : index.files) {
    IndexFile& data = bare.files.emplace_back();
    data.path = file.path;
    data.component = file.component;
    data.writer = file.writer;
    data.size_bytes = file.size_bytes - file.data_begin;
    data.chunk_crcs.assign(size_t(num_chunks(data.size_bytes)), 0);
  }
  return xxh3_128(build_index(bare));
}

// The attempt is random, so that every save has other generators.
uint64_t cover_seed(const Id& attempt) {
  return uint64_t(attempt[0]) << 32 | attempt[1] << 8 | attempt[2];
}

CoverHash cover_of(const Index& index) {
  CoverHash sum;
  for (const IndexTensor& tensor : index.tensors) {
    const CoverHasher hash(cover_seed(index.attempt), tensor.logical.name,
                           tensor.logical.global_shape.ndim());
    for (const IndexBox& box : tensor.boxes) sum += hash(box.box);
  }
  return sum;
}

std::vector<std::byte> encode(const WriterPart& part, bool with_boxes) {
  control::WireWriter out;
  put(out, part);
  out.put(part.layout);
  out.put(uint8_t(with_boxes));
  Index files;
  files.attempt = part.index.attempt;
  if (!with_boxes) files.files = part.index.files;
  out.put_block(build_index(with_boxes ? part.index : files));
  return out.take();
}

std::vector<WriterPart> decode_parts(std::span<const std::byte> entries) {
  std::vector<WriterPart> parts;
  control::WireReader in(entries);
  while (!in.rest().empty()) {
    WriterPart& part = parts.emplace_back();
    static_cast<RankTimes&>(part) = get_rank_times(in);
    part.layout = in.get<Id>();
    part.has_boxes = in.get<uint8_t>() != 0;
    part.index =
        parse_index(in.get_block(), fmt::format("part of writer {}", writer_number(part.rank)));
    ASHLAR_REQUIRE(!part.has_boxes || layout_hash(part.index) == part.layout, kCorrupt,
                   "part of writer {}: its boxes are not those that it names",
                   writer_number(part.rank));
  }
  return parts;
}

std::vector<int> KnownBoxes::lacking(std::span<const WriterPart> parts) const {
  std::vector<int> ranks;
  for (const WriterPart& part : parts) {
    const auto known = of_rank_.find(part.rank);
    if (!part.has_boxes && (known == of_rank_.end() || known->second.layout != part.layout))
      ranks.push_back(part.rank);
  }
  return ranks;
}

void KnownBoxes::complete(std::vector<WriterPart>& parts) {
  for (WriterPart& part : parts) {
    Boxes& known = of_rank_[part.rank];
    if (part.has_boxes) {
      known = {part.layout, part.index.tensors};
      shift_boxes(known.tensors, part.index.files, -1);
      continue;
    }
    ASHLAR_ASSERT(known.layout == part.layout);
    part.index.tensors = known.tensors;
    shift_boxes(part.index.tensors, part.index.files, 1);
    part.has_boxes = true;
  }
}

}  // namespace ashlar::checkpoint
