// How it works.  open() checks a directory in an order that lets each message explain its mistake:
//
//   read_hf_config               config.json by itself
//   open_hf_files                the other files by themselves
//   require_known_prefix         names begin as in files of these families
//   read_past                    tensors without parameters leave the list
//   check_layers                 the names have as many (sub-)layers as the config
//   check_sizes                  one tensor for each size of the config, so that a wrong size is
//                                named by its key before all tensors have wrong shapes
//   check_count                  a bound on the work that follows
//   check_head                   a stored head is compared with the embedding, and leaves the list
//   check_tensors                every name, shape and type
//
// A native tensor is one tensor of a file, or several (experts) that follow each other along dim 0,
// or rows at a fixed stride of one (heads of a mixer): parts[n].  read() cuts a box into runs of
// the whole tensor, read_run() cuts a run at the borders of the parts and of their rows, and
// HfFiles::read() converts.
#include "ashlar/models/hf/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <unordered_map>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/models/hf/files.h"
#include "ashlar/models/hf/strays.h"
#include "ashlar/nn/weights.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::models {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kComparedElements = 64 << 10;  // compared at a time
constexpr std::string_view kHead = kHfHead, kEmbedding = kHfEmbedding;

std::string shown_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The number of layers (native) or sub-layers (legacy) in the tensors' names: the largest index +
// 1.
int64_t count_layers(const HfFiles& files) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t count = 0;
  for (const auto& [name, tensor] : files.stored) {
    if (!name.starts_with(kPrefix)) continue;
    const size_t end = name.find('.', kPrefix.size());
    // Nine digits at most, which any integer holds; a longer one is unexpected in check_tensors.
    if (end == std::string::npos || end == kPrefix.size() || end - kPrefix.size() > 9) continue;
    const std::string digits = name.substr(kPrefix.size(), end - kPrefix.size());
    if (digits.find_first_not_of("0123456789") == std::string::npos)
      count = std::max(count, int64_t(std::stoll(digits)) + 1);
  }
  return count;
}

void check_layers(const HfConfig& config, const std::string& source, HfLayout layout,
                  const HfFiles& files) {
  const bool legacy = layout == HfLayout::kLegacy;
  const int64_t blocks = config.model.num_blocks(), layers = count_layers(files);
  ASHLAR_REQUIRE(
      layers > 0, kData,
      "{}: states {} blocks but no tensor is named model.layers.N; expected the files of a {}",
      source, blocks, config.family);
  ASHLAR_REQUIRE(layers == (legacy ? 2 : 1) * blocks, kData,
                 "{}: {} states {} blocks but the tensors are named for {} {} (the highest is "
                 "model.layers.{}); expected {}: complete the files or correct the config",
                 source, config.key_of("num_hidden_layers"), blocks, layers,
                 legacy ? "sub-layers" : "blocks", layers - 1, (legacy ? 2 : 1) * blocks);
}

// The blocks up to the last with a new kind of mixer or feed-forward: blocks of a kind have the
// same sizes.
ModelSpec first_blocks(ModelSpec model) {
  std::set<size_t> mixers, feed_forwards;
  size_t count = 0;
  for (size_t l = 0; l < model.blocks.size(); ++l) {
    const bool mixer = mixers.insert(model.blocks[l].mixer.index()).second;
    const bool other = feed_forwards.insert(model.blocks[l].feed_forward.index()).second;
    if (mixer || other) count = l + 1;
  }
  model.blocks.resize(count);
  return model;
}

void check_sizes(const HfConfig& config, const std::string& source, HfLayout layout,
                 const HfFiles& files) {
  const ModelSpec first = first_blocks(config.model);
  std::map<std::string, std::string> name_of_native;  // part 0's name in the files
  const std::vector<LogicalTensor> natives = nn::logical_tensors(first, DType::kF32);
  std::set<std::string> in_parts;  // stacks whose matrices are tensors of their own in the files
  for (const FileTensor& tensor : file_tensors(natives, first.blocks, layout, config.names)) {
    const FileRows& rows = tensor.rows[0];
    const std::string& native = natives[rows.native].name;
    if (rows.part == 0) name_of_native[native] = tensor.name;
    if (tensor.shape.ndim() < natives[rows.native].global_shape.ndim()) in_parts.insert(native);
  }
  for (const HfSize& rule : config.sizes) {
    const size_t dim = rule.dim - (in_parts.contains(rule.tensor) ? 1 : 0);
    const auto at = files.stored.find(name_of_native.at(rule.tensor));
    if (at == files.stored.end() || at->second.entry.shape.size() <= dim)
      continue;  // check_tensors says so
    const std::vector<int64_t>& shape = at->second.entry.shape;
    ASHLAR_REQUIRE(
        shape[dim] == rule.value, kData,
        "{}: {} is {} but tensor {} has shape {}; expected {} in dim {}: correct the config "
        "or take the files of one model",
        source, rule.what, rule.value, at->second.entry.name, shown_shape(shape), rule.value, dim);
  }
}

