// How it works.  write_all() lists the tensors of the files (sources_of), cuts the list into files
// (cut_into_files) and writes one file after another.  Of a file:
//
//   write_shard   makes header and room, and lists, for each tensor of the file, the ranges of
//                 native tensors that its rows are (parts)
//   slabs         these ranges in the order in which the reader has them, at most kSlabElements at
//                 a time; each worker reads one, in the type of the file, and writes it where it
//                 belongs: write_range() goes through the groups of rows of FileRows
//
// So no more is in memory than a slab for each worker, and what the reader takes for it.
#include "ashlar/checkpoint/hf_write.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/checkpoint/hf_files.h"
#include "ashlar/checkpoint/safetensors.h"
#include "ashlar/checkpoint/tensor_slabs.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One tensor of a file: rows of native tensors, or a buffer.
struct Source {
  FileTensor tensor;
  DType dtype;  // in the file
  std::optional<FileBuffer> buffer = {};
  int64_t bytes() const { return tensor.shape.numel() * size_of(dtype); }
};

std::vector<Source> sources_of(const ModelSpec& spec, std::span<const LogicalTensor> natives,
                               HfLayout layout) {
  std::vector<Source> sources;
  const HfNames names = names_of(keys_of(spec));
  for (FileTensor& tensor : file_tensors(natives, spec.blocks, layout, names)) {
    const DType dtype = natives[tensor.rows[0].native].dtype;
    sources.push_back({.tensor = std::move(tensor), .dtype = dtype});
  }
  for (const FileBuffer& buffer : file_buffers(spec.blocks, names))
    sources.push_back({.tensor = {buffer.name, buffer.buffer->shape(*buffer.mixer), {}},
                       .dtype = DType::kF32,
                       .buffer = buffer});
  return sources;
}

