// Memory bandwidth by the loops of BabelStream (stream_loops.h): over the size of arrays from
// caches to memory, with streaming stores and without, over the number of threads, and on every
// NUMA node alone.
//
// A row counts the bytes that the formula reads and writes: 2, 2, 3, 3, 4 and 2 arrays.  What a
// cache reads before it is overwritten does not count, so streaming stores, which avoid it, can
// reach more.  Values are checked after the loops of each size.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ashlar/bench/machine/numa_nodes.h"
#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/machine/stream_loops.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of a task
constexpr double kFirstA = 0.1, kFirstB = 0.2;

struct NamedLoop {
  const char* name;
  int arrays;  // that it reads or writes
  StreamLoop loop;
};
// nstream, which adds to what is there, comes after all that read its array.
constexpr std::array<NamedLoop, 6> kLoops = {{{"copy", 2, StreamLoop::kCopy},
                                              {"mul", 2, StreamLoop::kMul},
                                              {"add", 3, StreamLoop::kAdd},
                                              {"triad", 3, StreamLoop::kTriad},
                                              {"dot", 2, StreamLoop::kDot},
                                              {"nstream", 4, StreamLoop::kNstream}}};

// Three arrays, touched first by the threads that use them, and the values that they should have.
class Arrays {
 public:
  Arrays(Allocator& allocator, Threads& threads, int64_t bytes)
      : threads_(threads), size_(bytes / 8), partial_(size_t((size_ + kGrain - 1) / kGrain)) {
    for (OwnedTensor* array : {&a_, &b_, &c_})
      *array = make_tensor(allocator, DType::kF64, {size_}, Tag::kInput);
    x_ = {a_.tensor.as<double>(), b_.tensor.as<double>(), c_.tensor.as<double>()};
    begin();
  }
  void begin() {
    a_value_ = kFirstA, b_value_ = kFirstB, c_value_ = 0;
    sum_ = expected_sum_ = 0;
    num_nstreams_ = 0;
    parallel_for(threads_, size_, kGrain, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) x_.a[i] = kFirstA, x_.b[i] = kFirstB, x_.c[i] = 0;
    });
  }
  void run(StreamLoop loop, bool streaming) {
    parallel_for(threads_, size_, kGrain, [&](int64_t first, int64_t end) {
      partial_[size_t(first / kGrain)] = run_stream(loop, streaming, x_, first, end);
    });
    follow(loop);
  }
  // Elements that are not what the loops in their order give, and the dot product.
  int64_t num_wrong() {
    const double epsilons = 100 + double(num_nstreams_);
    parallel_for(threads_, size_, kGrain, [&](int64_t first, int64_t end) {
      int64_t wrong = 0;
      for (int64_t i = first; i < end; ++i)
        wrong += is_off(x_.a[i], a_value_, epsilons) || is_off(x_.b[i], b_value_, epsilons) ||
                 is_off(x_.c[i], c_value_, epsilons);
      partial_[size_t(first / kGrain)] = double(wrong);
    });
    return int64_t(std::accumulate(partial_.begin(), partial_.end(), 0.0)) +
           (expected_sum_ > 0 && is_off(sum_, expected_sum_, 1e7));
  }

 private:
  static bool is_off(double got, double expected, double epsilons) {
    return !(std::abs(got - expected) <=
             epsilons * std::numeric_limits<double>::epsilon() * std::abs(expected));
  }
  void follow(StreamLoop loop) {
    switch (loop) {
      case StreamLoop::kCopy:
        c_value_ = a_value_;
        break;
      case StreamLoop::kMul:
        b_value_ = kStreamScale * c_value_;
        break;
      case StreamLoop::kAdd:
        c_value_ = a_value_ + b_value_;
        break;
      case StreamLoop::kTriad:
        a_value_ = b_value_ + kStreamScale * c_value_;
        break;
      case StreamLoop::kNstream:
        a_value_ += b_value_ + kStreamScale * c_value_;
        ++num_nstreams_;
        break;
      case StreamLoop::kDot:
        sum_ = std::accumulate(partial_.begin(), partial_.end(), 0.0);
        expected_sum_ = double(size_) * a_value_ * b_value_;
        break;
    }
  }

  Threads& threads_;
  const int64_t size_;
  OwnedTensor a_, b_, c_;
  StreamArrays x_;
  std::vector<double> partial_;
  double a_value_ = 0, b_value_ = 0, c_value_ = 0, sum_ = 0, expected_sum_ = 0;
  int64_t num_nstreams_ = 0;
};

