// What one writer of a save will write: every file's header and byte sources, the index and the
// manifest.  A pure function of the request (file ids apart); nothing is read from the tensors yet.
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
  // What the caller waited for a place before it called save() (Checkpointer::wait_for_place): the
  // save's times then run from `begin`.
  struct Wait {
    Clock::time_point begin, end;
  };
  std::optional<Wait> waited = std::nullopt;
  // Names this try to save the step: the same for all its writers, never used before (random_id).
  // Zero: drawn here, if there is one writer.
  Id attempt{};
  // Boxes of logical tensors; those of all writers together tile every tensor they name.  Optimizer
  // states are named optim.<state>.<parameter>.  Model and optimizer bytes must stay as they are
  // until before_update() returns; loader tensors and everything below are copied inside save(),
  // and only writer 0 has any.
  std::span<const Piece> model, optim, loader;
  // The tensors that model and optim of all writers together must be, no more and no less; writer 0
  // tells.  If it is empty, a tensor that nobody has goes unseen until a strict load.
  std::span<const LogicalTensor> whole;
  std::vector<Blob> extra;                      // trainer.json, recipe, ...; no timing.json
  std::map<std::string, std::string> sections;  // of the manifest: name -> JSON object
  std::map<std::string, std::string> aliases;   // tied name -> the tensor that is stored
  // Returns when model and optim may be read, called on a thread of the checkpointer's; what it
  // throws fails the save.  Empty: they may be read at once.
  std::function<void()> await_data;
  // Brings to disk what must be there before the step exists; writer 0's.  It is called on a thread
  // of the checkpointer's when all data are written; what it throws fails the save.
  std::function<void()> before_commit;
};

struct FilePlan {
  IndexFile file;    // chunk_crcs are filled as chunks are hashed
  std::string head;  // header, or the whole file where the bytes were copied
  // A tensor's box.  Where its memory has gaps: runs of run_bytes each, which lie as `outer` says.
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

// Reads the memory of tensors while a snapshot is copied: where that is not the host's, whole
// chunks can be brought over at a time.
//
// Threads  several.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  // Bytes [offset, offset + out.size()) of the source, which are there when it returns.
  virtual void read(const FilePlan::Source& source, int64_t offset,
                    std::span<std::byte> out) const = 0;
};
class HostSource final : public SnapshotSource {
 public:
  void read(const FilePlan::Source& source, int64_t offset,
            std::span<std::byte> out) const override;
};

struct StoredFiles;  // stored_files.h

struct SavePlan {
  int64_t step = 0;
  int writer_rank = 0, num_writers = 1;
  Id attempt{};
  std::string run_id;
  // Of run, writer, number of writers and, of every piece of model, optimizer and loader, name,
  // type, role, shape, box and strides.  Plans with one hash have the same boxes at the same bytes
  // of the same data files; only ids and checksums differ.
  Id hash{};
  std::vector<FilePlan> files;
  Index index;  // without files: join_files() adds them when their checksums are known
  Manifest manifest;
  std::shared_ptr<const std::vector<LogicalTensor>> whole;  // as the request has it
  int64_t bytes = 0, bytes_to_expect = 0;  // of this writer's files; of all writers', if it is told
  int64_t chunks = 0;  // of this writer's files; an empty file passes through memory as one

  // What fill_in() has yet to turn into files: those of a component as they are in every save, and
  // the memory of its pieces in this one.
  struct Pending {
    std::shared_ptr<const StoredFiles> stored;
    std::vector<std::byte*> memory;
  };
  std::vector<Pending> pending;  // in the order of files; before those that are already there
};

// Plans the saves of one writer.  Files, boxes and headers are planned once and serve as long as
// the pieces stay the same; a plan then takes the new pieces' memory, step and ids.
// Tensors on meta make plans that only tell sizes.
// Errors  kCorrupt if the boxes of a single writer do not tile a tensor (names tensor and element),
//         kConfig if two extra files share a name.
class SavePlanner {
 public:
  SavePlanner(std::string run_id, int writer_rank, int num_writers);
  ~SavePlanner();
  // Copies of the request what may change when this returns, compares its pieces with those that
  // are known, and leaves the rest, which takes longer, to fill_in().
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

// Gives the plan its files of model and optimizer: stamped headers, boxes in the index, sources.
// Needs nothing of the request but the pieces' memory.  To be called once, before files are used.
void fill_in(SavePlan& plan);

// One plan, filled in.
SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt,
                        int writer_rank, int num_writers);

// Adds the files, with their checksums, to the index.  After the last chunk was written.
void join_files(SavePlan& plan);
// Adds a file under extra/ that is not written yet to the index, which has the files of all
// writers, and gives its path.
std::string add_late_file(SavePlan& plan, const Blob& blob);
// The index has all boxes: kCorrupt unless they tile every tensor (names tensor and element).
void check_cover(const SavePlan& plan);
// The same from the sum of cover hashes that all writers told, and without a look at their boxes
// unless it is wrong: the sum must be that of the tensors that make the state whole.  The index has
// all files and boxes.
void check_cover(const SavePlan& plan, const CoverHash& told);
// The index has all files and boxes: sorts boxes, adds parents and aliases, fills the manifest.
// kCorrupt unless the tensors are those that make the state whole.
void complete(SavePlan& plan);

// Copies bytes [offset, offset + out.size()) of the planned file.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out,
                    const SnapshotSource& from = HostSource());

}  // namespace ashlar::checkpoint
