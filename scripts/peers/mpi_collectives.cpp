// MPI's collectives in a plain loop, by the method of OSU's micro-benchmarks: warm-up, then each call
// timed alone with a barrier behind it; the mean and the median of each rank, and the largest of
// these.  To compare with `ashlar bench collectives --native`, which calls the same functions on
// another thread.
//
//   mpicxx -O2 scripts/peers/mpi_collectives.cpp -o mpi_collectives
//   mpirun -n 2 ./mpi_collectives [MIN_BYTES] [MAX_BYTES]
//
// Prints op, bytes of the whole array, and both in microseconds, one row a size, factor 4.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

struct Times {
  double mean_us = 0, median_us = 0;  // of the slowest rank
};

Times loop_times(int iterations, const std::function<void()>& call) {
  for (int i = 0; i < std::max(iterations / 5, 2); ++i) call();
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<double> us;
  us.reserve(size_t(iterations));
  for (int i = 0; i < iterations; ++i) {
    const double start = MPI_Wtime();
    call();
    us.push_back(1e6 * (MPI_Wtime() - start));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  double mine[2] = {}, largest[2] = {};
  for (const double time : us) mine[0] += time / iterations;
  std::nth_element(us.begin(), us.begin() + iterations / 2, us.end());
  mine[1] = us[size_t(iterations / 2)];
  MPI_Allreduce(mine, largest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return {largest[0], largest[1]};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long least = argc > 1 ? std::atol(argv[1]) : 1024;
  const long most = argc > 2 ? std::atol(argv[2]) : 64 << 20;
  std::vector<float> in(size_t(most / 4 + size), 1.0f), out(in.size(), 0.0f);
  for (long bytes = least; bytes <= most; bytes *= 4) {
    const int count = int(bytes / 4), part = count / size;
    const int iterations = bytes < 65536 ? 1000 : bytes < (1 << 22) ? 200 : 20;
    const MPI_Comm all = MPI_COMM_WORLD;
    const auto row = [&](const char* op, const std::function<void()>& call) {
      const Times times = loop_times(iterations, call);
      if (rank == 0)
        std::printf("%-16s %12ld %12.2f %12.2f\n", op, bytes, times.mean_us, times.median_us);
    };
    row("all_reduce",
        [&] { MPI_Allreduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, all); });
    row("all_gather",
        [&] { MPI_Allgather(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, all); });
    row("reduce_scatter",
        [&] { MPI_Reduce_scatter_block(in.data(), out.data(), part, MPI_FLOAT, MPI_SUM, all); });
    row("all_to_all",
        [&] { MPI_Alltoall(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, all); });
    row("broadcast", [&] { MPI_Bcast(in.data(), count, MPI_FLOAT, 0, all); });
    row("reduce", [&] { MPI_Reduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, 0, all); });
  }
  MPI_Finalize();
}