// A quarter of the memory at most, for all ranks and arrays together; else beyond the caches.
std::vector<int64_t> array_sizes(const Rig& rig) {
  const int64_t cache = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE)) / rig.ranks.size();
  const int64_t wanted =
      rig.quick ? int64_t{1} << 26 : std::max<int64_t>(int64_t{1} << 28, 2 * cache);
  const int64_t most = std::min(wanted, memory_limit_bytes() / 4 / 3 / rig.ranks.size());
  std::vector<int64_t> sizes;
  const int64_t factor = rig.quick ? 16 : 4;
  for (int64_t bytes = rig.quick ? 1 << 18 : 1 << 16; bytes <= most; bytes *= factor)
    sizes.push_back(bytes);
  return sizes;
}

// Measures loops on arrays of one size and checks the values.
class StreamRows {
 public:
  StreamRows(const Rig& rig, Findings& findings) : rig_(rig), findings_(findings) {}

  // The profile gets copy and triad as memory.copySUFFIX, unless that is kNoKey.
  void measure(RateTable& table, Arrays& arrays, int64_t bytes, const std::string& what,
               bool streaming, std::span<const NamedLoop> loops, const std::string& suffix) {
    arrays.begin();
    int64_t measured = 0;
    for (const NamedLoop& loop : loops) {
      if (streaming && loop.loop == StreamLoop::kDot) continue;  // writes nothing
      const std::string subject = fmt::format("stream {}{}", loop.name, what);
      if (!table.wants(subject)) {
        arrays.run(loop.loop, streaming);
        continue;
      }
      if (!table.row(subject, double(bytes), double(loop.arrays) * double(bytes),
                     [&] { arrays.run(loop.loop, streaming); }))
        return;
      ++measured;
      if (loop.loop != StreamLoop::kCopy && loop.loop != StreamLoop::kTriad) continue;
      if (suffix != kNoKey)
        findings_.profile.set(fmt::format("memory.{}{}", loop.name, suffix),
                              rig_.quantity(table.last().median, "GB/s", table.last().spread()));
    }
    if (measured > 0)
      check(arrays, fmt::format("stream{} on arrays of {}", what, format_bytes(bytes)));
  }
  static constexpr std::string_view kNoKey = "none";

 private:
  void check(Arrays& arrays, const std::string& name) {
    machine::Measured m;
    m.name = name;
    m.subject = machine::Subject::kMemory;
    for (const double wrong : of_ranks(rig_.ranks, double(arrays.num_wrong())))
      m.num_wrong += int64_t(wrong);
    if (m.num_wrong > 0) findings_.faults.push_back(std::move(m));
  }

  const Rig& rig_;
  Findings& findings_;
};

Rig with_threads(const Rig& rig, Threads& threads) {
  return {rig.ranks,         rig.allocator, threads,  rig.engine, rig.command, rig.date,  rig.quick,
          rig.staging_bytes, rig.directory, rig.only, rig.kept,   rig.goes_on, rig.again, rig.row};
}

// 1, 2, 4, ... threads of a rank, below all of them.
void measure_thread_counts(const Rig& rig, int64_t bytes, Findings& findings) {
  for (int count = 1; count < rig.threads.size(); count *= 2) {
    Threads threads(count);
    const Rig few = with_threads(rig, threads);
    RateTable table(few, findings, "B", "GB/s", 1e9);
    Arrays arrays(rig.allocator, threads, bytes);
    StreamRows(few, findings)
        .measure(table, arrays, bytes, fmt::format(", {} thread{}", count, count == 1 ? "" : "s"),
                 false, std::span(kLoops).first(4), std::string(StreamRows::kNoKey));
  }
}

