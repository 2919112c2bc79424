// How it works.  A plan is made inside save(), before anything is written:
//
//   pieces of a component --> parts: a tensor's first piece in part 1, its second in part 2, ...,
//                             because a safetensors file holds a name once
//   each part             --> one file: header (head), then the tensors' memory (sources), in the
//                             order that plan_safetensors chose; and one box in the index for each
//   each extra file       --> one file, its bytes in head, and one blob in the index
//
// What is copied here (loader tensors, extra files) goes into head; what the threads copy later
// stays a pointer in sources.  The index lacks the files, since their checksums come with the
// chunks.  When the last chunk is written StepWriter goes on: join_files(); the leader of several
// writers merges their parts and calls check_cover(), which for one writer happens here; then
// complete(), after which the index is one that parse_index takes.
#include "ashlar/checkpoint/save_plan.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "ashlar/checkpoint/boxes.h"
#include "ashlar/checkpoint/cover.h"
#include "ashlar/checkpoint/safetensors.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

std::vector<int64_t> to_vector(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

bool offset_less(const IndexBox& a, const IndexBox& b) {
  const auto x = a.box.offset.dims(), y = b.box.offset.dims();
  return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
}

void sort_boxes(Index& index) {
  for (IndexTensor& tensor : index.tensors)
    std::stable_sort(tensor.boxes.begin(), tensor.boxes.end(), offset_less);
}

class Planner {
 public:
  Planner(const SaveRequest& request, const std::string& run_id, const Id& attempt, int writer,
          int num_writers)
      : request_(request) {
    plan_.step = request.step;
    plan_.writer = writer;
    plan_.num_writers = num_writers;
    plan_.attempt = plan_.index.attempt = attempt;
    plan_.run_id = run_id;
    plan_.whole.assign(request.whole.begin(), request.whole.end());
  }

  SavePlan plan() {
    add_component(Component::kModel, request_.model);
    add_component(Component::kOptim, request_.optim);
    add_component(Component::kLoader, request_.loader);
    for (const Blob& blob : request_.extra) add_blob(blob);
    // The boxes of several writers are complete only when the leader has joined their parts.
    if (plan_.num_writers == 1) check_cover(plan_);
    sort_boxes(plan_.index);  // a follower's part is an index too
    start_manifest();
    expect_bytes();
    return std::move(plan_);
  }

 private:
  void add_component(Component component, std::span<const Piece> pieces) {
    std::vector<std::vector<const Piece*>> parts;
    std::unordered_map<std::string_view, size_t> seen;
    for (const Piece& piece : pieces) {
      const size_t part = seen[piece.logical.name]++;
      if (part == parts.size()) parts.emplace_back();
      parts[part].push_back(&piece);
    }
    for (size_t part = 0; part < parts.size(); ++part)
      add_shard(component, parts[part], int(part), int(parts.size()));
  }

  void add_shard(Component component, std::span<const Piece* const> pieces, int part,
                 int num_parts) {
    FilePlan file;
    file.file.component = component;
    file.file.writer = uint32_t(plan_.writer);
    file.file.uuid = random_id();
    const bool streams = component == Component::kLoader && num_parts == 1;
    file.file.path =
        std::string(name_of(component)) + "/" +
        (streams ? "streams-00000.safetensors" : shard_name(plan_.writer, part + 1, num_parts));
    std::vector<TensorSpec> specs;
    std::unordered_map<std::string_view, const Piece*> by_name;
    for (const Piece* piece : pieces) {
      ASHLAR_ASSERT(piece->data.device == Device::kCpu &&
                    piece->data.dtype == piece->logical.dtype &&
                    piece->data.numel() == piece->box.length.numel() &&
                    inside(piece->box, piece->logical.global_shape));
      specs.push_back({piece->logical.name, piece->logical.dtype, to_vector(piece->box.length)});
      by_name[piece->logical.name] = piece;
    }
    // This orders the tensors by alignment: layout.entries, not `pieces`, is the order of the file.
    const SafetensorsPlan layout =
        plan_safetensors(specs, metadata(file.file, pieces), HeaderStyle::kAligned);
    file.head = layout.header;
    file.file.size_bytes = layout.file_bytes;
    file.file.data_begin = layout.data_begin;
    file.file.header_crc = crc32c(layout.header);
    std::unordered_map<std::string_view, int64_t> begin_of;
    for (const TensorEntry& entry : layout.entries) {
      const Piece& piece = *by_name[entry.name];
      begin_of[piece.logical.name] = layout.data_begin + entry.begin;
      if (component == Component::kLoader)
        file.head.append(reinterpret_cast<const char*>(piece.data.data), size_t(entry.bytes()));
      else
        file.sources.push_back({piece.data.data, entry.bytes()});
    }
    // Boxes in the order of the request, so that the index lists tensors in model order.
    for (const Piece* piece : pieces) add_box(*piece, begin_of[piece->logical.name]);
    add_file(std::move(file));
  }

  std::map<std::string, std::string> metadata(const IndexFile& file,
                                              std::span<const Piece* const> pieces) const {
    nlohmann::json sharding = nlohmann::json::object(), shapes = nlohmann::json::object();
    for (const Piece* piece : pieces) {
      sharding[piece->logical.name]["saved_offsets"] = to_vector(piece->box.offset);
      shapes[piece->logical.name] = to_vector(piece->logical.global_shape);
    }
    return {{"format", "pt"},
            {"DCP_VERSION", "1.0"},
            {"DCP_SHARDING_INFO", sharding.dump()},
            {"ashlar.v", "1"},
            {"ashlar.run_id", plan_.run_id},
            {"ashlar.step", std::to_string(plan_.step)},
            {"ashlar.attempt", to_text(plan_.attempt)},
            {"ashlar.file_uuid", to_text(file.uuid)},
            {"ashlar.writer", std::to_string(file.writer)},
            {"ashlar.component", std::string(name_of(file.component))},
            {"ashlar.gshape", shapes.dump()}};
  }

  void add_box(const Piece& piece, int64_t byte_offset) {
    const auto [found, added] =
        tensor_of_.try_emplace(piece.logical.name, plan_.index.tensors.size());
    if (added) plan_.index.tensors.emplace_back().logical = piece.logical;
    IndexTensor& tensor = plan_.index.tensors[found->second];
    ASHLAR_ASSERT(tensor.logical.dtype == piece.logical.dtype &&
                  tensor.logical.global_shape == piece.logical.global_shape);
    tensor.boxes.push_back({uint32_t(plan_.files.size()), piece.box, byte_offset, std::nullopt});
  }

  void add_blob(const Blob& blob) {
    ASHLAR_ASSERT(is_plain_name(blob.name));
    ASHLAR_REQUIRE(blob_names_.insert(blob.name).second, kConfig,
                   "two extra files of step {} are named '{}'", plan_.step, blob.name);
    FilePlan file;
    file.file.path = "extra/" + blob.name;
    file.file.component = Component::kExtra;
    file.file.kind = blob.json ? FileKind::kJson : FileKind::kBlob;
    file.file.uuid = random_id();
    file.file.size_bytes = int64_t(blob.bytes.size());
    file.head = blob.bytes;
    plan_.index.blobs.push_back({blob.name, blob.json, uint32_t(plan_.files.size()), 0,
                                 file.file.size_bytes, crc32c(blob.bytes)});
    add_file(std::move(file));
  }

  void add_file(FilePlan file) {
    file.file.chunk_crcs.assign(size_t(num_chunks(file.file.size_bytes)), 0);
    plan_.bytes += file.file.size_bytes;
    plan_.files.push_back(std::move(file));
  }

  // The bytes of all writers' files, without the headers of the other writers, which are small.
  void expect_bytes() {
    for (const LogicalTensor& tensor : plan_.whole)
      plan_.bytes_to_expect += tensor.global_shape.numel() * size_of(tensor.dtype);
    for (const FilePlan& file : plan_.files)
      if (file.sources.empty()) plan_.bytes_to_expect += file.file.size_bytes;  // loader, extra
    plan_.bytes_to_expect = std::max(plan_.bytes_to_expect, plan_.bytes);
  }

  void start_manifest() {
    Manifest& manifest = plan_.manifest;
    manifest.run_id = plan_.run_id;
    manifest.step = plan_.step;
    manifest.attempt = plan_.attempt;
    manifest.created = utc_now();
    manifest.aliases = request_.aliases;
    manifest.sections = request_.sections;
  }

  const SaveRequest& request_;
  SavePlan plan_;
  std::unordered_map<std::string, size_t> tensor_of_;
  std::set<std::string> blob_names_;
};

using TensorNumbers = std::unordered_map<std::string, size_t>;  // name -> place in Index::tensors

// Gives every state optim.<state>.<parameter> its parameter as parent.  A state has no dot in its
// own name; the parameter's name may have many.
void link_states(Index& index, const TensorNumbers& places) {
  for (IndexTensor& tensor : index.tensors) {
    const std::string& name = tensor.logical.name;
    if (tensor.logical.role != Role::kOptimizerState || !name.starts_with("optim.")) continue;
    const size_t dot = name.find('.', 6);
    if (dot == name.npos) continue;
    const auto found = places.find(name.substr(dot + 1));
    if (found != places.end()) tensor.parent = uint32_t(found->second);
  }
}

void add_aliases(SavePlan& plan, const TensorNumbers& places) {
  for (const auto& [name, stored] : plan.manifest.aliases) {
    const auto found = places.find(stored);
    ASHLAR_REQUIRE(found != places.end() && !places.contains(name), kCorrupt,
                   "step {} is not saved: '{}' stands for '{}', but {}", plan.step, name, stored,
                   found == places.end() ? "no writer has that tensor" : "both names are stored");
    IndexTensor alias = plan.index.tensors[found->second];
    alias.logical.name = name;
    alias.alias = true;
    plan.index.tensors.push_back(std::move(alias));
  }
}

// The tensors of model and optimizer must be plan.whole, no more and no less.
void check_whole(const SavePlan& plan) {
  if (plan.whole.empty()) return;
  std::map<std::string_view, const LogicalTensor*> found;
  for (const IndexTensor& tensor : plan.index.tensors) {
    const Component component = component_of(plan.index, tensor);
    if (component == Component::kModel || component == Component::kOptim)
      found[tensor.logical.name] = &tensor.logical;
  }
  for (const LogicalTensor& wanted : plan.whole) {
    const auto place = found.find(wanted.name);
    ASHLAR_REQUIRE(place != found.end(), kCorrupt,
                   "step {} is not saved: tensor '{}' {}: no writer has it", plan.step, wanted.name,
                   wanted.global_shape.to_string());
    const LogicalTensor& has = *place->second;
    ASHLAR_REQUIRE(has.dtype == wanted.dtype && has.global_shape == wanted.global_shape, kCorrupt,
                   "step {} is not saved: tensor '{}' is {} {} but {} {} is expected", plan.step,
                   wanted.name, name_of(has.dtype), has.global_shape.to_string(),
                   name_of(wanted.dtype), wanted.global_shape.to_string());
    found.erase(place);
  }
  ASHLAR_REQUIRE(found.empty(), kCorrupt,
                 "step {} is not saved: tensor '{}' is not one of this model and its optimizer",
                 plan.step, found.begin()->first);
}

}  // namespace

SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt,
                        int writer, int num_writers) {
  ASHLAR_ASSERT(1 <= writer && writer <= num_writers);
  ASHLAR_ASSERT(writer == 1 || (request.loader.empty() && request.extra.empty() &&
                                request.sections.empty() && request.aliases.empty()));
  return Planner(request, run_id, attempt, writer, num_writers).plan();
}

void join_files(SavePlan& plan) {
  for (const FilePlan& file : plan.files) plan.index.files.push_back(file.file);
}

// One sum over all tensors proves exact cover; only if it differs is each tensor swept.
void check_cover(const SavePlan& plan) {
  // The attempt is random, so that every save draws other generators.
  const uint64_t seed = uint64_t(plan.attempt[0]) << 32 | plan.attempt[1] << 8 | plan.attempt[2];
  CoverHash found, expected;
  for (const IndexTensor& tensor : plan.index.tensors) {
    const LogicalTensor& logical = tensor.logical;
    const CoverHasher hash(seed, logical.name, logical.global_shape.ndim());
    expected += hash(Box::whole(logical.global_shape));
    for (const IndexBox& box : tensor.boxes) found += hash(box.box);
  }
  if (found == expected) return;
  for (const IndexTensor& tensor : plan.index.tensors) {
    std::vector<Box> boxes;
    for (const IndexBox& box : tensor.boxes) boxes.push_back(box.box);
    const auto error = find_cover_error(tensor.logical.global_shape, boxes);
    ASHLAR_REQUIRE(!error, kCorrupt, "step {} is not saved: tensor '{}' {}: {}", plan.step,
                   tensor.logical.name, tensor.logical.global_shape.to_string(), *error);
  }
  ASHLAR_ASSERT(false && "cover hash and sweep disagree");
}

