// How it works.
//
//   pieces   --> stored boxes: pieces of a tensor, sorted by offset, that together are one box
//            whose
//                bytes are those of the first piece, then those of the second, ...
//   boxes    --> parts: a tensor's first box in part 1, its second in part 2, ..., because a
//                safetensors file can hold a name only once
//   a part   --> one file: header, then the tensors' memory (sources), in the order that
//                plan_safetensors chose; and one box in the index for each
//
// The header is made for the largest step and ids of zeros; stamped() overwrites these with the
// values of a save and pads with spaces, so that data begin at the same offset in every step.
#include "ashlar/checkpoint/save/stored_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/json_text.h"
#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

std::vector<int64_t> to_vector(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

FilePlan::Source source_of(const Piece& piece) {
  const int64_t width = size_of(piece.data.dtype);
  FilePlan::Source source{piece.data, piece.data.bytes(), piece.data.bytes(), {}};
  if (piece.strides.ndim() == 0) return source;
  int64_t run = 1;
  int d = piece.box.length.ndim() - 1;
  for (; d >= 0 && (piece.box.length[d] == 1 || piece.strides[d] == run); --d)
    run *= piece.box.length[d];
  source.run_bytes = run * width;
  for (int outer = 0; outer <= d; ++outer)
    source.outer.push_back({piece.box.length[outer], piece.strides[outer] * width});
  return source;
}

// A box as it is stored: the bytes of pieces one after another.
struct Stored {
  const LogicalTensor* logical;
  Box box;
  std::vector<const Piece*> pieces;
};

// If `next` follows `box` in the row-major order of a box that consists of the two, `box` becomes
// that box; else the result is false.
bool join_boxes(Box& box, const Box& next) {
  const int ndim = box.offset.ndim();
  int dim = 0;  // the outermost in which a box is not a single index, or they differ
  while (dim < ndim && box.length[dim] == 1 && next.length[dim] == 1 &&
         box.offset[dim] == next.offset[dim])
    ++dim;
  if (dim == ndim || box.offset[dim] + box.length[dim] != next.offset[dim]) return false;
  for (int d = dim + 1; d < ndim; ++d)
    if (box.offset[d] != next.offset[d] || box.length[d] != next.length[d]) return false;
  box.length[dim] += next.length[dim];
  return true;
}

// Joins the last box to the one before, as often as possible.
void join_last(std::vector<Stored>& boxes) {
  while (boxes.size() > 1 && join_boxes(boxes[boxes.size() - 2].box, boxes.back().box)) {
    std::vector<const Piece*>& pieces = boxes[boxes.size() - 2].pieces;
    pieces.insert(pieces.end(), boxes.back().pieces.begin(), boxes.back().pieces.end());
    boxes.pop_back();
  }
}

// Joins the pieces of one tensor to few boxes.
std::vector<Stored> joined(std::vector<const Piece*> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece* a, const Piece* b) {
    const auto x = a->box.offset.dims(), y = b->box.offset.dims();
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  });
  std::vector<Stored> boxes;
  for (const Piece* piece : pieces) {
    boxes.push_back({&piece->logical, piece->box, {piece}});
    join_last(boxes);
  }
  return boxes;
}

using NumberOf = std::unordered_map<std::string_view, size_t>;

std::map<std::string, std::string> metadata(const IndexFile& file, std::span<const Stored> boxes,
                                            const std::string& run_id) {
  std::vector<const Stored*> by_name;
  for (const Stored& stored : boxes) by_name.push_back(&stored);
  std::sort(by_name.begin(), by_name.end(),
            [](const Stored* a, const Stored* b) { return a->logical->name < b->logical->name; });
  std::string sharding = "{", shapes = "{";
  for (const Stored* stored : by_name) {
    for (std::string* text : {&sharding, &shapes}) {
      if (text->size() > 1) *text += ',';
      append_json_string(*text, stored->logical->name);
    }
    sharding += ":{\"saved_offsets\":";
    append_json_list(sharding, stored->box.offset.dims());
    sharding += '}';
    shapes += ':';
    append_json_list(shapes, stored->logical->global_shape.dims());
  }
  sharding += '}';
  shapes += '}';
  return {{"format", "pt"},
          {"DCP_VERSION", "1.0"},
          {"DCP_SHARDING_INFO", sharding},
          {"ashlar.v", "1"},
          {"ashlar.run_id", run_id},
          {"ashlar.step", std::to_string(kMaxStep)},
          {"ashlar.attempt", to_text(Id{})},
          {"ashlar.file_uuid", to_text(Id{})},
          {"ashlar.writer", std::to_string(file.writer)},
          {"ashlar.component", std::string(name_of(file.component))},
          {"ashlar.gshape", shapes}};
}

