#include "ashlar/comm/launch_check.h"

#include <charconv>
#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::comm {
namespace {

struct Variable {
  const char* name;
  int more;  // ranks beyond the value: a rank's number implies one more
};
constexpr Variable kVariables[] = {{"OMPI_COMM_WORLD_SIZE", 0},
                                   {"PMI_SIZE", 0},
                                   {"MPI_LOCALNRANKS", 0},
                                   {"SLURM_NTASKS", 0},
                                   {"PMIX_RANK", 1}};

}  // namespace

void check_launch(int world_size, function_ref<const char*(const char* name)> environment) {
  for (const Variable& variable : kVariables) {
    const char* value = environment(variable.name);
    if (!value) continue;
    int announced = 0;
    const char* end = value + std::strlen(value);
    const auto parsed = std::from_chars(value, end, announced);
    if (parsed.ec != std::errc() || parsed.ptr != end) continue;  // not a number: ignored
    ASHLAR_REQUIRE(announced + variable.more <= world_size, kLaunch,
                   "{} is {}, so a launcher started at least {} ranks, but this process sees a "
                   "world of {}: every copy would do the whole work and write the same files; ask "
                   "for the ranks of the launcher (MPI), or unset {} to run one copy by itself",
                   variable.name, value, announced + variable.more, world_size, variable.name);
  }
}

}  // namespace ashlar::comm
