// How it works.  write_all() lists the tensors of the files (sources_of), cuts the list into files
// (cut_into_files) and writes one file after another:
//
//   write_shard   writes the header, reserves room, and lists for each tensor of the file the
//                 ranges of native tensors that make up its rows (parts)
//   slabs         these ranges in the reader's order, at most kSlabElements at a time.  Each worker
//                 reads one in the type of the file, or in F64 and rounds it (narrow) if that type
//                 loses something.  write_range() writes it, group by group of the rows of FileRows
//
// So memory holds a slab for each worker, and the reader's memory for it.
#include "ashlar/models/hf/write.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/output.h"
#include "ashlar/models/hf/files.h"
#include "ashlar/models/slabs.h"
#include "ashlar/nn/weights.h"
#include "ashlar/tensor/f16.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::models {
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

// If a tensor of a file is made of several natives, they all get its type.
std::vector<Source> sources_of(const ModelSpec& spec, std::span<LogicalTensor> natives,
                               HfLayout layout) {
  std::vector<Source> sources;
  const HfNames names = names_of(spec);
  for (FileTensor& tensor : file_tensors(natives, spec.blocks, layout, names)) {
    DType dtype = natives[tensor.rows[0].native].dtype;
    for (const FileRows& rows : tensor.rows) dtype = wider(dtype, natives[rows.native].dtype);
    for (const FileRows& rows : tensor.rows) natives[rows.native].dtype = dtype;
    sources.push_back({.tensor = std::move(tensor), .dtype = dtype});
  }
  for (const FileBuffer& buffer : file_buffers(spec.blocks, names))
    sources.push_back({.tensor = {buffer.name, buffer.buffer->shape(*buffer.mixer), {}},
                       .dtype = DType::kF32,
                       .buffer = buffer});
  return sources;
}

// Each file takes consecutive tensors up to the limit; a larger tensor gets a file of its own.
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

// The part of a file that a range of a native tensor fills: its rows, and where the file's tensor
// begins.
struct Target {
  const FileRows* rows;
  int64_t file_offset, part_begin;  // bytes; the first element of the part in the native tensor
  int64_t row_elements;
};

// Rounds values of a tensor to the type of `out` and counts what that costs.
void narrow(std::span<double> values, const Tensor& out, const std::string& name,
            HfWriteStats& stats) {
  const auto judge = [&](const auto* kept) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto rounded = double(float(kept[i]));
      if (rounded == values[i] || std::isnan(values[i])) continue;
      ASHLAR_REQUIRE(std::isfinite(rounded), kConfig,
                     "{} holds {}, which is beyond the range of {}; choose another type: bf16, "
                     "fp32 or fp64 (--dtype)",
                     name, values[i], name_of(out.dtype));
      ++stats.changed;
      stats.vanished += rounded == 0;
    }
  };
  if (out.dtype == DType::kF16) {
    std::ranges::transform(values, out.as<f16>(), [](double value) { return f16(value); });
    return judge(out.as<f16>());
  }
  copy_convert(tensor_over(values), out);
  out.dtype == DType::kBF16 ? judge(out.as<bf16>()) : judge(out.as<float>());
}

class Writer {
 public:
  Writer(FileSystem& files, const std::string& directory, const TensorReader& reader,
         std::span<const LogicalTensor> natives, const HfWriteOptions& options)
      : files_(files),
        directory_(directory),
        reader_(reader),
        natives_(natives),
        options_(options),
        workers_(size_t(num_workers(options.num_threads))) {}

