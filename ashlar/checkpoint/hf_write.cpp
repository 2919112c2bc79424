#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/checkpoint/hf_files.h"
#include "ashlar/checkpoint/hf_model.h"
#include "ashlar/checkpoint/safetensors.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kChunkBytes = 4 << 20;  // converted and written at a time

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One tensor of a file, and the pieces that its rows are of, or the buffer that it is.
struct Source {
  FileTensor tensor;
  DType dtype;                            // in the file
  std::vector<const Piece*> pieces = {};  // as many as tensor.rows
  std::optional<FileBuffer> buffer = {};
  int64_t bytes() const { return tensor.shape.numel() * size_of(dtype); }
};

std::vector<Source> sources_of(const ModelSpec& spec, TensorsOf tensors_of,
                               std::span<const Piece> pieces, const HfWriteOptions& options) {
  std::map<std::string_view, const Piece*> by_name;
  for (const Piece& piece : pieces)
    ASHLAR_REQUIRE(by_name.emplace(piece.logical.name, &piece).second, kData,
                   "tensor {} is given twice; expected every tensor of the model once",
                   piece.logical.name);
  const std::vector<LogicalTensor> natives = tensors_of(spec, options.dtype);
  std::vector<const Piece*> found;
  for (const LogicalTensor& tensor : natives) {
    const auto at = by_name.find(tensor.name);
    ASHLAR_REQUIRE(at != by_name.end(), kData,
                   "tensor {} is missing; expected the {} tensors of the model", tensor.name,
                   natives.size());
    const Piece& piece = *at->second;
    ASHLAR_REQUIRE(piece.logical.global_shape == tensor.global_shape, kData,
                   "tensor {} has shape {}; the model's sizes give {}", tensor.name,
                   piece.logical.global_shape.to_string(), tensor.global_shape.to_string());
    ASHLAR_ASSERT(piece.box == Box::whole(tensor.global_shape));
    ASHLAR_ASSERT(piece.data.device == Device::kCpu &&
                  piece.data.numel() == tensor.global_shape.numel());
    found.push_back(&piece);
  }
  ASHLAR_REQUIRE(by_name.size() == natives.size(), kData,
                 "{} tensors are given; expected only the {} of the model", by_name.size(),
                 natives.size());
  std::vector<Source> sources;
  const HfNames names = names_of(keys_of(spec));
  for (FileTensor& tensor : file_tensors(natives, spec.blocks, options.layout, names)) {
    const DType dtype = natives[tensor.rows[0].native].dtype;
    Source source{.tensor = std::move(tensor), .dtype = dtype};
    for (const FileRows& rows : source.tensor.rows) source.pieces.push_back(found[rows.native]);
    sources.push_back(std::move(source));
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

class Writer {
 public:
  Writer(FileSystem& files, const std::string& directory, const HfWriteOptions& options,
         int64_t total)
      : files_(files), directory_(directory) {
    if (options.log) progress_.emplace(*options.log, "writing " + directory, total, "B");
  }

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
    for (size_t n = 0; n < sources.size(); ++n) {
      const int64_t begin = plan.data_begin + plan.entries[n].begin;
      sources[n].buffer ? write_buffer(*file, begin, sources[n])
                        : write_tensor(*file, begin, sources[n]);
    }
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
  void write_tensor(File& file, int64_t offset, const Source& source) {
    const int64_t row_elements = source.tensor.shape.numel() / source.tensor.shape[0];
    for (size_t i = 0; i < source.pieces.size(); ++i) {
      const Tensor& data = source.pieces[i]->data;
      const FileRows& rows = source.tensor.rows[i];
      const int64_t together = rows.each * row_elements;
      // The parts of a tensor are equal, and lie one after the other along dim 0.
      const int64_t count = data.numel() / rows.num_parts;
      std::byte* from = data.data + rows.part * count * size_of(data.dtype);
      for (int64_t group = 0; group < count / together; ++group) {
        const int64_t to = (group * rows.stride + rows.begin) * row_elements;
        write_elements(file, offset + to * size_of(source.dtype), source.dtype,
                       {from, data.dtype, Device::kCpu, Shape{together}});
        from += together * size_of(data.dtype);
      }
    }
  }

  void write_buffer(File& file, int64_t offset, const Source& source) {
    std::vector<float> values(size_t(source.tensor.shape.numel()));
    source.buffer->buffer->fill(*source.buffer->mixer, values);
    auto* data = reinterpret_cast<std::byte*>(values.data());
    write_elements(file, offset, source.dtype,
                   {data, DType::kF32, Device::kCpu, source.tensor.shape});
  }

  // As elements of `dtype`.
  void write_elements(File& file, int64_t offset, DType dtype, const Tensor& data) {
    const int64_t to_size = size_of(dtype), chunk = kChunkBytes / to_size;
    for (int64_t done = 0; done < data.numel(); done += chunk) {
      const int64_t n = std::min(chunk, data.numel() - done);
      std::byte* from = data.data + done * size_of(data.dtype);
      if (data.dtype != dtype) {
        buffer_.resize(size_t(n * to_size));
        copy_convert({from, data.dtype, Device::kCpu, Shape{n}},
                     {buffer_.data(), dtype, Device::kCpu, Shape{n}});
        from = buffer_.data();
      }
      file.write_at({from, size_t(n * to_size)}, offset + done * to_size);
      if (progress_) progress_->advance(n * to_size);
    }
  }

  FileSystem& files_;
  std::string directory_;
  std::optional<Progress> progress_;
  std::vector<std::byte> buffer_;
};

void write_all(FileSystem& files, const std::string& directory, const ModelSpec& spec,
               std::vector<Source> sources, const HfWriteOptions& options) {
  int64_t total = 0;
  for (const Source& source : sources) total += source.bytes();
  Writer writer(files, directory, options, total);
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
                    TensorsOf tensors_of, std::span<const Piece> tensors,
                    const HfWriteOptions& options) {
  ASHLAR_ASSERT(options.dtype == DType::kBF16 || options.dtype == DType::kF32 ||
                options.dtype == DType::kF64);
  ASHLAR_ASSERT(options.max_file_bytes > 0);
  std::string target = directory;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  ASHLAR_REQUIRE(!files.stat(target), kConfig,
                 "{}: exists already; expected a new directory: choose another name or remove it",
                 target);
  std::vector<Source> sources = sources_of(spec, tensors_of, tensors, options);
  const std::string temporary = target + ".tmp";
  files.make_directories(parent_of(target));
  files.remove_all(temporary);
  try {
    files.make_directories(temporary);
    write_all(files, temporary, spec, std::move(sources), options);
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
