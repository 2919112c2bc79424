// How it works.  A plan is begun inside save(), before anything is written:
//
//   pieces of a component --> files with boxes of them (stored_files.h), kept for later saves
//   each extra file       --> one file, its bytes in head, and one blob in the index
//
// Loader tensors and extra files are copied there, into head.  For model and optimizer only the
// addresses are kept: fill_in(), on the thread that copies, makes their files, with headers that
// grow with the number of tensors, and sources, which point to what is copied later.  The index has
// no files yet, since checksums come with the chunks.  When the last chunk is written StepWriter
// continues: join_files(); the leader of several writers merges their parts and calls
// check_cover(), which for one writer happens here; then complete(), after which parse_index
// accepts the index.
#include "ashlar/checkpoint/save/save_plan.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/format/index_format.h"
#include "ashlar/checkpoint/save/stored_files.h"
#include "ashlar/checkpoint/writers/timing.h"
#include "ashlar/checkpoint/writers/writer_part.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/copy_bytes.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::checkpoint {
namespace {

bool offset_less(const IndexBox& a, const IndexBox& b) {
  const auto x = a.box.offset.dims(), y = b.box.offset.dims();
  return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
}

void sort_boxes(Index& index) {
  for (IndexTensor& tensor : index.tensors)
    std::stable_sort(tensor.boxes.begin(), tensor.boxes.end(), offset_less);
}

void add_file(std::vector<FilePlan>& files, FilePlan file) {
  file.file.chunk_crcs.assign(size_t(num_chunks(file.file.size_bytes)), 0);
  files.push_back(std::move(file));
}

std::vector<std::byte*> memory_of(std::span<const Piece> pieces) {
  std::vector<std::byte*> memory;
  memory.reserve(pieces.size());
  for (const Piece& piece : pieces) memory.push_back(piece.data.data);
  return memory;
}

// Adds files and boxes; `first` is the number of the first file in the step.
void add_stored(const SavePlan& plan, const SavePlan::Pending& pending, size_t first,
                std::vector<FilePlan>& files, std::vector<IndexTensor>& tensors) {
  for (const StoredFile& file : pending.stored->files)
    add_file(files, stamped(file, pending.memory, plan.step, plan.attempt));
  for (const IndexTensor& tensor : pending.stored->tensors) {
    tensors.push_back(tensor);
    for (IndexBox& box : tensors.back().boxes) box.file += uint32_t(first);
  }
}

size_t num_pending(const SavePlan& plan) {
  size_t files = 0;
  for (const SavePlan::Pending& pending : plan.pending) files += pending.stored->files.size();
  return files;
}

// The file of a blob that will be number `place` in the index.
IndexFile add_blob(SavePlan& plan, const Blob& blob, size_t place) {
  IndexFile file;
  file.path = "extra/" + blob.name;
  file.component = Component::kExtra;
  file.kind = blob.json ? FileKind::kJson : FileKind::kBlob;
  file.uuid = random_id();
  file.size_bytes = int64_t(blob.bytes.size());
  plan.index.blobs.push_back(
      {blob.name, blob.json, uint32_t(place), 0, file.size_bytes, crc32c(blob.bytes)});
  return file;
}

void add_blobs(SavePlan& plan, std::span<const Blob> blobs) {
  const size_t before = num_pending(plan);
  std::set<std::string_view> names{kTimingFile};  // the leader adds that one
  for (const Blob& blob : blobs) {
    ASHLAR_ASSERT(is_plain_name(blob.name));
    ASHLAR_REQUIRE(names.insert(blob.name).second, kConfig,
                   "two extra files of step {} are named '{}'", plan.step, blob.name);
    FilePlan file;
    file.file = add_blob(plan, blob, before + plan.files.size());
    file.head = blob.bytes;
    add_file(plan.files, std::move(file));
  }
}

// The bytes of this writer's files, and of all writers' without the headers of the others, which
// are small.
void count(SavePlan& plan) {
  const auto add = [&](const IndexFile& file) {
    plan.bytes += file.size_bytes;
    plan.chunks += std::max<int64_t>(1, num_chunks(file.size_bytes));
  };
  for (const FilePlan& file : plan.files) add(file.file);  // loader, extra
  plan.bytes_to_expect = plan.bytes;
  for (const SavePlan::Pending& pending : plan.pending)
    for (const StoredFile& file : pending.stored->files) add(file.plan.file);
  for (const LogicalTensor& tensor : *plan.whole)
    plan.bytes_to_expect += tensor.global_shape.numel() * size_of(tensor.dtype);
  plan.bytes_to_expect = std::max(plan.bytes_to_expect, plan.bytes);
}

void start_manifest(SavePlan& plan, const SaveRequest& request) {
  Manifest& manifest = plan.manifest;
  manifest.run_id = plan.run_id;
  manifest.step = plan.step;
  manifest.attempt = plan.attempt;
  manifest.created = utc_now();
  manifest.aliases = request.aliases;
  manifest.sections = request.sections;
}

// Bytes that are equal for two requests if and only if names, types, shapes, boxes and strides are.
class Fingerprint {
 public:
  void add(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(std::string_view text) {
    add(int64_t(text.size()));
    bytes_.append(text);
  }
  void add(const Shape& shape) {
    add(int64_t(shape.ndim()));
    for (const int64_t extent : shape.dims()) add(extent);
  }
  void add(std::span<const Piece> pieces) {
    add(int64_t(pieces.size()));
    for (const Piece& piece : pieces) {
      add(piece.logical.name);
      add(int64_t(piece.logical.dtype));
      add(int64_t(piece.logical.role));
      add(piece.logical.global_shape);
      add(piece.box.offset);
      add(piece.box.length);
      add(piece.strides);
    }
  }
  Id hash() const {
    Id id;
    const std::string other = bytes_ + "2";  // for the second half
    const uint64_t halves[] = {xxh3_64(std::as_bytes(std::span(bytes_))),
                               xxh3_64(std::as_bytes(std::span(other)))};
    std::memcpy(id.data(), halves, id.size());
    return id;
  }

 private:
  std::string bytes_;
};

// Compares two requests as their fingerprints would, without making these.
bool same(const LogicalTensor& a, const LogicalTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.role == b.role &&
         a.global_shape == b.global_shape;
}
bool same(const Piece& a, const Piece& b) {
  return same(a.logical, b.logical) && a.box == b.box && a.strides == b.strides;
}
template <typename A, typename B>
bool same_all(const A& a, const B& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return same(x, y); });
}

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