// Consecutive tensors until the next would pass the limit; a larger tensor has a file of its own.
std::vector<std::vector<Source>> cut_into_files(std::vector<Source> sources,
                                                int64_t max_file_bytes) {
  std::vector<std::vector<Source>> shards;
  int64_t used = 0;
  for (Source& source : sources) {
    if (shards.empty() || used + source.bytes() > max_file_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += source.bytes();
    shards.back().push_back(std::move(source));
  }
  // Wide elements first: then each tensor starts at a multiple of its element's size.
  for (auto& shard : shards)
    std::ranges::stable_sort(shard, std::greater<>(),
                             [](const Source& source) { return size_of(source.dtype); });
  return shards;
}

// What a range of a native tensor is of a file: the rows, and where the file's tensor begins.
struct Target {
  const FileRows* rows;
  int64_t file_offset, part_begin;  // bytes; the first element of the part in the native tensor
  int64_t row_elements;
};

class Writer {
 public:
  Writer(FileSystem& files, const std::string& directory, const TensorReader& reader,
         std::span<const LogicalTensor> natives, const HfWriteOptions& options)
      : files_(files),
        directory_(directory),
        reader_(reader),
        natives_(natives),
        options_(options),
        buffers_(size_t(num_workers(options.num_threads))) {}

  void write_shard(const std::string& name, const std::vector<Source>& sources) {
    std::vector<TensorSpec> specs;
    for (const Source& source : sources) {
      const auto dims = source.tensor.shape.dims();
      specs.push_back({source.tensor.name, source.dtype, {dims.begin(), dims.end()}});
    }
    // Without this metadata transformers refuses the file.
    const SafetensorsPlan plan = plan_safetensors(specs, {{"format", "pt"}}, HeaderStyle::kPlain);
    const auto file = files_.create(join(directory_, name));
    file->reserve(plan.file_bytes);
    file->write_at(bytes_of(plan.header), 0);
    std::vector<Target> targets;
    std::vector<Range> parts;       // as many
    std::vector<LogicalTensor> of;  // the native tensors of the parts
    for (size_t n = 0; n < sources.size(); ++n) {
      const int64_t begin = plan.data_begin + plan.entries[n].begin;
      if (sources[n].buffer) write_buffer(*file, begin, sources[n]);
      for (const FileRows& rows : sources[n].tensor.rows) {
        const LogicalTensor& native = natives_[rows.native];
        const Shape& shape = sources[n].tensor.shape;
        const int64_t count = native.global_shape.numel() / rows.num_parts;
        parts.push_back({parts.size(), rows.part * count, count});
        targets.push_back({&rows, begin, rows.part * count, shape.numel() / shape[0]});
        of.push_back(native);
      }
    }
    for_each_slab(cut_into_slabs(of, parts, reader_), options_.num_threads, options_.log,
                  "writing " + join(directory_, name), [&](const Slab& slab, int worker) {
                    write_slab(*file, slab, of, targets, buffers_[size_t(worker)]);
                  });
    file->sync();
    file->close();
  }

  void write_file(std::string_view name, std::string_view text) {
    ASHLAR_REQUIRE(!files_.stat(join(directory_, name)), kConfig,
                   "{}: the model directory already has a file {}; expected another name",
                   directory_, name);
    const auto file = files_.create(join(directory_, name));
    file->write_at(bytes_of(text), 0);
    file->sync();
    file->close();
  }

 private:
  void write_slab(File& file, const Slab& slab, std::span<const LogicalTensor> of,
                  std::span<const Target> targets, std::vector<double>& buffer) const {
    int64_t used = 0;  // elements of 8 bytes, so that each range is aligned for every type
    std::vector<int64_t> begin;
    for (const Range& range : slab) {
      begin.push_back(used);
      used += (range.count * size_of(of[range.tensor].dtype) + 7) / 8;
    }
    buffer.resize(std::max(buffer.size(), size_t(used)));
    std::vector<Piece> pieces;
    std::vector<Tensor> data;
    for (size_t n = 0; n < slab.size(); ++n) {
      const LogicalTensor& native = of[slab[n].tensor];
      data.push_back({reinterpret_cast<std::byte*>(buffer.data() + begin[n]), native.dtype,
                      Device::kCpu, Shape{slab[n].count}});
      add_pieces(native, slab[n], data.back(), pieces);
    }
    reader_.read(pieces);
    for (size_t n = 0; n < slab.size(); ++n)
      write_range(file, slab[n], targets[slab[n].tensor], data[n]);
  }

  static void write_range(File& file, const Range& range, const Target& target,
                          const Tensor& data) {
    const FileRows& rows = *target.rows;
    const int64_t together = rows.each * target.row_elements, bytes = size_of(data.dtype);
    const std::byte* from = data.data;
    const int64_t first = range.first - target.part_begin, end = first + range.count;
    // Where the rows of the part lie one after another, one write has them all.
    const bool dense = rows.each == rows.stride;
    for (int64_t i = first; i < end;) {
      const int64_t run = dense ? end - i : std::min(end - i, together - i % together);
      const int64_t row = i / together * rows.stride + rows.begin;
      const int64_t to = row * target.row_elements + i % together;
      file.write_at({from, size_t(run * bytes)}, target.file_offset + to * bytes);
      from += run * bytes;
      i += run;
    }
  }

  static void write_buffer(File& file, int64_t offset, const Source& source) {
    std::vector<float> values(size_t(source.tensor.shape.numel()));
    source.buffer->buffer->fill(*source.buffer->mixer, values);
    file.write_at(std::as_bytes(std::span(values)), offset);
  }

  FileSystem& files_;
  std::string directory_;
  const TensorReader& reader_;
  std::span<const LogicalTensor> natives_;
  const HfWriteOptions& options_;
  std::vector<std::vector<double>> buffers_;  // of each worker
};

void write_all(FileSystem& files, const std::string& directory, const ModelSpec& spec,
               TensorsOf tensors_of, const TensorReader& reader, const HfWriteOptions& options) {
  const std::vector<LogicalTensor> natives = tensors_of(spec, options.dtype);
  std::vector<Source> sources = sources_of(spec, natives, options.layout);
  int64_t total = 0;
  for (const Source& source : sources) total += source.bytes();
  Writer writer(files, directory, reader, natives, options);
  const auto shards = cut_into_files(std::move(sources), options.max_file_bytes);
  Json weight_map;
  for (size_t n = 0; n < shards.size(); ++n) {
    const std::string name =
        shards.size() == 1 ? std::string(kHfSingleFile)
                           : fmt::format("model-{:05}-of-{:05}.safetensors", n + 1, shards.size());
    writer.write_shard(name, shards[n]);
    for (const Source& source : shards[n]) weight_map[source.tensor.name] = name;
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    writer.write_file(kHfIndexFile, index.dump(2) + "\n");
  }
  const ModelKeys keys = keys_of(spec);
  writer.write_file(kHfConfigFile, to_hf_config(keys, options.dtype, options.layout));
  writer.write_file(kHfGenerationFile, to_hf_generation_config(keys));
  for (const auto& [name, content] : options.files) writer.write_file(name, content);
}

}  // namespace

void write_hf_model(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                    TensorsOf tensors_of, const TensorReader& reader,
                    const HfWriteOptions& options) {
  ASHLAR_ASSERT(options.dtype == DType::kBF16 || options.dtype == DType::kF32 ||
                options.dtype == DType::kF64);
  ASHLAR_ASSERT(options.max_file_bytes > 0);
  std::string target = directory;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  ASHLAR_REQUIRE(!files.stat(target), kConfig,
                 "{}: exists already; expected a new directory: choose another name or remove it",
                 target);
  const std::string temporary = target + ".tmp";
  files.make_directories(parent_of(target));
  files.remove_all(temporary);
  try {
    files.make_directories(temporary);
    write_all(files, temporary, spec, tensors_of, reader, options);
    files.sync_directory(temporary);
    files.rename_new(temporary, target);
  } catch (...) {
    try {
      files.remove_all(temporary);
    } catch (const Error&) {
      // The first failure is the one to report.
    }
    throw;
  }
  files.sync_directory(parent_of(target));
}

}  // namespace ashlar::checkpoint
