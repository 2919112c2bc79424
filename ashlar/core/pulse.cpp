#include "ashlar/core/pulse.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/process.h"
#include "ashlar/core/rng.h"

namespace ashlar {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
using PulseWord = PulseLayout::Word;

template <size_t kWords>
void store_text(PulseLayout::Text<kWords>& to, std::string_view text) {
  std::array<uint64_t, kWords> words{};
  text.copy(reinterpret_cast<char*>(words.data()), sizeof words);
  for (size_t i = 0; i < kWords; ++i) to[i].store(words[i], std::memory_order_release);
}

template <size_t kWords>
std::string load_text(const PulseLayout::Text<kWords>& from) {
  std::array<char, 8 * kWords> bytes;
  for (size_t i = 0; i < kWords; ++i) {
    const uint64_t word = from[i].load(std::memory_order_acquire);
    std::memcpy(&bytes[8 * i], &word, sizeof word);
  }
  return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')};
}

uint64_t pack_place(PulsePlace place, int64_t block, int64_t micro_batch) {
  return uint64_t(place) | uint64_t(uint16_t(block)) << 16 | uint64_t(uint32_t(micro_batch)) << 32;
}

// The bytes of a page, mapped; of a reader or of the writer.
PulseLayout* map_page(int file, int protection) {
  void* memory = mmap(nullptr, sizeof(PulseLayout), protection, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<PulseLayout*>(memory);
}

// Whether the directory is there.  Another user could have made it, to mislead or to stop us.
bool has_pulse_directory(const std::string& directory) {
  struct stat info {};
  if (lstat(directory.c_str(), &info) != 0) return false;
  const bool ours = S_ISDIR(info.st_mode) && (info.st_uid == geteuid() || geteuid() == 0);
  ASHLAR_REQUIRE(ours, kStorage,
                 "{} belongs to another user, or is no directory; the pulse of this "
                 "run would be there",
                 directory);
  return true;
}

// The rank and the process in a page's name, RANK.PROCESS; nullopt for other names.
std::optional<PulseFile> parse_page_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  PulseFile file{.path = path.string()};
  const char *at = name.data(), *const end = at + name.size();
  const auto take = [&](auto& number) {
    const auto [next, error] = std::from_chars(at, end, number);
    at = next;
    return error == std::errc() && number >= 0;
  };
  if (!take(file.rank) || at == end || *at++ != '.' || !take(file.process) || at != end)
    return std::nullopt;
  return file;
}

std::vector<PulseFile> files_in(const std::string& directory) {
  std::vector<PulseFile> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error))
    if (auto file = parse_page_name(at->path())) files.push_back(std::move(*file));
  std::ranges::sort(files, {}, &PulseFile::path);
  return files;
}

// Removes what processes that are gone have left.  A page without contents is being made.
void remove_dead_pages(const std::string& directory) {
  for (const PulseFile& file : files_in(directory)) {
    const std::optional<ProcessStat> stat = stat_of_process(file.process);
    bool dead = !stat || stat->state == 'Z' || stat->state == 'X';
    try {
      dead = dead || !is_alive(PulseReader(file.path).head());
    } catch (const Error&) {
    }
    if (dead) unlink(file.path.c_str());
  }
}

}  // namespace

std::string_view name_of(PulsePlace place) {
  static constexpr std::string_view kNames[kNumPulsePlaces] = {
      "start",  "load",      "data",      "forward",  "backward", "reduce",
      "update", "save_copy", "save_wait", "evaluate", "end"};
  return kNames[size_t(place)];
}

int64_t pulse_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // 7 ns here, and 35 without the tick
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string pulse_directory(const std::string& run_directory) {
  std::error_code error;
  auto path = std::filesystem::weakly_canonical(std::filesystem::absolute(run_directory), error);
  ASHLAR_REQUIRE(!error, kStorage, "{}: {}", run_directory, error.message());
  std::string text = path.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return fmt::format("/dev/shm/ashlar-{:016x}", fnv1a64(text));
}