// Bounds the list of expected names before it is made, since a config can state more than any file
// holds.  The bound is generous, so that usually check_tensors names the missing tensors.
void check_count(const std::string& directory, const ModelSpec& model, HfLayout layout,
                 const HfNames& names, const HfFiles& files) {
  const int64_t expected = num_file_tensors(model, layout, names),
                found = int64_t(files.stored.size());
  ASHLAR_REQUIRE(
      expected <= 2 * found + 10000, kData,
      "{}: tensors are missing: {} found; expected the {} of config.json: fetch the files "
      "again",
      directory, found, expected);
}

// Removes tensors that hold no weights from the list; returns the names of those that the family's
// files need not have.
std::vector<std::string> read_past(const ModelSpec& model, const HfNames& names, HfFiles& files) {
  for (const FileBuffer& buffer : file_buffers(model.blocks, names))
    files.stored.erase(buffer.name);
  std::vector<std::string> passed = remove_strays(files);
  if (names.passed.empty()) return passed;
  std::erase_if(files.stored, [&](const auto& stored) {
    if (!stored.first.starts_with(names.passed)) return false;
    passed.push_back(stored.second.entry.name);
    return true;
  });
  return passed;
}

// Requires every expected tensor and no other, with the right shapes and readable types.
void check_tensors(const std::string& directory, const HfConfig& config,
                   const std::vector<FileTensor>& expected, const HfFiles& files) {
  std::vector<std::string> missing, unexpected, wrong;
  std::set<std::string_view> known;
  for (const FileTensor& tensor : expected) {
    known.insert(tensor.name);
    const auto at = files.stored.find(tensor.name);
    if (at == files.stored.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    const checkpoint::TensorEntry& entry = at->second.entry;
    const std::string& path = files.path_of(at->second);
    if (!std::ranges::equal(entry.shape, tensor.shape.dims()))
      wrong.push_back(fmt::format("{} in {} has shape {}, expected {}", entry.name, path,
                                  shown_shape(entry.shape), tensor.shape.to_string()));
    else if (!is_hf_readable(entry.dtype))
      wrong.push_back(fmt::format("{} in {} has dtype {}, expected BF16, F16, F32 or F64",
                                  entry.name, path, name_of(entry.dtype)));
  }
  for (const auto& [name, tensor] : files.stored)
    if (!known.count(name)) unexpected.push_back(tensor.entry.name);
  ASHLAR_REQUIRE(
      missing.empty(), kData,
      "{}: tensors are missing: {}{}; expected the {} of config.json: fetch the files again",
      directory, listed(missing),
      unexpected.empty() ? ""
                         : fmt::format(", and these are there instead: {}", listed(unexpected)),
      expected.size());
  ASHLAR_REQUIRE(unexpected.empty(), kData,
                 "{}: unexpected tensors: {}; expected only the {} of this {}: remove them or "
                 "correct config.json",
                 directory, listed(unexpected), expected.size(), config.family);
  ASHLAR_REQUIRE(wrong.empty(), kData, "{}: {}; take files and config.json of one model", directory,
                 listed(wrong));
}

// If the head is tied, a stored head must equal the embedding, or takes its place if that is not
// stored.  Removes the head from the list.
void check_head(const ModelSpec& model, HfFiles& files) {
  if (!model.tied_head) return;
  const auto head = files.stored.find(std::string(kHead));
  if (head == files.stored.end()) return;
  const auto [embedding, only_head] = files.stored.emplace(kEmbedding, head->second);
  if (only_head) return void(files.stored.erase(head));
  const HfStored &a = head->second, &b = embedding->second;
  const std::string& path = files.path_of(a);
  ASHLAR_REQUIRE(
      a.entry.shape == b.entry.shape && is_hf_readable(a.entry.dtype), kData,
      "{}: {} is {} {}; expected the values of {}, {} {}, or no such tensor: the head is tied",
      path, kHead, name_of(a.entry.dtype), shown_shape(a.entry.shape), kEmbedding,
      name_of(b.entry.dtype), shown_shape(b.entry.shape));
  if (!is_hf_readable(b.entry.dtype)) return;  // check_tensors says so
  const int64_t count = a.entry.bytes() / size_of(a.entry.dtype);
  std::vector<double> x(size_t(std::min(count, kComparedElements))), y(x.size());
  for (int64_t done = 0; done < count; done += kComparedElements) {
    const int64_t n = std::min(kComparedElements, count - done);
    files.read(a, done, n, DType::kF64, reinterpret_cast<std::byte*>(x.data()));
    files.read(b, done, n, DType::kF64, reinterpret_cast<std::byte*>(y.data()));
    for (int64_t i = 0; i < n; ++i)  // bits, so that a NaN equals its copy
      ASHLAR_REQUIRE(
          std::bit_cast<uint64_t>(x[size_t(i)]) == std::bit_cast<uint64_t>(y[size_t(i)]), kData,
          "{}: {} is {} at element {} but {} is {}; expected equal values, for the head is "
          "tied: remove it or take another model",
          path, kHead, x[size_t(i)], done + i, kEmbedding, y[size_t(i)]);
  }
  files.stored.erase(head);
}

}  // namespace