std::vector<TensorSpec> specs_of(std::span<const Stored> boxes) {
  std::vector<TensorSpec> specs;
  for (const Stored& stored : boxes) {
    for (const Piece* piece : stored.pieces)
      ASHLAR_ASSERT(piece->data.dtype == stored.logical->dtype &&
                    piece->data.numel() == piece->box.length.numel() &&
                    piece->logical.dtype == stored.logical->dtype &&
                    piece->logical.global_shape == stored.logical->global_shape &&
                    inside(piece->box, piece->logical.global_shape));
    specs.push_back({stored.logical->name, stored.logical->dtype, to_vector(stored.box.length)});
  }
  return specs;
}

// Plans one file of the boxes, and adds these to the tensors.
StoredFile plan_file(IndexFile about, std::span<const Stored> boxes, std::span<const Piece> pieces,
                     const std::string& run_id, uint32_t number, const NumberOf& number_of,
                     std::vector<IndexTensor>& tensors) {
  // This orders the tensors by alignment: layout.entries, not `boxes`, is the order of the file.
  const SafetensorsPlan layout =
      plan_safetensors(specs_of(boxes), metadata(about, boxes, run_id), HeaderStyle::kAligned);
  StoredFile file;
  file.plan.file = std::move(about);
  file.plan.head = layout.header;
  file.plan.file.size_bytes = layout.file_bytes;
  file.plan.file.data_begin = layout.data_begin;
  std::unordered_map<std::string_view, const Stored*> by_name;
  for (const Stored& stored : boxes) by_name[stored.logical->name] = &stored;
  for (const TensorEntry& entry : layout.entries) {
    const Stored& stored = *by_name[entry.name];
    tensors[number_of.at(entry.name)].boxes.push_back(
        {number, stored.box, layout.data_begin + entry.begin, std::nullopt});
    for (const Piece* piece : stored.pieces) {
      file.plan.sources.push_back(source_of(*piece));
      file.pieces.push_back(size_t(piece - pieces.data()));
    }
  }
  return file;
}

// Overwrites the value of a key of the metadata with one that is not longer.
void set_metadata(std::string& header, std::string_view key, std::string_view value) {
  const std::string opening = fmt::format("\"{}\":\"", key);
  const size_t size = header.size(), found = header.find(opening);
  ASHLAR_ASSERT(found != header.npos);
  const size_t begin = found + opening.size(), end = header.find('"', begin);
  ASHLAR_ASSERT(value.size() <= end - begin);
  header.replace(begin, end - begin, value);
  header.resize(size, ' ');
}

}  // namespace

StoredFiles plan_files(Component component, std::span<const Piece> pieces,
                       const std::string& run_id, int writer_rank) {
  StoredFiles stored;
  NumberOf number_of;
  std::vector<std::vector<const Piece*>> by_tensor;
  for (const Piece& piece : pieces) {
    const auto [found, added] = number_of.try_emplace(piece.logical.name, by_tensor.size());
    if (added) {
      by_tensor.emplace_back();
      stored.tensors.emplace_back().logical = piece.logical;
    }
    by_tensor[found->second].push_back(&piece);
  }
  std::vector<std::vector<Stored>> parts;
  for (std::vector<const Piece*>& tensor : by_tensor) {
    std::vector<Stored> boxes = joined(std::move(tensor));
    if (parts.size() < boxes.size()) parts.resize(boxes.size());
    for (size_t part = 0; part < boxes.size(); ++part)
      parts[part].push_back(std::move(boxes[part]));
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    IndexFile about;
    about.component = component;
    about.writer = uint32_t(writer_number(writer_rank));
    const bool streams = component == Component::kLoader && parts.size() == 1;
    about.path = fmt::format("{}/{}", name_of(component),
                             streams ? "streams-00000.safetensors"
                                     : shard_name(writer_rank, int(part) + 1, int(parts.size())));
    stored.files.push_back(plan_file(std::move(about), parts[part], pieces, run_id, uint32_t(part),
                                     number_of, stored.tensors));
  }
  return stored;
}

FilePlan stamped(const StoredFile& stored, std::span<std::byte* const> memory, int64_t step,
                 const Id& attempt) {
  FilePlan file = stored.plan;
  file.file.uuid = random_id();
  set_metadata(file.head, "ashlar.step", std::to_string(step));
  set_metadata(file.head, "ashlar.attempt", to_text(attempt));
  set_metadata(file.head, "ashlar.file_uuid", to_text(file.file.uuid));
  file.file.header_crc = crc32c(file.head);
  for (size_t i = 0; i < file.sources.size(); ++i)
    file.sources[i].tensor.data = memory[stored.pieces[i]];
  if (file.file.component != Component::kLoader) return file;
  for (const FilePlan::Source& source : std::exchange(file.sources, {})) {
    const size_t begin = file.head.size();
    file.head.resize(begin + size_t(source.bytes));
    HostSource().read(source, 0, std::as_writable_bytes(std::span(file.head)).subspan(begin));
  }
  return file;
}

}  // namespace ashlar::checkpoint