bool is_model_or_optim(const SavePlan& plan, const IndexTensor& tensor) {
  const Component component = component_of(plan.index, tensor);
  return component == Component::kModel || component == Component::kOptim;
}

CoverHash whole_hash(const SavePlan& plan, const LogicalTensor& logical) {
  const CoverHasher hash(cover_seed(plan.attempt), logical.name, logical.global_shape.ndim());
  return hash(Box::whole(logical.global_shape));
}

// kCorrupt with the first tensor whose boxes do not tile it.
void sweep(const SavePlan& plan) {
  for (const IndexTensor& tensor : plan.index.tensors) {
    std::vector<Box> boxes;
    for (const IndexBox& box : tensor.boxes) boxes.push_back(box.box);
    const auto error = find_cover_error(tensor.logical.global_shape, boxes);
    ASHLAR_REQUIRE(!error, kCorrupt, "step {} is not saved: tensor '{}' {}: {}", plan.step,
                   tensor.logical.name, tensor.logical.global_shape.to_string(), *error);
  }
}

// The tensors of model and optimizer must be exactly plan.whole.
void check_whole(const SavePlan& plan) {
  if (plan.whole->empty()) return;
  std::map<std::string_view, const LogicalTensor*> found;
  for (const IndexTensor& tensor : plan.index.tensors) {
    if (is_model_or_optim(plan, tensor)) found[tensor.logical.name] = &tensor.logical;
  }
  for (const LogicalTensor& wanted : *plan.whole) {
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

struct SavePlanner::Known {
  struct Component {
    std::vector<Piece> pieces;  // what they are; their memory is of the first save
    std::shared_ptr<const StoredFiles> stored;
  };
  Component model, optim, loader;
  Id hash{};
};

SavePlanner::SavePlanner(std::string run_id, int writer_rank, int num_writers)
    : run_id_(std::move(run_id)),
      writer_rank_(writer_rank),
      num_writers_(num_writers),
      whole_(std::make_shared<const std::vector<LogicalTensor>>()) {
  ASHLAR_ASSERT(0 <= writer_rank && writer_rank < num_writers);
}
SavePlanner::~SavePlanner() = default;

Id SavePlanner::hash_of(const SaveRequest& request) const {
  Fingerprint fingerprint;
  fingerprint.add(run_id_);
  for (const int64_t number :
       {int64_t(kIndexMajor), int64_t(writer_number(writer_rank_)), int64_t(num_writers_)})
    fingerprint.add(number);
  for (const auto pieces : {request.model, request.optim, request.loader}) fingerprint.add(pieces);
  return fingerprint.hash();
}

void SavePlanner::make(const SaveRequest& request) {
  const auto planned = [&](Component component, std::span<const Piece> pieces) {
    return Known::Component{
        {pieces.begin(), pieces.end()},
        std::make_shared<const StoredFiles>(plan_files(component, pieces, run_id_, writer_rank_))};
  };
  known_ = std::make_unique<Known>(
      Known{planned(Component::kModel, request.model), planned(Component::kOptim, request.optim),
            planned(Component::kLoader, request.loader), hash_of(request)});
  ++num_made_;
}

SavePlan SavePlanner::plan(const SaveRequest& request, const Id& attempt) {
  ASHLAR_ASSERT(writer_rank_ == 0 || (request.loader.empty() && request.extra.empty() &&
                                      request.sections.empty() && request.aliases.empty()));
  const bool known = known_ && same_all(known_->model.pieces, request.model) &&
                     same_all(known_->optim.pieces, request.optim) &&
                     same_all(known_->loader.pieces, request.loader);
  if (!known) make(request);
  if (!same_all(*whole_, request.whole))
    whole_ = std::make_shared<const std::vector<LogicalTensor>>(request.whole.begin(),
                                                                request.whole.end());
  SavePlan plan;
  plan.step = request.step;
  plan.writer_rank = writer_rank_;
  plan.num_writers = num_writers_;
  plan.attempt = plan.index.attempt = attempt;
  plan.run_id = run_id_;
  plan.hash = known_->hash;
  plan.whole = whole_;
  plan.pending = {{known_->model.stored, memory_of(request.model)},
                  {known_->optim.stored, memory_of(request.optim)}};
  add_stored(plan, {known_->loader.stored, memory_of(request.loader)}, num_pending(plan),
             plan.files, plan.index.tensors);
  add_blobs(plan, request.extra);
  // The boxes of several writers are complete only when the leader has joined their parts.
  if (num_writers_ == 1 && !known) check_first_cover(plan);
  start_manifest(plan, request);
  count(plan);
  return plan;
}

// Forgets a plan whose boxes do not cover their tensors.
void SavePlanner::check_first_cover(SavePlan plan) {
  try {
    fill_in(plan);
    check_cover(plan);
  } catch (const Error&) {
    known_.reset();
    throw;
  }
}

void fill_in(SavePlan& plan) {
  std::vector<FilePlan> files;
  std::vector<IndexTensor> tensors;
  for (const SavePlan::Pending& pending : std::exchange(plan.pending, {}))
    add_stored(plan, pending, files.size(), files, tensors);
  std::ranges::move(plan.files, std::back_inserter(files));
  std::ranges::move(plan.index.tensors, std::back_inserter(tensors));
  plan.files = std::move(files);
  plan.index.tensors = std::move(tensors);
}

SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt,
                        int writer_rank, int num_writers) {
  SavePlan plan = SavePlanner(run_id, writer_rank, num_writers).plan(request, attempt);
  fill_in(plan);
  return plan;
}

void join_files(SavePlan& plan) {
  for (const FilePlan& file : plan.files) plan.index.files.push_back(file.file);
}

std::string add_late_file(SavePlan& plan, const Blob& blob) {
  IndexFile file = add_blob(plan, blob, plan.index.files.size());
  for (int64_t chunk = 0; chunk < num_chunks(file.size_bytes); ++chunk)
    file.chunk_crcs.push_back(
        crc32c(std::string_view(blob.bytes).substr(size_t(chunk * kChunkBytes), kChunkBytes)));
  plan.index.files.push_back(std::move(file));
  return plan.index.files.back().path;
}

// One sum over all tensors proves exact cover; only if it differs is each tensor swept.
void check_cover(const SavePlan& plan) {
  CoverHash expected;
  for (const IndexTensor& tensor : plan.index.tensors) expected += whole_hash(plan, tensor.logical);
  if (cover_of(plan.index) == expected) return;
  sweep(plan);
  ASHLAR_ASSERT(false && "cover hash and sweep disagree");
}

void check_cover(const SavePlan& plan, const CoverHash& told) {
  CoverHash expected;
  for (const LogicalTensor& logical : *plan.whole) expected += whole_hash(plan, logical);
  for (const IndexTensor& tensor : plan.index.tensors)
    if (plan.whole->empty() || !is_model_or_optim(plan, tensor))
      expected += whole_hash(plan, tensor.logical);
  if (told == expected) return;
  sweep(plan);
  check_whole(plan);
  ASHLAR_FAIL(
      kCorrupt,
      "step {} is not saved: the boxes that its writers wrote are not those that the leader "
      "knows of",
      plan.step);
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

void HostSource::read(const FilePlan::Source& source, int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    int64_t run = offset / source.run_bytes, at = offset % source.run_bytes;
    const size_t count = std::min(out.size(), size_t(source.run_bytes - at));
    for (size_t d = source.outer.size(); d-- > 0;) {
      at += run % source.outer[d].count * source.outer[d].stride_bytes;
      run /= source.outer[d].count;
    }
    copy_to_host(source.tensor, at, out.first(count));
    out = out.subspan(count);
    offset += int64_t(count);
  }
}

// Walks head and sources as one stream.  `offset` counts down to the beginning of the range, and is
// 0 from there on.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out,
                    SnapshotSource& from) {
  const auto take = [&](int64_t bytes, auto&& copy) {
    if (offset < bytes && !out.empty()) {
      const size_t count = std::min(out.size(), size_t(bytes - offset));
      copy(offset, out.first(count));
      out = out.subspan(count);
      offset = 0;
    } else {
      offset -= std::min(offset, bytes);
    }
  };
  take(int64_t(plan.head.size()), [&](int64_t at, std::span<std::byte> part) {
    copy_bytes(part.data(), plan.head.data() + at, part.size());
  });
  for (const FilePlan::Source& source : plan.sources) {
    if (out.empty()) return;
    take(source.bytes, [&](int64_t at, std::span<std::byte> part) { from.read(source, at, part); });
  }
  ASHLAR_ASSERT(out.empty());
}

void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out) {
  HostSource host;
  fill_from_plan(plan, offset, out, host);
}

}  // namespace ashlar::checkpoint
