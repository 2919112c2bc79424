// Memory bandwidth by the loops of BabelStream, on arrays that fit caches and on larger ones.
//
//   copy c = a   mul b = s c   add c = a + b   triad a = b + s c   dot sum a b
//
// A row counts the bytes that the formula reads and writes: 2, 2, 3, 3 and 2 arrays.  What a cache
// reads before it is overwritten does not count.
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"

namespace ashlar::bench {
namespace {

constexpr double kScale = 0.4;
constexpr int64_t kGrain = 1 << 14;  // elements of a task

// Three arrays, and the values that all of their elements should have.
class Arrays {
 public:
  Arrays(const Rig& rig, int64_t bytes) : threads_(rig.threads), size_(bytes / 8) {
    for (OwnedTensor* array : {&a_, &b_, &c_})
      *array = make_tensor(rig.allocator, DType::kF64, {size_}, Tag::kInput);
    each([&](int64_t i) {
      a()[i] = kA;
      b()[i] = 0.2;
      c()[i] = 0.0;
    });
    partial_.resize(size_t((size_ + kGrain - 1) / kGrain));
  }
  void copy() {
    each([a = a(), c = c()](int64_t i) { c[i] = a[i]; });
  }
  void mul() {
    each([b = b(), c = c()](int64_t i) { b[i] = kScale * c[i]; });
  }
  void add() {
    each([a = a(), b = b(), c = c()](int64_t i) { c[i] = a[i] + b[i]; });
  }
  void triad() {
    each([a = a(), b = b(), c = c()](int64_t i) { a[i] = b[i] + kScale * c[i]; });
  }
  void dot() {
    const double *a = this->a(), *b = this->b();
    parallel_for(threads_, size_, kGrain, [&](int64_t begin, int64_t end) {
      double sums[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8)
        for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
      partial_[size_t(begin / kGrain)] = std::accumulate(sums, sums + 8, 0.0);
    });
    sum_ = std::accumulate(partial_.begin(), partial_.end(), 0.0);
  }
  // Elements that are not what copy, mul, add and triad in this order give, and the dot product.
  int64_t num_wrong() const {
    const double b = kScale * kA, c = kA + b, a = b + kScale * c;
    int64_t wrong = 0;
    for (int64_t i = 0; i < size_; ++i)
      wrong += is_off(this->a()[i], a, 100) || is_off(this->b()[i], b, 100) ||
               is_off(this->c()[i], c, 100);
    return wrong + is_off(sum_, double(size_) * a * b, 1e7);
  }

 private:
  static constexpr double kA = 0.1;
  static bool is_off(double got, double expected, double epsilons) {
    return !(std::abs(got / expected - 1) <= epsilons * std::numeric_limits<double>::epsilon());
  }
  double* a() const { return a_.tensor.as<double>(); }
  double* b() const { return b_.tensor.as<double>(); }
  double* c() const { return c_.tensor.as<double>(); }
  template <typename Body>
  void each(const Body& body) {
    parallel_for(threads_, size_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  Threads& threads_;
  const int64_t size_;
  OwnedTensor a_, b_, c_;
  std::vector<double> partial_;
  double sum_ = 0;
};

struct StreamLoop {
  const char* name;
  int arrays;
  void (Arrays::*run)();
};
constexpr std::array<StreamLoop, 5> kLoops = {{{"copy", 2, &Arrays::copy},
                                               {"mul", 2, &Arrays::mul},
                                               {"add", 3, &Arrays::add},
                                               {"triad", 3, &Arrays::triad},
                                               {"dot", 2, &Arrays::dot}}};

std::vector<int64_t> array_sizes(const Rig& rig) {
  // A quarter of the memory at most, for all ranks and arrays together.
  const int64_t most = std::min<int64_t>(int64_t{1} << (rig.quick ? 26 : 28),
                                         memory_limit_bytes() / 4 / 3 / rig.ranks.size());
  std::vector<int64_t> sizes;
  for (int64_t bytes = rig.quick ? 1 << 18 : 1 << 16; bytes <= most; bytes *= rig.quick ? 16 : 4)
    sizes.push_back(bytes);
  return sizes;
}

}  // namespace

Findings measure_stream(const Rig& rig) {
  Findings findings;
  findings.text = "bytes of one of three arrays; every rank has its own\n";
  {
    RateTable table(rig, findings, "B", "GB/s", 1e9);
    for (const int64_t bytes : array_sizes(rig)) {
      Arrays arrays(rig, bytes);
      for (const StreamLoop& loop : kLoops) {
        if (!table.row(fmt::format("stream {}", loop.name), double(bytes),
                       double(loop.arrays) * double(bytes), [&] { (arrays.*loop.run)(); }))
          continue;
        const std::string key = fmt::format("memory.{}", loop.name);
        if (key == "memory.copy" || key == "memory.triad")  // the largest arrays stay
          findings.profile.set(key,
                               rig.quantity(table.last().median, "GB/s", table.last().spread()));
      }
      if (findings.num_left_out > 0) continue;
      machine::Measured m;
      m.name = fmt::format("stream on arrays of {}", format_bytes(bytes));
      m.subject = machine::Subject::kMemory;
      for (const double wrong : of_ranks(rig.ranks, double(arrays.num_wrong())))
        m.num_wrong += int64_t(wrong);
      if (m.num_wrong > 0) findings.faults.push_back(std::move(m));
    }
    table.add_fleet(machine::Subject::kMemory);
  }
  return findings;
}

}  // namespace ashlar::bench