PulseWriter::PulseWriter(const std::string& run_directory, const PulseRank& rank)
    : directory_(pulse_directory(run_directory)),
      path_(fmt::format("{}/{}.{}", directory_, rank.rank, getpid())) {
  mkdir(directory_.c_str(), 0700);
  ASHLAR_REQUIRE(has_pulse_directory(directory_), kStorage, "{}: {}", directory_, strerror(errno));
  remove_dead_pages(directory_);
  unlink(path_.c_str());  // of an earlier run in this process, or of a process with its number
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  ASHLAR_REQUIRE(file >= 0, kStorage, "{}: {}", path_, strerror(errno));
  // A full /dev/shm shows here, not by a signal at the first store.
  const int error = posix_fallocate(file, 0, sizeof(PulseLayout));
  PulseLayout* const memory = error == 0 ? map_page(file, PROT_READ | PROT_WRITE) : nullptr;
  const int reason = error == 0 ? errno : error;
  close(file);
  if (!memory) unlink(path_.c_str());
  ASHLAR_REQUIRE(memory, kStorage, "{}: {}", path_, strerror(reason));
  page_ = new (memory) PulseLayout;
  const std::optional<ProcessStat> self = stat_of_process(getpid());
  page_->version.store(PulseLayout::kVersion, kRelaxed);
  page_->rank.store(uint64_t(rank.rank), kRelaxed);
  page_->num_ranks.store(uint64_t(rank.num_ranks), kRelaxed);
  page_->process.store(uint64_t(getpid()), kRelaxed);
  page_->thread.store(uint64_t(gettid()), kRelaxed);
  page_->start_ticks.store(self ? self->start_ticks : 0, kRelaxed);
  page_->attempt.store(uint64_t(rank.attempt), kRelaxed);
  page_->num_steps.store(uint64_t(rank.num_steps), kRelaxed);
  enter(PulsePlace::kStart);
  page_->magic.store(PulseLayout::kMagic, std::memory_order_release);
}

PulseWriter::~PulseWriter() {
  page_->magic.store(0, std::memory_order_release);  // for those who have it mapped
  munmap(page_, sizeof(PulseLayout));
  unlink(path_.c_str());
  rmdir(directory_.c_str());  // the last one removes it
}

void PulseWriter::enter(PulsePlace place, int64_t block, int64_t micro_batch) {
  place_ = place;
  page_->place.store(pack_place(place, block, micro_batch), kRelaxed);
  page_->total.store(0, kRelaxed);
  page_->changed_ns.store(uint64_t(pulse_now_ns()), kRelaxed);
}

void PulseWriter::enter_part(PulsePlace place, int64_t block, int64_t micro_batch) {
  if (place_ == PulsePlace::kEvaluate) place = place_;
  page_->place.store(pack_place(place, block, micro_batch), kRelaxed);
  page_->changed_ns.store(uint64_t(pulse_now_ns()), kRelaxed);
}

void PulseWriter::set_step(int64_t step) {
  page_->step.store(uint64_t(step), kRelaxed);
  page_->changed_ns.store(uint64_t(pulse_now_ns()), kRelaxed);
}

void PulseWriter::step_ended(int64_t step) {
  page_->steps_here.store(page_->steps_here.load(kRelaxed) + 1, kRelaxed);
  set_step(step);
}

void PulseWriter::set_progress(int64_t done, int64_t total) {
  page_->done.store(uint64_t(done), kRelaxed);
  page_->total.store(uint64_t(total), kRelaxed);
  page_->changed_ns.store(uint64_t(pulse_now_ns()), kRelaxed);
}

int PulseWriter::add_group(uint64_t id, std::string_view name, int size) {
  for (int i = 0; i < num_groups_; ++i)
    if (page_->groups[size_t(i)].id.load(kRelaxed) == id) return i;
  if (num_groups_ == PulseLayout::kNumGroups) return -1;
  PulseLayout::Group& group = page_->groups[size_t(num_groups_)];
  store_text(group.name, name);
  group.size.store(uint64_t(size), kRelaxed);
  group.id.store(id, std::memory_order_release);
  return num_groups_++;
}

// The oldest entry whose operation has ended; -1: none has.
int64_t PulseWriter::free_entry() {
  for (int i = 0; i < PulseLayout::kNumEntries; ++i) {
    const int64_t at = next_entry_;
    next_entry_ = (next_entry_ + 1) % PulseLayout::kNumEntries;
    const PulseLayout::Entry& entry = page_->entries[size_t(at)];
    if (entry.version.load(kRelaxed) == 0 || entry.ended_ns.load(std::memory_order_acquire) != 0)
      return at;
  }
  return -1;
}

