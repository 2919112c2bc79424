// The pulse of a run: what every rank does at this moment, in a page of shared memory for each
// rank, which can still be read after the rank was killed.
//
// Where     DIRECTORY/RANK.PROCESS, where DIRECTORY is pulse_directory(RUN_DIR): a directory of
//           /dev/shm whose name is a hash of the run directory's path.  Pages are in memory because
//           in a file on a disk a store could wait for that disk, and a shared file system would
//           send them over the network.  Each machine has the pages of its own ranks.
// Lifetime  the writer removes its page when it is destroyed.  A killed process leaves it until the
//           next writer of the run on this machine, or remove_pulse(), removes the pages of
//           processes that are gone.
// Cost      an update is some stores and one reading of the clock, below 50 ns; it neither
//           allocates nor calls the system.  A page has 37 KB.
// Times     ns of the machine's steady clock to a tick of 1 to 10 ms (CLOCK_MONOTONIC_COARSE).
// Ring      the last 256 operations of groups.  One that has not ended is never overwritten: it may
//           be the one that the run hangs in.
// Threads   PulseWriter: one thread, except for started() and ended(), which any thread may call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/pulse_layout.h"

namespace ashlar {

// The activity of a rank.
enum class PulsePlace : uint8_t {
  kStart,     // before the state is loaded: plan, memory, data, comparing inputs
  kLoad,      // a checkpoint or first weights
  kData,      // waits for a batch
  kForward,   // and the loss
  kBackward,  // and recomputation
  kReduce,    // sums of gradients, losses and norms
  kUpdate,
  kSaveCopy,  // a save copies what the update will change
  kSaveWait,  // waits for saves
  kEvaluate,
  kEnd,
};
inline constexpr int kNumPulsePlaces = 11;
std::string_view name_of(PulsePlace place);  // "forward"

int64_t pulse_now_ns();

// The directory of this run's pages on this machine.  Neither it nor the run's need exist.
std::string pulse_directory(const std::string& run_directory);

struct PulseRank {
  int rank = 0, num_ranks = 1;
  int64_t attempt = 0;    // number of the start, if somebody counts them
  int64_t num_steps = 0;  // of the whole run; 0: unknown
};

// A group's operation as it is queued.
struct PulsePost {
  int group = -1;       // from add_group
  int lane = 0;         // operations of one lane run in their order
  int64_t number = -1;  // in the group; -1: not counted alike on all its ranks
  int64_t bytes = 0;
  std::string_view op = {}, label = {};  // cut to 16 and 48 bytes
};

class PulseWriter {
 public:
  // Makes the page; removes those of processes that are gone.
  // Errors  kStorage, also if another user has the directory.
  PulseWriter(const std::string& run_directory, const PulseRank& rank);
  ~PulseWriter();
  PulseWriter(const PulseWriter&) = delete;
  PulseWriter& operator=(const PulseWriter&) = delete;

  // block, micro_batch: -1: none.
  void enter(PulsePlace place, int64_t block = -1, int64_t micro_batch = -1);
  // The same within a larger place: an evaluation runs forward, and stays an evaluation.
  void enter_part(PulsePlace place, int64_t block, int64_t micro_batch);
  void set_step(int64_t step);  // updates done in the run
  void step_ended(int64_t step);
  // The work of the present place, in a unit of its own (batches of an evaluation): `done` of
  // `total`.  The next enter() ends it.
  void set_progress(int64_t done, int64_t total);

  // A group of so many ranks that this rank belongs to.  -1: there is no room for more groups.
  int add_group(uint64_t id, std::string_view name, int size);
  // Returns the operation's entry for the calls below; -1: it has none.
  int64_t post(const PulsePost& post);
  void started(int64_t entry);
  void ended(int64_t entry);
  // The rank's thread waits for this operation, until waited().
  void waits_for(int64_t entry);
  void waited();

 private:
  int64_t free_entry();
  std::string directory_, path_;
  PulseLayout* page_ = nullptr;
  PulsePlace place_ = PulsePlace::kStart;
  uint64_t num_posted_ = 0;
  int64_t next_entry_ = 0;
  int num_groups_ = 0;
};

// --- reading ---

struct PulseGroup {
  uint64_t id = 0;
  std::string name;
  int64_t size = 0;
  int64_t posted = 0;  // the number after that of its last numbered operation
};

struct PulseOperation {
  int64_t order = 0;  // operations of this rank before it
  int group = 0;      // in PulsePage::groups
  int lane = 0;
  int64_t number = -1, bytes = 0;
  std::string op, label;
  int64_t queued_ns = 0, started_ns = 0, ended_ns = 0;  // 0: not yet
  bool pending() const { return ended_ns == 0; }
};

// A page at one moment.  Words outside of the operations may be some ns apart.
struct PulsePage {
  int rank = 0, num_ranks = 1;
  int64_t process = 0, thread = 0;
  uint64_t start_ticks = 0;  // of the process (ProcessStat)
  int64_t attempt = 0;
  int64_t step = 0;        // updates done in the run
  int64_t steps_here = 0;  // of these, by this process: 0 during its first step
  int64_t num_steps = 0;   // of the whole run; 0: unknown
  PulsePlace place = PulsePlace::kStart;
  int block = -1, micro_batch = -1;
  int64_t changed_ns = 0;       // when the place, the step or the progress last changed
  int64_t operated_ns = 0;      // when an operation was last queued, began or ended
  int64_t done = 0, total = 0;  // of the place's work; total 0: not counted
  int64_t waits_for = -1;       // the order of the operation that the rank waits for; -1: none
  int64_t waiting_ns = 0;       // since when
  std::vector<PulseGroup> groups;
  std::vector<PulseOperation> operations;  // by order

  // When anything last changed, operations included.
  int64_t moved_ns() const { return std::max(changed_ns, operated_ns); }
  // The operation that the rank waits for; null: none, or it was not read whole.
  const PulseOperation* awaited() const;
};

// Whether the process that writes the page still runs; a zombie does not.
bool is_alive(const PulsePage& page);

// A page that is read again and again: it stays mapped, also after its file was removed.
class PulseReader {
 public:
  explicit PulseReader(const std::string& path);  // kCorrupt: no page, or of another version
  int64_t process() const;
  bool has_ended() const;  // the writer has ended and removed the page
  PulsePage page() const;
  // Without the groups, and of the operations only the one that the rank waits for: below 1 us.
  PulsePage head() const;

 private:
  struct Unmap {
    void operator()(const PulseLayout* page) const;
  };
  std::unique_ptr<const PulseLayout, Unmap> page_;
};

struct PulseFile {
  int rank = 0;
  int64_t process = 0;
  std::string path;
};
// The files of the run's pages on this machine, by path.
// Errors  kStorage if another user has the directory.
std::vector<PulseFile> pulse_files(const std::string& run_directory);
// One page of each rank on this machine, by rank: that of the living process, or else of the one
// that started last.  Files that are no pages are left out.
// Errors  kStorage if another user has the directory.
std::map<int, PulsePage> read_pulse(const std::string& run_directory);
// Removes the pages of processes that are gone, and the directory if no page is left.
void remove_pulse(const std::string& run_directory);

}  // namespace ashlar
