// How the emulator works.  A block's threads are fibers: each has a stack, ashlar_switch_stacks
// goes from one to another in a dozen instructions, and all run on the thread that launched the
// kernel.  Blocks run one after another.
// Where threads meet (a barrier, a sum over lanes, a matrix instruction), the emulator counts
// arrivals.  Every thread but the last gives way to the next one that can run, in the order of the
// mode.  If none can, a thread has ended early or waits elsewhere: the launch returns an error that
// names both lines.  Shared memory begins as NaN and, like device memory, ends at a page that no
// access may touch.  copy_async moves its bytes at once or, in lazy modes, at the wait for them.
// For ThreadSanitizer the kernels are compiled with it and this file without.  Fibers are then
// threads that only barriers put in order, and it reports every race within a block and between
// blocks with both lines, whatever the mode.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "ashlar/kernels/gpu/emulator/host_view.h"
#include "ashlar/kernels/gpu/emulator/memory.h"
#include "ashlar/kernels/gpu/emulator/mode.h"
#include "ashlar/kernels/gpu/gpu.h"

extern "C" {
void ashlar_switch_stacks(void** from, void* to);
#if ASHLAR_RACES
void* __tsan_create_fiber(unsigned);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_read_range(const void*, unsigned long);
void __tsan_write_range(void*, unsigned long);
const char* __tsan_default_options() {
  return "atexit_sleep_ms=0 handle_segv=0 handle_sigbus=0";
}
#else
inline void* __tsan_create_fiber(unsigned) {
  return nullptr;
}
inline void* __tsan_get_current_fiber() {
  return nullptr;
}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
inline void __tsan_read_range(const void*, unsigned long) {}
inline void __tsan_write_range(void*, unsigned long) {}
#endif
}