void complete(SavePlan& plan) {
  TensorNumbers places;
  for (size_t i = 0; i < plan.index.tensors.size(); ++i)
    places[plan.index.tensors[i].logical.name] = i;
  check_whole(plan);
  sort_boxes(plan.index);
  link_states(plan.index, places);
  add_aliases(plan, places);
  Manifest& manifest = plan.manifest;
  for (const IndexFile& file : plan.index.files) {
    ComponentTotal& total = manifest.components[std::string(name_of(file.component))];
    total.bytes += file.size_bytes;
    ++total.files;
    manifest.files.push_back({file.path, file.size_bytes, file.uuid});
  }
  manifest.tensors_total = int64_t(plan.index.tensors.size());
}

// Walks head and sources as one stream.  `offset` counts down over what lies before the range, and
// is 0 from the first byte that is copied on.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out) {
  const auto copy = [&](const std::byte* data, int64_t bytes) {
    if (offset < bytes && !out.empty()) {
      const size_t count = std::min(out.size(), size_t(bytes - offset));
      std::memcpy(out.data(), data + offset, count);
      out = out.subspan(count);
      offset = 0;
    } else {
      offset -= std::min(offset, bytes);
    }
  };
  copy(reinterpret_cast<const std::byte*>(plan.head.data()), int64_t(plan.head.size()));
  for (const FilePlan::Source& source : plan.sources) {
    if (out.empty()) return;
    copy(source.data, source.bytes);
  }
  ASHLAR_ASSERT(out.empty());
}

}  // namespace ashlar::checkpoint