// Every NUMA node alone: threads on its CPUs touch the arrays first, which puts them there.
void measure_nodes(const Rig& rig, const std::vector<NumaNode>& nodes, int64_t bytes,
                   Findings& findings) {
  double slowest = 0, spread = 0;
  for (const NumaNode& node : nodes) {
    const BoundToCpus bound(node.cpus);
    const auto here = of_ranks(rig.ranks, bound.num_cpus());
    if (*std::min_element(here.begin(), here.end()) == 0) {
      findings.text +=
          fmt::format("NUMA node {}: not measured: not all ranks may use its CPUs\n", node.id);
      continue;
    }
    Threads threads(std::min(rig.threads.size(), bound.num_cpus()));
    const Rig on_node = with_threads(rig, threads);
    RateTable table(on_node, findings, "B", "GB/s", 1e9);
    Arrays arrays(rig.allocator, threads, bytes);
    StreamRows(on_node, findings)
        .measure(table, arrays, bytes, fmt::format(", NUMA node {}", node.id), false,
                 std::span(kLoops).first(4), std::string(StreamRows::kNoKey));
    if (findings.num_left_out > 0) return;
    if (slowest == 0 || table.last().median < slowest)
      slowest = table.last().median, spread = table.last().spread();
  }
  if (slowest > 0) findings.profile.set("memory.triad_node", rig.quantity(slowest, "GB/s", spread));
}

}  // namespace

Findings measure_stream(const Rig& rig) {
  Findings findings;
  const auto files = posix_files();
  const std::vector<NumaNode> nodes = numa_nodes(*files, "/sys/devices/system/node");
  findings.text = fmt::format(
      "bytes of one of three arrays; every rank has its own; {}\n",
      nodes.empty() ? "NUMA nodes unknown: the system does not list them"
                    : fmt::format("{} NUMA node{}", nodes.size(), nodes.size() == 1 ? "" : "s"));
  const std::vector<int64_t> sizes = array_sizes(rig);
  {
    RateTable table(rig, findings, "B", "GB/s", 1e9);
    StreamRows rows(rig, findings);
    for (const int64_t bytes : sizes) {
      Arrays arrays(rig.allocator, rig.threads, bytes);
      rows.measure(table, arrays, bytes, "", false, kLoops, "");  // the largest arrays stay
      if (bytes == sizes.back()) table.add_fleet(machine::Subject::kMemory);
      if (has_streaming_stores() && (!rig.quick || bytes == sizes.back()))
        rows.measure(table, arrays, bytes, ", streaming", true, kLoops, "_streaming");
    }
  }
  if (!has_streaming_stores())
    findings.text += "streaming stores: not measured: this processor's family has none\n";
  if (!sizes.empty()) {
    measure_thread_counts(rig, sizes.back(), findings);
    // All ranks bind to one node at a time, so each has to see the same nodes.
    const auto counts = of_ranks(rig.ranks, double(nodes.size()));
    if (nodes.size() > 1 &&
        *std::min_element(counts.begin(), counts.end()) == double(nodes.size()) &&
        *std::max_element(counts.begin(), counts.end()) == double(nodes.size()))
      measure_nodes(rig, nodes, sizes.back(), findings);
  }
  ASHLAR_REQUIRE(!findings.rows.empty() || findings.num_left_out > 0 || sizes.empty(), kConfig,
                 "--only {} names no row; expected a part of a subject, as \"triad\"", rig.only);
  if (rig.leads() && !nodes.empty())
    findings.profile.set("memory.numa_nodes", {double(nodes.size()), "1",
                                               machine::Origin::kMeasured, "the system", "", 0});
  return findings;
}

}  // namespace ashlar::bench