// Saves the registers that a called function must keep, and the stack pointer, and returns on the
// other stack.
asm(R"(
.text
.globl ashlar_switch_stacks
ashlar_switch_stacks:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

namespace ashlar::device {
namespace emulator {

constinit thread_local Fiber* current = nullptr;

namespace {

constexpr bool kFindsRaces = ASHLAR_RACES;
constexpr unsigned kNoOrder = 1;  // a switch of fibers that puts nothing in order
constexpr size_t kStackBytes = size_t{kFindsRaces ? 256 : 64} << 10;
constexpr int kMaxThreads = 1024, kMaxSharedBytes = kWarp == 64 ? 64 << 10 : 227 << 10;
constexpr int kMaxFibers = kFindsRaces ? 2 * kMaxThreads : kMaxThreads;
constexpr size_t kVectorBytes = 16;

// At most 8, for the cost of each meeting grows with the number of fibers that there are.
int blocks_with_own_fibers(int size) {
  return std::min(8, kMaxFibers / size);
}

EmulatorMode mode = kModes[0];
int64_t launches = 0;

struct Meeting {
  int arrived = 0;
  int64_t number = 0;  // of meetings that are over
  Where where;
  void* brought[64] = {};
  char order[2];  // addresses for ThreadSanitizer, in turn, since two meetings may overlap
};

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Thread : Fiber {
  Thread() {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack = static_cast<std::byte*>(memory);
    mprotect(stack, kPageBytes, PROT_NONE);
  }
  bool can_run() const { return !ended && !(waits_for && waits_for->number == waits_number); }

  std::byte* stack;
  void *stack_pointer = nullptr, *sanitizer = __tsan_create_fiber(0);
  Meeting* waits_for = nullptr;
  int64_t waits_number = 0;
  Where where;
  bool ended = false;
  std::vector<Copy> copies;  // issued and not yet moved
  int num_groups = 0;        // of copies, committed
};

// The block that runs, and what stays the same for all blocks of a launch.
struct Block {
  Block(int num_threads, const std::function<void()>& kernel)
      : size(num_threads), body(&kernel), threads(size_t(num_threads)) {}

  int size;
  const std::function<void()>* body;
  std::vector<Thread*> threads;  // in the order in which they take turns
  std::vector<int> place;        // of a thread, by its index, in that order
  int first_able = 0;            // no thread before this place can run; for greedy modes
  Meeting all;
  std::vector<Meeting> lanes{32}, wide_lanes{16};  // of groups of 32 and of 64
  void *main_pointer = nullptr, *main_sanitizer = __tsan_get_current_fiber();
  std::string error;
  char begun, over;  // addresses for ThreadSanitizer
};
thread_local Block* block = nullptr;

Thread& me() {
  return *static_cast<Thread*>(current);
}

std::string text_of(const Where& where) {
  const std::string path = where.file_name();
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(where.line());
}

void switch_to(Thread* next) {  // null: back to run_block
  void** from = &me().stack_pointer;
  current = next;
  __tsan_switch_to_fiber(next ? next->sanitizer : block->main_sanitizer, kNoOrder);
  ashlar_switch_stacks(from, next ? next->stack_pointer : block->main_pointer);
}

// Ends the launch; the other threads of the block never run again.
void fail(const std::string& what) {
  block->error = "block " + std::to_string(current->block) + ": " + what;
  __tsan_release(&block->over);
  switch_to(nullptr);
}

void fail_blocked() {
  const auto blocked = std::find_if(block->place.begin(), block->place.end(), [](int place) {
    return !block->threads[size_t(place)]->ended;
  });
  if (blocked == block->place.end()) return switch_to(nullptr);  // all have ended
  const Thread& first = *block->threads[size_t(*blocked)];
  fail("thread " + std::to_string(first.thread) + " waits at " + text_of(first.where) +
       ", which others do not reach: they have ended or wait elsewhere");
}

void give_way() {
  const int n = block->size;
  const int first = mode.greedy ? block->first_able : block->place[size_t(me().thread)] + 1;
  const int count = mode.greedy ? n - first : n;
  for (int i = 0, at = first; i < count; ++i, ++at) {
    if (at == n) at = 0;
    Thread& next = *block->threads[size_t(at)];
    if (!next.can_run()) continue;
    block->first_able = at;
    if (&next != current) switch_to(&next);
    return;
  }
  fail_blocked();
}

// kOrders: what threads wrote before is seen by all of them after.  An exchange of values between
// lanes does not promise that on a device, and so not here.
enum class Memory { kOrders, kDoesNot };
void meet(Meeting& m, int size, Memory memory, Where where, void* mine = nullptr,
          void (*all_here)(void**) = nullptr) {
  if (m.arrived > 0 && (m.where.line() != where.line() || m.where.column() != where.column()))
    fail("thread " + std::to_string(me().thread) + " is at " + text_of(where) + ", others at " +
         text_of(m.where));
  m.where = me().where = where;
  if (mine) m.brought[me().thread & (size - 1)] = mine;  // size: that of a group of lanes
  char* order = &m.order[m.number % 2];
  if (memory == Memory::kOrders) __tsan_release(order);
  if (++m.arrived == size) {
    if (all_here) all_here(m.brought);
    m.arrived = 0;
    ++m.number;
    block->first_able = 0;
  } else {
    me().waits_number = m.number;
    me().waits_for = &m;
    give_way();
    me().waits_for = nullptr;
  }
  if (memory == Memory::kOrders) __tsan_acquire(order);
}

void enter_fiber() {
  __tsan_acquire(&block->begun);
  (*block->body)();
  me().ended = true;
  __tsan_release(&block->over);
  give_way();
  __builtin_unreachable();
}

// The fiber of thread i of a block.  To ThreadSanitizer one fiber in two blocks would put them in
// order, so each of the next blocks gets fibers of its own.
int fiber_of(int number, int i) {
  return kFindsRaces ? number % blocks_with_own_fibers(block->size) * block->size + i : i;
}

void begin_threads(std::vector<std::unique_ptr<Thread>>& pool, int number, std::byte* shared) {
  for (int i = 0; i < block->size; ++i) {
    const int fiber = fiber_of(number, i);
    if (!pool[size_t(fiber)]) pool[size_t(fiber)] = std::make_unique<Thread>();
    Thread& t = *pool[size_t(fiber)];
    block->threads[size_t(block->place[size_t(i)])] = &t;
    static_cast<Fiber&>(t) = {i, number, block->size, shared};
    t.ended = false;
    t.waits_for = nullptr;
    t.copies.clear();
    t.num_groups = 0;
    // The stacks begin at different offsets in their pages: else all would share a few sets of the
    // cache.
    constexpr int kColours = 32, kColourBytes = 256;
    auto** top = reinterpret_cast<void**>(t.stack + kStackBytes - fiber % kColours * kColourBytes);
    top -= 2;
    *top = reinterpret_cast<void*>(&enter_fiber);  // where `ret` goes, below six registers
    t.stack_pointer = top - 6;
  }
}

void run_block(std::vector<std::unique_ptr<Thread>>& pool, int number, std::byte* shared) {
  block->all.arrived = 0;
  block->first_able = 0;
  for (auto* meetings : {&block->lanes, &block->wide_lanes})
    for (Meeting& m : *meetings) m.arrived = 0;
  begin_threads(pool, number, shared);
  Thread* first = block->threads[0];
  current = first;
  __tsan_release(&block->begun);
  __tsan_switch_to_fiber(first->sanitizer, kNoOrder);
  ashlar_switch_stacks(&block->main_pointer, first->stack_pointer);
  current = nullptr;
}

void move(const Copy& copy) {
  __tsan_read_range(copy.from, kVectorBytes);
  __tsan_write_range(copy.to, kVectorBytes);
  std::memcpy(copy.to, copy.from, kVectorBytes);
}

void set_order(Block& b) {
  std::vector<int> order;  // indices of threads
  for (int i = 0; i < b.size; ++i) order.push_back(mode.order == 1 ? b.size - 1 - i : i);
  if (mode.order > 1) {
    std::mt19937 bits(static_cast<unsigned>(mode.order));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits() % i]);
  }
  b.place.resize(order.size());
  for (int i = 0; i < b.size; ++i) b.place[size_t(order[size_t(i)])] = i;
}

struct TakenMemory {
  TakenMemory(size_t bytes, bool is_pinned) : memory(bytes), pinned(is_pinned) {}
  WatchedMemory memory;
  const bool pinned;  // the host's, which the device reads too
};

std::map<const void*, std::unique_ptr<TakenMemory>>& taken() {
  static std::map<const void*, std::unique_ptr<TakenMemory>> memory;
  return memory;
}

bool closed_to_host = false;

void* take(size_t bytes, bool pinned) {
  auto taken_now = std::make_unique<TakenMemory>(bytes, pinned);
  void* data = taken_now->memory.data();
  if (closed_to_host && !pinned) taken_now->memory.allow_access(false);
  taken()[data] = std::move(taken_now);
  return data;
}

// While one lives, the device works: its memory is open, closed to the host or not.  Each of
// several threads may have one.
class DeviceWork {
 public:
  DeviceWork() { count(1); }
  ~DeviceWork() { count(-1); }
  DeviceWork(const DeviceWork&) = delete;

 private:
  static void count(int more) {
    static std::mutex mutex;
    static int living = 0;
    const std::lock_guard lock(mutex);
    living += more;
    if (!closed_to_host || living != std::max(more, 0)) return;
    for (const auto& [data, all] : taken())
      if (!all->pinned) all->memory.allow_access(more > 0);
  }
};

// Copies between pinned and device memory that wait for the device: until the next thing that it
// does, so that a host which writes pinned memory too early is seen in the numbers.
struct QueuedCopy {
  void* to;
  const void* from;
  size_t bytes;
};
struct Queue {  // several threads copy
  std::mutex mutex;
  std::vector<QueuedCopy> copies;
};
Queue& queue() {
  static Queue copies;
  return copies;
}
std::atomic<int64_t> host_waits = 0;
bool refuses_events = false;

// "" if nobody wrote next to shared or device memory.
std::string overrun(const WatchedMemory& shared) {
  if (!shared.intact()) return "a write beside shared memory";
  for (const auto& [data, all] : taken())
    if (!all->memory.intact())
      return "a write beside device memory of " + std::to_string(all->memory.bytes()) + " bytes";
  return "";
}

std::string shape_error(const LaunchShape& s) {
  if (s.grid < 1 || s.grid > INT32_MAX) return "a grid of " + std::to_string(s.grid) + " blocks";
  if (s.block < 1 || s.block > kMaxThreads || s.block % kLanes != 0)
    return "blocks of " + std::to_string(s.block) + " threads";
  if (s.shared_bytes > kMaxSharedBytes)
    return std::to_string(s.shared_bytes) + " bytes of shared memory";
  return "";
}

std::string run_blocks(Block& b, const LaunchShape& shape) {
  static thread_local std::vector<std::unique_ptr<Thread>> pool(kMaxFibers);
  // To ThreadSanitizer the shared memory of two blocks is two memories.
  std::vector<std::unique_ptr<WatchedMemory>> shared;
  for (int64_t i = 0; i < (kFindsRaces ? shape.grid : 1); ++i)
    shared.push_back(std::make_unique<WatchedMemory>(size_t(shape.shared_bytes)));
  const int grid = int(shape.grid);
  for (int i = 0; i < grid; ++i) {
    WatchedMemory& memory = *shared[kFindsRaces ? size_t(i) : 0];
    if (i > 0 && !kFindsRaces) memory.poison();
    run_block(pool, mode.reverse_blocks ? grid - 1 - i : i, memory.data());
    if (!b.error.empty()) {
      __tsan_acquire(&b.over);
      return b.error;
    }
    if (const std::string text = overrun(memory); !text.empty())
      return "block " + std::to_string(mode.reverse_blocks ? grid - 1 - i : i) + ": " + text;
  }
  return "";
}

}  // namespace

void meet_block(Where where) {
  meet(block->all, block->size, Memory::kOrders, where);
}
void meet_lanes(Where where) {
  meet(block->lanes[size_t(current->thread / kLanes)], kLanes, Memory::kOrders, where);
}
void exchange_lanes(int size, void* mine, void (*all_here)(void**), Where where) {
  Meeting& group = size == kLanes ? block->lanes[size_t(current->thread / kLanes)]
                                  : block->wide_lanes[size_t(current->thread / 64)];
  meet(group, size, Memory::kDoesNot, where, mine, all_here);
}

void refuse_vector(Where where) {
  fail("thread " + std::to_string(me().thread) + ": an address at " + text_of(where) +
       " is no multiple of 16");
}

void copy_async(void* shared, const void* global, Where where) {
  check_vector(shared, where);
  check_vector(global, where);
  const Copy copy{shared, global, me().num_groups};
  mode.lazy_copies ? me().copies.push_back(copy) : move(copy);
}
void copy_commit() {
  ++me().num_groups;
}
void copy_wait(int groups_in_flight) {
  std::erase_if(me().copies, [&](const Copy& copy) {
    if (copy.group >= me().num_groups - groups_in_flight) return false;
    move(copy);
    return true;
  });
}

int64_t num_launches() {
  return launches;
}

void close_to_host(bool closed) {
  closed_to_host = closed;
  for (const auto& [data, all] : taken())
    if (!all->pinned) all->memory.allow_access(!closed);
}

std::string run(const LaunchShape& shape, const std::function<void()>& body, Where where) {
  const DeviceWork work;
  run_queued();
  ++launches;
  std::string error = shape_error(shape);
  if (error.empty()) {
    Block of_launch(shape.block, body);
    set_order(of_launch);
    block = &of_launch;
    error = run_blocks(of_launch, shape);
    __tsan_acquire(&of_launch.over);
    block = nullptr;
  }
  return error.empty() ? "" : text_of(where) + ": " + error;
}

void run_queued() {
  const DeviceWork work;
  const std::lock_guard lock(queue().mutex);
  for (const QueuedCopy& copy : std::exchange(queue().copies, {}))
    std::memcpy(copy.to, copy.from, copy.bytes);
}
void copy_on_device(void* to, const void* from, size_t bytes) {
  const DeviceWork work;
  std::memcpy(to, from, bytes);
}
int64_t num_host_waits() {
  return host_waits;
}
void refuse_events(bool refuses) {
  refuses_events = refuses;
}

namespace {

void exchange_among(int size, void** lanes) {
  for (int l = 0; l < size; ++l) {
    auto* mine = static_cast<LaneExchange*>(lanes[l]);
    mine->result = static_cast<LaneExchange*>(lanes[l ^ mine->mask])->value;
  }
}

}  // namespace

void exchange(void** lanes) {
  exchange_among(kLanes, lanes);
}
void exchange_warp(void** lanes) {
  exchange_among(kWarp, lanes);
}

void reduce(void** lanes) {
  const auto lane = [&](int l) -> LaneExchange& { return *static_cast<LaneExchange*>(lanes[l]); };
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    for (int l = 0; l < kLanes; ++l) lane(l).result = lane(l ^ mask).value;
    for (int l = 0; l < kLanes; ++l) lane(l).value = lane(l).join(lane(l).value, lane(l).result);
  }
  for (int l = 0; l < kLanes; ++l) lane(l).result = lane(l).value;
}

}  // namespace emulator