HfConfig read_hf_config(FileSystem& files, const std::string& directory) {
  const std::string path = join(directory, kHfConfigFile);
  ASHLAR_REQUIRE(files.stat(directory), kData,
                 "{}: no such directory; expected a Hugging Face model directory", directory);
  ASHLAR_REQUIRE(is_plain_file(files, path), kData,
                 "{}: not found; expected a Hugging Face model directory: config.json and "
                 "model.safetensors, or shards with {}",
                 path, kHfIndexFile);
  return parse_hf_config(read_text(files, path, kMaxConfigBytes), path);
}

struct HfModel::Impl {
  std::string directory;
  HfConfig config;
  ModelSpec model;
  HfLayout layout = HfLayout::kNative;
  HfFiles files;
  std::vector<std::string> notes, warnings;
  std::vector<LogicalTensor> tensors;
  struct Part {
    HfStored stored;
    FileRows rows;
    int64_t row_elements;
  };
  std::vector<std::vector<Part>> parts;  // per tensor, along dim 0
  std::unordered_map<std::string, size_t> by_name;

  // Elements [first, first + count) of the row-major whole of tensor n.
  void read_run(size_t n, int64_t first, int64_t count, DType dtype, std::byte* out) const {
    const int64_t part_elements = tensors[n].global_shape.numel() / int64_t(parts[n].size());
    while (count > 0) {
      const auto& [stored, rows, row_elements] = parts[n][size_t(first / part_elements)];
      const int64_t inside = first % part_elements, together = rows.each * row_elements;
      const int64_t group = inside / together, at = inside % together;
      const int64_t run = std::min(count, together - at);
      files.read(stored, (group * rows.stride + rows.begin) * row_elements + at, run, dtype, out);
      first += run;
      count -= run;
      out += run * size_of(dtype);
    }
  }

  // The same into elements of a tensor from `begin` on.  Where the host does not write its memory,
  // they pass through memory of the host.
  void read_run_into(size_t n, int64_t first, int64_t count, const Tensor& to,
                     int64_t begin) const {
    const int64_t size = size_of(to.dtype);
    if (to.device == Device::kCpu)
      return read_run(n, first, count, to.dtype, to.data + begin * size);
    constexpr int64_t kElementsAtOnce = 1 << 20;
    std::vector<std::byte> host(size_t(std::min(count, kElementsAtOnce) * size));
    for (int64_t done = 0; done < count; done += kElementsAtOnce) {
      const int64_t part = std::min(count - done, kElementsAtOnce);
      read_run(n, first + done, part, to.dtype, host.data());
      copy_from_host(to, (begin + done) * size, std::span(host).first(size_t(part * size)));
    }
  }
};

HfModel::HfModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HfModel::HfModel(HfModel&&) noexcept = default;
HfModel& HfModel::operator=(HfModel&&) noexcept = default;
HfModel::~HfModel() = default;