  void write_shard(const std::string& name, const std::vector<Source>& sources) {
    std::vector<checkpoint::TensorSpec> specs;
    for (const Source& source : sources) {
      const auto dims = source.tensor.shape.dims();
      specs.push_back({source.tensor.name, source.dtype, {dims.begin(), dims.end()}});
    }
    // Without this metadata transformers refuses the file.
    const checkpoint::SafetensorsPlan plan =
        checkpoint::plan_safetensors(specs, {{"format", "pt"}}, checkpoint::HeaderStyle::kPlain);
    const auto file = files_.create(join(directory_, name));
    file->reserve(plan.file_bytes);
    file->write_at(bytes_of(plan.header), 0);
    std::vector<Target> targets;
    std::vector<TensorRange> parts;  // as many
    std::vector<LogicalTensor> of;   // the native tensors of the parts
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
                    write_slab(*file, slab, of, targets, workers_[size_t(worker)]);
                  });
    file->sync();
    file->close();
  }

  HfWriteStats stats() const {
    HfWriteStats all;
    for (const LogicalTensor& native : natives_) all.values += native.global_shape.numel();
    for (const Worker& worker : workers_) {
      all.changed += worker.stats.changed;
      all.vanished += worker.stats.vanished;
    }
    return all;
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
  // The memory and the statistics of a worker.
  struct Worker {
    std::vector<double> read, rounded;
    HfWriteStats stats;
  };

  // The type in which a tensor is read: that of the file, unless this loses something.
  DType read_type(const LogicalTensor& native) const {
    const bool exact = wider(native.dtype, reader_.type_of(native.name)) == native.dtype;
    return exact ? native.dtype : DType::kF64;
  }

  void write_slab(File& file, const Slab& slab, std::span<const LogicalTensor> of,
                  std::span<const Target> targets, Worker& worker) const {
    int64_t used = 0, most = 0;  // elements of 8 bytes, so that all are aligned for every type
    std::vector<int64_t> begin;
    for (const TensorRange& range : slab) {
      begin.push_back(used);
      used += (range.count * size_of(read_type(of[range.tensor])) + 7) / 8;
      most = std::max(most, (range.count * size_of(of[range.tensor].dtype) + 7) / 8);
    }
    worker.read.resize(std::max(worker.read.size(), size_t(used)));
    worker.rounded.resize(std::max(worker.rounded.size(), size_t(most)));
    std::vector<Piece> pieces;
    std::vector<Tensor> data;
    for (size_t n = 0; n < slab.size(); ++n) {
      const LogicalTensor& native = of[slab[n].tensor];
      data.push_back({reinterpret_cast<std::byte*>(worker.read.data() + begin[n]),
                      read_type(native), Device::kCpu, Shape{slab[n].count}});
      add_pieces(native, slab[n], data.back(), pieces);
    }
    reader_.read(pieces);
    for (size_t n = 0; n < slab.size(); ++n) {
      const LogicalTensor& native = of[slab[n].tensor];
      if (data[n].dtype != native.dtype) {
        const Tensor rounded{reinterpret_cast<std::byte*>(worker.rounded.data()), native.dtype,
                             Device::kCpu, data[n].shape};
        narrow(data[n].span<double>(), rounded, native.name, worker.stats);
        data[n] = rounded;
      }
      write_range(file, slab[n], targets[slab[n].tensor], data[n]);
    }
  }

  static void write_range(File& file, const TensorRange& range, const Target& target,
                          const Tensor& data) {
    const FileRows& rows = *target.rows;
    const int64_t together = rows.each * target.row_elements, bytes = size_of(data.dtype);
    const std::byte* from = data.data;
    const int64_t first = range.first - target.part_begin, end = first + range.count;
    // If the rows of the part are contiguous, one write takes them all.
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
  std::vector<Worker> workers_;
};

HfWriteStats write_all(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                       const TensorReader& reader, const HfWriteOptions& options) {
  std::vector<LogicalTensor> natives = nn::logical_tensors(spec, options.dtype);
  if (options.types)
    for (LogicalTensor& native : natives) native.dtype = options.types->of(native.name);
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
  const DType dtype = options.types ? options.types->usual : options.dtype;
  writer.write_file(kHfConfigFile, to_hf_config(spec, dtype, options.layout));
  if (!options.files.contains(std::string(kHfGenerationFile)))
    writer.write_file(kHfGenerationFile, to_hf_generation_config(spec));
  for (const auto& [name, content] : options.files) writer.write_file(name, content);
  return writer.stats();
}

}  // namespace

HfWriteStats write_hf_model(FileSystem& files, const std::string& directory, const ModelSpec& spec,
                            const TensorReader& reader, const HfWriteOptions& options) {
  ASHLAR_ASSERT(is_hf_readable(options.dtype));
  ASHLAR_ASSERT(options.max_file_bytes > 0);
  Outputs outputs(files, {directory}, {});
  for (const std::string& left : outputs.left_behind())
    if (options.log)
      options.log->warn("{} was left by an export that was killed, or another one is writing it",
                        left);
  const HfWriteStats stats =
      write_all(files, outputs.make_directory(directory), spec, reader, options);
  outputs.publish();
  return stats;
}

}  // namespace ashlar::models