namespace half {

std::string description() {
  return "emulator, warps of " + std::to_string(kWarp);
}
std::string vendor() {
  return "host";
}
std::string missing() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
             ? ""
             : "this CPU has no AVX2 and FMA, which the emulator is compiled for";
}
std::string emulated_chip() {
  return kWarp == 64 ? "mi300x" : "h100";
}
void* take(size_t bytes) {
  return emulator::take(bytes, false);
}
void give(void* data) {
  emulator::taken().erase(data);
}
std::string fill_zero(void* data, size_t bytes) {
  const emulator::DeviceWork work;
  emulator::run_queued();
  std::memset(data, 0, bytes);
  return "";
}
std::string copy_bytes(void* to, const void* from, size_t bytes) {
  ++emulator::host_waits;
  const emulator::DeviceWork work;
  emulator::run_queued();
  std::memcpy(to, from, bytes);
  return "";
}
void* take_pinned(size_t bytes) {
  return emulator::take(bytes, true);
}
void give_pinned(void* data) {
  give(data);
}
std::string queue_copy(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(emulator::queue().mutex);
  emulator::queue().copies.push_back({to, from, bytes});
  return "";
}
std::string wait() {
  ++emulator::host_waits;
  const emulator::DeviceWork work;
  emulator::run_queued();
  return "";
}
// Kernels run when they are launched: an event is the moment of its record.
using EventTime = std::chrono::steady_clock::time_point;
void* make_event() {
  return emulator::refuses_events ? nullptr : new EventTime;
}
void give_event(void* event) {
  delete static_cast<EventTime*>(event);
}
std::string record_event(void* event) {
  emulator::run_queued();
  *static_cast<EventTime*>(event) = std::chrono::steady_clock::now();
  return "";
}
std::string seconds_between(void* earlier, void* later, double& seconds) {
  const auto between = *static_cast<EventTime*>(later) - *static_cast<EventTime*>(earlier);
  seconds = std::chrono::duration<double>(between).count();
  return "";
}
int num_modes() {
  return emulator::kFindsRaces ? 1 : emulator::kNumModes;
}
std::string select_mode(int number) {
  emulator::mode = emulator::kModes[number];
  return emulator::mode.name;
}

}  // namespace half
}  // namespace ashlar::device
