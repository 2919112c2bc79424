// The plan of what one writer of a save writes: every file's header and byte sources, the index and
// the manifest.  It is a pure function of the request, except for file ids; no tensor is read yet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/manifest.h"
#include "ashlar/core/clock.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

// A file under extra/: name as is_plain_name allows.
struct Blob {
  std::string name;
  std::string bytes;
  bool json = false;
};

struct SaveRequest {
  int64_t step = 0;
  // The caller's wait for a place before it called save() (Checkpointer::wait_for_place): the
  // save's times then count from `begin`.
  struct Wait {
    Clock::time_point begin, end;
  };
  std::optional<Wait> waited = std::nullopt;
  // The id of this attempt to save the step: the same for all its writers, never used before
  // (random_id).  Zero: drawn here, if there is one writer.
  Id attempt{};
  // Boxes of logical tensors; those of all writers together tile every tensor they name.  Optimizer
  // states are named optim.<state>.<parameter>.  Model and optimizer bytes must stay unchanged
  // until before_update() returns, or until their source has read them; loader tensors and all
  // members below are copied inside save(), and only writer 0 has any.
  std::span<const Piece> model = {}, optim = {}, loader = {};
  // The tensors that model and optim of all writers together must consist of; given by writer 0.
  // If it is empty, a tensor that no writer has goes unnoticed until a strict load.
  std::span<const LogicalTensor> whole = {};
  std::vector<Blob> extra = {};                      // trainer.json, recipe, ...; no timing.json
  std::map<std::string, std::string> sections = {};  // of the manifest: name -> JSON object
  std::map<std::string, std::string> aliases = {};   // tied name -> the tensor that is stored
  // Returns when model and optim may be read.  It is called on a thread of the checkpointer; an
  // error fails the save.  Empty: they may be read at once.
  std::function<void()> await_data = {};
  // Brings to disk what must be there before the step exists; for writer 0.  It is called on a
  // thread of the checkpointer when all data are written; an error fails the save.
  std::function<void()> before_commit = {};
};

struct FilePlan {
  IndexFile file;    // chunk_crcs are filled as chunks are hashed
  std::string head;  // header, or the whole file where the bytes were copied
  // A tensor's box.  If its memory has gaps, it consists of runs of run_bytes, laid out by `outer`.
  struct Source {
    struct Dim {
      int64_t count, stride_bytes;
    };
    Tensor tensor;
    int64_t bytes, run_bytes;
    std::vector<Dim> outer;  // the fastest last; empty: bytes == run_bytes
  };
  std::vector<Source> sources;  // follow the head in this order
};

// Reads the memory of tensors while a snapshot is copied: where that is not the host's, it can be
// brought over ahead of the reads.
//
// Errors   an Error fails the save.
// Threads  one; HostSource several.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  // A snapshot of these files begins: every byte of their sources is read once, in their order.
  virtual void begin(std::span<const FilePlan>) {}
  // Bytes [offset, offset + out.size()) of the source, which are there when it returns.
  virtual void read(const FilePlan::Source& source, int64_t offset, std::span<std::byte> out) = 0;
  // Nothing more is read of the snapshot of a save, whether it began or not and was read whole.
  virtual void end() noexcept {}
};
class HostSource final : public SnapshotSource {
 public:
  void read(const FilePlan::Source& source, int64_t offset, std::span<std::byte> out) override;
};

struct StoredFiles;  // stored_files.h

struct SavePlan {
  int64_t step = 0;
  int writer_rank = 0, num_writers = 1;
  Id attempt{};
  std::string run_id;
  // A hash of run, writer, number of writers, and of name, type, role, shape, box and strides of
  // every piece of model, optimizer and loader.  Plans with the same hash have the same boxes at
  // the same bytes of the same data files; only ids and checksums differ.
  Id hash{};
  std::vector<FilePlan> files;
  Index index;  // without files: join_files() adds them when their checksums are known
  Manifest manifest;
  std::shared_ptr<const std::vector<LogicalTensor>> whole;  // as the request has it
  int64_t bytes = 0, bytes_to_expect = 0;  // of this writer's files; of all writers', if known
  int64_t chunks = 0;  // of this writer's files; an empty file passes through memory as one

  // The input of fill_in(): the files of a component, which are the same in every save, and the
  // memory of its pieces in this save.
  struct Pending {
    std::shared_ptr<const StoredFiles> stored;
    std::vector<std::byte*> memory;
  };
  std::vector<Pending> pending;  // in the order of files; before those that are already there
};

// Plans the saves of one writer.  Files, boxes and headers are planned once and serve as long as
// the pieces stay the same; a plan then takes the memory, step and ids of the new request.  From
// tensors on meta it makes plans that only have sizes.
// Errors  kCorrupt if the boxes of a single writer do not tile a tensor (names tensor and element),
//         kConfig if two extra files share a name.
class SavePlanner {
 public:
  SavePlanner(std::string run_id, int writer_rank, int num_writers);
  ~SavePlanner();
  // Copies the parts of the request that may change after it returns, compares its pieces with the
  // known ones, and leaves the rest, which takes longer, to fill_in().
  SavePlan plan(const SaveRequest& request, const Id& attempt);
  int64_t num_made() const { return num_made_; }  // how often files were planned

 private:
  struct Known;
  Id hash_of(const SaveRequest& request) const;
  void make(const SaveRequest& request);
  void check_first_cover(SavePlan plan);
  std::string run_id_;
  int writer_rank_, num_writers_;
  std::unique_ptr<Known> known_;  // what the last plan was made from
  std::shared_ptr<const std::vector<LogicalTensor>> whole_;
  int64_t num_made_ = 0;
};

// Adds the files of model and optimizer to the plan: stamped headers, boxes in the index, sources.
// It needs only the memory of the pieces.  Call it once, before files are used.
void fill_in(SavePlan& plan);

// Makes a single plan, filled in.
SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt,
                        int writer_rank, int num_writers);

// Adds the files, with their checksums, to the index, after the last chunk was written.
void join_files(SavePlan& plan);
// Adds a file under extra/, which is not written yet, to the index, which already has the files of
// all writers; returns its path.
std::string add_late_file(SavePlan& plan, const Blob& blob);
// kCorrupt unless the boxes of the index, which are those of all writers, tile every tensor (names
// tensor and element).
void check_cover(const SavePlan& plan);
// The same from the sum of the cover hashes that all writers reported, which must be that of the
// tensors of the whole state; boxes are examined only if it is not.  The index has all files and
// boxes.
void check_cover(const SavePlan& plan, const CoverHash& told);
// Completes an index that has all files and boxes: sorts boxes, adds parents and aliases, fills the
// manifest.  kCorrupt unless the tensors are those of the whole state.
void complete(SavePlan& plan);

// Copies bytes [offset, offset + out.size()) of the planned file.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out,
                    SnapshotSource& from);
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out);  // HostSource

}  // namespace ashlar::checkpoint
