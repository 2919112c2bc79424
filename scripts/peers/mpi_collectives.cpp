// MPI's collectives in a plain loop, by the method of OSU's micro-benchmarks: warm-up, then each call
// timed alone with a barrier behind it; the mean of each rank, and the largest of these.  To compare with `ashlar
// bench collectives --native`, which calls the same functions on another thread.
//
//   mpicxx -O2 scripts/peers/mpi_collectives.cpp -o mpi_collectives
//   mpirun -n 2 ./mpi_collectives [MIN_BYTES] [MAX_BYTES]
//
// Prints op, bytes of the whole array, and microseconds, one row a size, factor 4.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

double loop_us(int iterations, const std::function<void()>& call) {
  for (int i = 0; i < std::max(iterations / 5, 2); ++i) call();
  MPI_Barrier(MPI_COMM_WORLD);
  double mine = 0, largest = 0;
  for (int i = 0; i < iterations; ++i) {
    const double start = MPI_Wtime();
    call();
    mine += 1e6 * (MPI_Wtime() - start) / iterations;
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Allreduce(&mine, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
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
      const double us = loop_us(iterations, call);
      if (rank == 0) std::printf("%-16s %12ld %12.2f\n", op, bytes, us);
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