const std::string& HfModel::directory() const {
  return impl_->directory;
}
const HfConfig& HfModel::config() const {
  return impl_->config;
}
const ModelSpec& HfModel::spec() const {
  return impl_->model;
}
HfLayout HfModel::layout() const {
  return impl_->layout;
}
std::span<const LogicalTensor> HfModel::tensors() const {
  return impl_->tensors;
}
std::span<const std::string> HfModel::notes() const {
  return impl_->notes;
}
std::span<const std::string> HfModel::warnings() const {
  return impl_->warnings;
}

HfModel HfModel::open(FileSystem& file_system, const std::string& directory) {
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  impl->config = read_hf_config(file_system, directory);
  impl->notes = impl->config.notes;
  impl->files = open_hf_files(file_system, directory);
  HfFiles& files = impl->files;
  const ModelSpec model = impl->model = impl->config.model;
  require_known_prefix(files, directory, impl->config.family);
  // The native layout names the last norm model.norm.weight.
  const bool legacy = files.stored.count("model.final_norm.weight") != 0;
  impl->layout = legacy ? HfLayout::kLegacy : HfLayout::kNative;
  // Some files of families that store experts apart have them stacked, as programs hold them.
  for (const auto& [name, tensor] : files.stored)
    if (name.ends_with(".mlp.experts.gate_up_proj")) impl->config.names.experts = nullptr;

  const std::string source = join(directory, kHfConfigFile);
  if (!impl->config.not_followed.empty())
    impl->warnings.push_back(
        fmt::format("{}: not followed: {}; the model runs as if the file did not say so", source,
                    printable(fmt::format("{}", fmt::join(impl->config.not_followed, ", ")))));
  const auto passed = read_past(model, impl->config.names, files);
  if (!passed.empty())
    impl->notes.push_back(fmt::format(
        "{}: {} tensor{} read past, for the model does not need {}: {}", directory, passed.size(),
        passed.size() == 1 ? " is" : "s are", passed.size() == 1 ? "it" : "them", listed(passed)));
  check_layers(impl->config, source, impl->layout, files);
  check_sizes(impl->config, source, impl->layout, files);
  check_count(directory, model, impl->layout, impl->config.names, files);
  check_head(model, files);
  impl->tensors = nn::logical_tensors(model, DType::kF32);
  const std::vector<FileTensor> expected =
      file_tensors(impl->tensors, model.blocks, impl->layout, impl->config.names);
  check_tensors(directory, impl->config, expected, files);

  impl->parts.resize(impl->tensors.size());
  for (const FileTensor& tensor : expected)
    for (const FileRows& rows : tensor.rows)
      impl->parts[rows.native].push_back(
          {files.stored.at(tensor.name), rows, tensor.shape.numel() / tensor.shape[0]});
  for (size_t n = 0; n < impl->tensors.size(); ++n) {
    DType& dtype = impl->tensors[n].dtype = impl->parts[n].front().stored.entry.dtype;
    for (const Impl::Part& part : impl->parts[n]) dtype = wider(dtype, part.stored.entry.dtype);
    impl->by_name[impl->tensors[n].name] = n;
  }
  return HfModel(std::move(impl));
}

void HfModel::read(const Piece& piece) const {
  const auto at = impl_->by_name.find(piece.logical.name);
  ASHLAR_REQUIRE(at != impl_->by_name.end(), kData,
                 "{}: no tensor {}; expected a model of the same number of blocks",
                 impl_->directory, piece.logical.name);
  const Shape& whole = impl_->tensors[at->second].global_shape;
  const Box& box = piece.box;
  ASHLAR_REQUIRE(piece.logical.global_shape == whole, kData,
                 "{}: tensor {} has shape {}; expected {}: take a model of the same sizes",
                 impl_->directory, piece.logical.name, whole.to_string(),
                 piece.logical.global_shape.to_string());
  ASHLAR_ASSERT(box.offset.ndim() == whole.ndim() && box.length.ndim() == whole.ndim());
  ASHLAR_ASSERT(piece.data.device != Device::kMeta && piece.data.numel() == box.length.numel());
  for (int d = 0; d < whole.ndim(); ++d)
    ASHLAR_ASSERT(box.offset[d] >= 0 && box.length[d] >= 0 &&
                  box.offset[d] + box.length[d] <= whole[d]);
  int64_t begin = 0;  // of the run, in the piece
  for_each_run(whole, box, 0, piece.data.numel(), [&](int64_t first, int64_t count) {
    impl_->read_run_into(at->second, first, count, piece.data, begin);
    begin += count;
  });
}

}  // namespace ashlar::models