int64_t PulseWriter::post(const PulsePost& post) {
  if (post.group < 0) return -1;
  if (post.number >= 0)
    page_->groups[size_t(post.group)].posted.store(uint64_t(post.number + 1), kRelaxed);
  const uint64_t order = num_posted_++;
  const int64_t at = free_entry();
  if (at < 0) return -1;
  PulseLayout::Entry& entry = page_->entries[size_t(at)];
  const uint64_t version = entry.version.load(kRelaxed);
  entry.version.store(version + 1, kRelaxed);
  constexpr auto kRelease = std::memory_order_release;  // each after the version's store
  entry.order.store(order, kRelease);
  entry.group.store(uint64_t(uint32_t(post.group)) | uint64_t(post.lane) << 32, kRelease);
  entry.number.store(uint64_t(post.number), kRelease);
  entry.bytes.store(uint64_t(post.bytes), kRelease);
  entry.started_ns.store(0, kRelease);
  entry.ended_ns.store(0, kRelease);
  store_text(entry.op, post.op);
  store_text(entry.label, post.label);
  const auto now_ns = uint64_t(pulse_now_ns());
  entry.queued_ns.store(now_ns, kRelease);
  page_->operated_ns.store(now_ns, kRelaxed);
  entry.version.store(version + 2, std::memory_order_release);
  return at;
}

void PulseWriter::started(int64_t entry) {
  if (entry < 0) return;
  const auto now_ns = uint64_t(pulse_now_ns());
  page_->entries[size_t(entry)].started_ns.store(now_ns, kRelaxed);
  page_->operated_ns.store(now_ns, kRelaxed);
}

void PulseWriter::ended(int64_t entry) {
  if (entry < 0) return;
  const auto now_ns = uint64_t(pulse_now_ns());
  page_->entries[size_t(entry)].ended_ns.store(now_ns, std::memory_order_release);
  page_->operated_ns.store(now_ns, kRelaxed);
}

void PulseWriter::waits_for(int64_t entry) {
  if (entry < 0) return;
  page_->waiting_ns.store(uint64_t(pulse_now_ns()), kRelaxed);
  page_->waiting_entry.store(uint64_t(entry), kRelaxed);
  page_->waits_for.store(page_->entries[size_t(entry)].order.load(kRelaxed) + 1, kRelaxed);
}

void PulseWriter::waited() {
  page_->waits_for.store(0, kRelaxed);
}

namespace {

// nullopt: the entry is empty, or no two looks at it agree.
std::optional<PulseOperation> load_operation(const PulseLayout::Entry& entry) {
  constexpr int kLooks = 100;
  constexpr auto kAcquire = std::memory_order_acquire;  // each before the version's second load
  for (int i = 0; i < kLooks; ++i) {
    const uint64_t version = entry.version.load(kAcquire);
    if (version == 0) return std::nullopt;
    if (version % 2 == 1) continue;
    PulseOperation operation;
    operation.order = int64_t(entry.order.load(kAcquire));
    const uint64_t group = entry.group.load(kAcquire);
    operation.group = int(uint32_t(group));
    operation.lane = int(group >> 32);
    operation.number = int64_t(entry.number.load(kAcquire));
    operation.bytes = int64_t(entry.bytes.load(kAcquire));
    operation.queued_ns = int64_t(entry.queued_ns.load(kAcquire));
    operation.started_ns = int64_t(entry.started_ns.load(kAcquire));
    operation.ended_ns = int64_t(entry.ended_ns.load(kAcquire));
    operation.op = load_text(entry.op);
    operation.label = load_text(entry.label);
    if (entry.version.load(kAcquire) == version) return operation;
  }
  return std::nullopt;
}

PulsePage load_head(const PulseLayout& from) {
  PulsePage page;
  page.rank = int(from.rank.load(kRelaxed));
  page.num_ranks = int(from.num_ranks.load(kRelaxed));
  page.process = int64_t(from.process.load(kRelaxed));
  page.thread = int64_t(from.thread.load(kRelaxed));
  page.start_ticks = from.start_ticks.load(kRelaxed);
  page.attempt = int64_t(from.attempt.load(kRelaxed));
  page.step = int64_t(from.step.load(kRelaxed));
  page.steps_here = int64_t(from.steps_here.load(kRelaxed));
  page.num_steps = int64_t(from.num_steps.load(kRelaxed));
  const uint64_t place = from.place.load(kRelaxed);
  page.place = PulsePlace(std::min<uint64_t>(place & 0xff, kNumPulsePlaces - 1));
  page.block = int16_t(place >> 16);
  page.micro_batch = int32_t(place >> 32);
  page.changed_ns = int64_t(from.changed_ns.load(kRelaxed));
  page.operated_ns = int64_t(from.operated_ns.load(kRelaxed));
  page.total = int64_t(from.total.load(kRelaxed));
  page.done = page.total > 0 ? int64_t(from.done.load(kRelaxed)) : 0;
  page.waits_for = int64_t(from.waits_for.load(kRelaxed)) - 1;
  page.waiting_ns = page.waits_for < 0 ? 0 : int64_t(from.waiting_ns.load(kRelaxed));
  return page;
}

PulsePage load_page(const PulseLayout& from) {
  PulsePage page = load_head(from);
  for (const PulseLayout::Group& group : from.groups) {
    const uint64_t id = group.id.load(std::memory_order_acquire);
    if (id == 0) break;
    page.groups.push_back({id, load_text(group.name), int64_t(group.size.load(kRelaxed)),
                           int64_t(group.posted.load(kRelaxed))});
  }
  for (const PulseLayout::Entry& entry : from.entries)
    if (auto operation = load_operation(entry);
        operation && size_t(operation->group) < page.groups.size())
      page.operations.push_back(std::move(*operation));
  std::ranges::sort(page.operations, {}, &PulseOperation::order);
  return page;
}

}  // namespace

