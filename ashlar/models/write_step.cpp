// How it works.  The step is planned like every save (save_plan.h), from pieces without memory, and
// StepWriter writes and commits it.  Only the source of the bytes differs: workers fill a batch of
// one chunk each, with one read of all ranges in the chunk, while one of them first writes the
// previous batch, in order.
#include "ashlar/models/write_step.h"

#include <algorithm>
#include <cstring>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/save/step_writer.h"
#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/output.h"
#include "ashlar/core/threads.h"
#include "ashlar/models/slabs.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/weights.h"

namespace ashlar::models {
namespace {

constexpr double kRetryDelay_s = 0.05;

// Fills chunks of the planned files.
class ChunkFiller {
 public:
  ChunkFiller(const checkpoint::SavePlan& plan, const TensorReader& reader)
      : plan_(plan), reader_(reader), boxes_(plan.files.size()) {
    for (const checkpoint::IndexTensor& tensor : plan.index.tensors)
      for (const checkpoint::IndexBox& box : tensor.boxes)
        boxes_[box.file].push_back({&tensor.logical, box.byte_offset});
  }

  void fill(size_t file, int64_t chunk, std::span<std::byte> out) const {
    const int64_t begin = chunk * checkpoint::kChunkBytes, end = begin + int64_t(out.size());
    const std::string& head = plan_.files[file].head;
    if (begin < int64_t(head.size()))
      std::memcpy(out.data(), head.data() + begin,
                  std::min(out.size(), size_t(int64_t(head.size()) - begin)));
    std::vector<Piece> pieces;
    for (const auto& [logical, offset] : boxes_[file]) {
      const int64_t each = size_of(logical->dtype);
      const int64_t first = std::max(begin, offset);
      const int64_t last = std::min(end, offset + logical->global_shape.numel() * each);
      if (first >= last) continue;
      const TensorRange range{0, (first - offset) / each, (last - first) / each};
      add_pieces(*logical, range,
                 {out.data() + (first - begin), logical->dtype, Device::kCpu, Shape{range.count}},
                 pieces);
    }
    if (!pieces.empty()) reader_.read(pieces);
  }

 private:
  struct Whole {
    const LogicalTensor* logical;
    int64_t offset;  // bytes, in the file
  };
  const checkpoint::SavePlan& plan_;
  const TensorReader& reader_;
  std::vector<std::vector<Whole>> boxes_;  // of each file
};

class ModelStepWriter {
 public:
  ModelStepWriter(FileSystem& files, const std::string& root, checkpoint::SavePlan& plan,
                  const TensorReader& reader, int num_threads, checkpoint::Lease& lease, Log& log)
      : plan_(plan),
        lease_(lease),
        filler_(plan, reader),
        writer_(files, root, plan, kRetryDelay_s, log, times_),
        threads_(num_workers(num_threads)),
        num_buffers_(2 * size_t(threads_.size())),
        buffers_(
            aligned_memory(int64_t(num_buffers_) * checkpoint::kChunkBytes, "writing a model")),
        progress_(log, "writing " + root, plan.bytes, "B") {}

  std::string write() {
    try {
      writer_.begin();
      write_files();
      lease_.check();
      return writer_.publish(lease_.fence());
    } catch (...) {
      writer_.abandon(lease_.fence());
      throw;
    }
  }

 private:
  struct Chunk {
    size_t file;
    int64_t number, bytes;
    uint32_t crc = 0;
  };

  void write_files() {
    for (size_t file = 0; file < plan_.files.size(); ++file) {
      const int64_t size_bytes = plan_.files[file].file.size_bytes;
      for (int64_t n = 0; n < std::max<int64_t>(1, checkpoint::num_chunks(size_bytes)); ++n)
        chunks_.push_back(
            {file, n, std::min(checkpoint::kChunkBytes, size_bytes - n * checkpoint::kChunkBytes)});
    }
    const auto at_once = size_t(threads_.size());
    for (size_t begin = 0; begin < chunks_.size() + at_once; begin += at_once) {
      const size_t first = std::min(begin, chunks_.size());
      const size_t end = std::min(begin + at_once, chunks_.size());
      threads_.run(1 + int64_t(end - first), [&](int64_t task, int) {
        if (task > 0) return fill(first + size_t(task) - 1);
        if (begin > 0) write(begin - at_once, first);
      });
    }
  }
  void fill(size_t n) {
    filler_.fill(chunks_[n].file, chunks_[n].number, bytes_of(n));
    chunks_[n].crc = crc32c(bytes_of(n));
  }
  void write(size_t begin, size_t end) {
    for (size_t n = begin; n < end; ++n) {
      writer_.write_chunk(chunks_[n].file, chunks_[n].number, bytes_of(n), chunks_[n].crc);
      progress_.advance(chunks_[n].bytes);
    }
  }
  std::span<std::byte> bytes_of(size_t n) {
    return {buffers_.get() + n % num_buffers_ * checkpoint::kChunkBytes, size_t(chunks_[n].bytes)};
  }

  checkpoint::SavePlan& plan_;
  checkpoint::Lease& lease_;
  ChunkFiller filler_;
  checkpoint::PhaseRecorder times_{Clock::now()};
  checkpoint::StepWriter writer_;
  Threads threads_;
  std::vector<Chunk> chunks_;  // of all files
  size_t num_buffers_;         // of a chunk each, for two batches
  AlignedMemory buffers_;
  Progress progress_;
};

// A root holds no other files.  Remains of a killed attempt have names with a dot.
void require_own_root(FileSystem& files, const std::string& root) {
  const auto info = files.stat(root, LinkPolicy::kFollow);
  if (!info) return;
  ASHLAR_REQUIRE(info->type == FileInfo::Type::kDirectory, kConfig,
                 "{} exists already and is no directory; choose another name", root);
  std::string other;
  for (const std::string& name : files.list(root)) {
    if (checkpoint::parse_step_name(name)) return;  // the caller refuses a root with steps
    if (!name.starts_with('.')) other = name;
  }
  ASHLAR_REQUIRE(other.empty(), kConfig,
                 "{} holds {}, which is no part of a checkpoint root; choose a new directory", root,
                 other);
}

}  // namespace

ModelStepStats write_model_step(FileSystem& files, const std::string& root, const ModelStep& model,
                                const TensorReader& reader, int num_threads, Log& log) {
  require_own_root(files, root);
  NewDirectories directories(files);
  directories.make(join(root, checkpoint::kLeaseDirectory));
  checkpoint::Lease lease(files, root, log);
  ASHLAR_REQUIRE(checkpoint::committed_steps(files, root).empty(), kConfig,
                 "{} holds steps already; choose a new directory", root);
  checkpoint::collect_stale(lease.fence(), log);
  std::vector<Piece> pieces;
  for (const LogicalTensor& logical : nn::logical_tensors(model.spec, model.dtype))
    pieces.push_back({logical, Box::whole(logical.global_shape),
                      Tensor{nullptr, logical.dtype, Device::kCpu, logical.global_shape}});
  checkpoint::SaveRequest request;
  request.model = pieces;
  request.sections = model.sections;
  request.extra = model.extra;
  describe_model(model.spec, request);
  checkpoint::SavePlan plan = checkpoint::make_save_plan(
      request, checkpoint::to_text(checkpoint::random_id()), checkpoint::random_id(), 0, 1);
  plan.manifest.writer_version = "ashlar";
  const std::string directory =
      ModelStepWriter(files, root, plan, reader, num_threads, lease, log).write();
  directories.keep();
  return {directory, int64_t(pieces.size()), bytes_of(plan.index)};
}

}  // namespace ashlar::models
