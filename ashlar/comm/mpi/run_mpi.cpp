#include "ashlar/comm/mpi/run_mpi.h"

#include "ashlar/comm/mpi/engine.h"

namespace ashlar::comm {
namespace {

void run_world(const Options& options, Allocator& allocator, function_ref<void(Group& world)> body,
               function_ref<void(std::string_view message, int exit_code)> report) {
  MpiEngine engine(options, report);
  std::exception_ptr error;
  try {
    World world(engine, options, allocator);
    try {
      body(world.group);
      world.failure_state.rethrow_failure();
      world.group.barrier("end").wait();
    } catch (...) {
      error = std::current_exception();
      world.failure_state.cancel();
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (error) engine.end_world(error);
}

}  // namespace

void run_mpi(const Options& options, Allocator& allocator, function_ref<void(Group& world)> body,
             function_ref<void(std::string_view message, int exit_code)> report) {
  int provided = MPI_THREAD_SINGLE;
  ASHLAR_REQUIRE(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) == MPI_SUCCESS,
                 kLaunch, "MPI did not start; is this Open MPI's mpirun?");
  ASHLAR_REQUIRE(provided >= MPI_THREAD_SERIALIZED, kDevice,
                 "this MPI lacks MPI_THREAD_SERIALIZED; build it with thread support");
  run_world(options, allocator, body, report);
  ASHLAR_REQUIRE(MPI_Finalize() == MPI_SUCCESS, kComm, "MPI_Finalize failed");
}

}  // namespace ashlar::comm