const PulseOperation* PulsePage::awaited() const {
  if (waits_for < 0) return nullptr;
  const auto found = std::ranges::find(operations, waits_for, &PulseOperation::order);
  return found == operations.end() ? nullptr : &*found;
}

bool is_alive(const PulsePage& page) {
  const std::optional<ProcessStat> stat = stat_of_process(page.process);
  return stat && stat->start_ticks == page.start_ticks && stat->state != 'Z' && stat->state != 'X';
}

void PulseReader::Unmap::operator()(const PulseLayout* page) const {
  munmap(const_cast<PulseLayout*>(page), sizeof(PulseLayout));
}

PulseReader::PulseReader(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  ASHLAR_REQUIRE(file >= 0, kStorage, "{}: {}", path, strerror(errno));
  struct stat info {};
  const bool fits = fstat(file, &info) == 0 && info.st_size == off_t(sizeof(PulseLayout));
  page_.reset(fits ? map_page(file, PROT_READ) : nullptr);
  close(file);
  const bool valid =
      page_ && !has_ended() && page_->version.load(kRelaxed) == PulseLayout::kVersion;
  ASHLAR_REQUIRE(valid, kCorrupt, "{} is no page of a pulse of version {}", path,
                 PulseLayout::kVersion);
}

int64_t PulseReader::process() const {
  return int64_t(page_->process.load(kRelaxed));
}

bool PulseReader::has_ended() const {
  return page_->magic.load(std::memory_order_acquire) != PulseLayout::kMagic;
}

PulsePage PulseReader::page() const {
  return load_page(*page_);
}

PulsePage PulseReader::head() const {
  PulsePage page = load_head(*page_);
  const uint64_t entry = page_->waiting_entry.load(kRelaxed);
  if (page.waits_for < 0 || entry >= PulseLayout::kNumEntries) return page;
  if (auto operation = load_operation(page_->entries[entry]);
      operation && operation->order == page.waits_for)
    page.operations.push_back(std::move(*operation));
  return page;
}

std::vector<PulseFile> pulse_files(const std::string& run_directory) {
  const std::string directory = pulse_directory(run_directory);
  return has_pulse_directory(directory) ? files_in(directory) : std::vector<PulseFile>{};
}

std::map<int, PulsePage> read_pulse(const std::string& run_directory) {
  std::map<int, PulsePage> pages;
  // If two processes live, the second has yet to find that the run belongs to the first.
  const auto goes_before = [](const PulsePage& a, const PulsePage& b) {
    const bool alive = is_alive(a);
    if (alive != is_alive(b)) return alive;
    return alive ? a.start_ticks < b.start_ticks : a.start_ticks > b.start_ticks;
  };
  for (const PulseFile& file : pulse_files(run_directory)) try {
      PulsePage page = PulseReader(file.path).page();
      const auto found = pages.find(page.rank);
      if (found == pages.end() || goes_before(page, found->second))
        pages[page.rank] = std::move(page);
    } catch (const Error&) {  // it is being made, was removed meanwhile, or is no page
    }
  return pages;
}

void remove_pulse(const std::string& run_directory) {
  const std::string directory = pulse_directory(run_directory);
  if (!has_pulse_directory(directory)) return;
  remove_dead_pages(directory);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().filename().string().starts_with("stack-"))  // a late one (stack_note.h)
      unlink(entry.path().c_str());
  rmdir(directory.c_str());
}

}  // namespace ashlar
