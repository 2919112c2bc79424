// The loops of BabelStream as a plain program: threads of the standard library over three arrays of doubles, by the
// method of that benchmark (first run dropped, the best and the median of the others, values checked).  For comparing
// `ashlar bench stream`, alternately; nothing of Ashlar is in it.
//
//   g++ -std=c++20 -O3 -march=native -pthread scripts/peers/stream.cpp -o build/peers/stream
//   build/peers/stream [BYTES OF AN ARRAY] [THREADS] [RUNS]      CSV on stdout, GB/s
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr double kScale = 0.4;

struct Loop {
  const char* name;
  int arrays;  // that it reads or writes
  void (*run)(double* a, double* b, double* c, long begin, long end, double& sum);
};

const Loop kLoops[] = {
    {"copy", 2,
     [](double* a, double*, double* c, long i, long end, double&) {
       for (; i < end; ++i) c[i] = a[i];
     }},
    {"mul", 2,
     [](double*, double* b, double* c, long i, long end, double&) {
       for (; i < end; ++i) b[i] = kScale * c[i];
     }},
    {"add", 3,
     [](double* a, double* b, double* c, long i, long end, double&) {
       for (; i < end; ++i) c[i] = a[i] + b[i];
     }},
    {"triad", 3,
     [](double* a, double* b, double* c, long i, long end, double&) {
       for (; i < end; ++i) a[i] = b[i] + kScale * c[i];
     }},
    {"dot", 2,
     [](double* a, double* b, double*, long i, long end, double& sum) {
       double sums[32] = {};
       for (; i + 32 <= end; i += 32)
         for (long lane = 0; lane < 32; ++lane) sums[lane] += a[i + lane] * b[i + lane];
       for (; i < end; ++i) sums[0] += a[i] * b[i];
       for (const double part : sums) sum += part;
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const long size = (argc > 1 ? std::atol(argv[1]) : 256L << 20) / long(sizeof(double));
  const int threads = argc > 2 ? std::atoi(argv[2]) : int(std::thread::hardware_concurrency());
  const int runs = argc > 3 ? std::atoi(argv[3]) : 30;
  const auto array = [&] {
    constexpr size_t kHugePage = 2 << 20;
    void* memory =
        std::aligned_alloc(kHugePage, (size_t(size) * 8 + kHugePage - 1) / kHugePage * kHugePage);
    madvise(memory, size_t(size) * 8, MADV_HUGEPAGE);
    return std::unique_ptr<double[], decltype(&std::free)>(static_cast<double*>(memory), std::free);
  };
  const auto a = array(), b = array(), c = array();
  std::vector<double> sums(threads * 8);  // a cache line each
  std::vector<std::vector<double>> seconds(std::size(kLoops));
  double begin_s = 0;
  std::barrier meet(threads);
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const auto work = [&](int thread) {
    const long begin = size * thread / threads, end = size * (thread + 1) / threads;
    for (long i = begin; i < end; ++i) a[i] = 0.1, b[i] = 0.2, c[i] = 0;
    for (int run = 0; run <= runs; ++run)
      for (size_t loop = 0; loop < std::size(kLoops); ++loop) {
        meet.arrive_and_wait();
        if (thread == 0) begin_s = now();
        double sum = 0;
        kLoops[loop].run(a.get(), b.get(), c.get(), begin, end, sum);
        sums[thread * 8] = sum;
        meet.arrive_and_wait();
        if (thread == 0 && run > 0) seconds[loop].push_back(now() - begin_s);
      }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();

  double av = 0.1, bv = 0.2, cv = 0;
  for (int run = 0; run <= runs; ++run)
    cv = av, bv = kScale * cv, cv = av + bv, av = bv + kScale * cv;
  long wrong = 0;
  for (long i = 0; i < size; ++i)
    wrong += std::abs(a[i] / av - 1) > 1e-12 || std::abs(b[i] / bv - 1) > 1e-12;
  std::printf("function,threads,bytes,median,best,wrong\n");
  for (size_t loop = 0; loop < std::size(kLoops); ++loop) {
    std::vector<double>& s = seconds[loop];
    std::sort(s.begin(), s.end());
    const double bytes = 1e-9 * kLoops[loop].arrays * 8.0 * double(size);
    std::printf("%s,%d,%ld,%.2f,%.2f,%ld\n", kLoops[loop].name, threads, size * 8,
                bytes / s[s.size() / 2], bytes / s.front(), wrong);
  }
  return wrong > 0;
}
