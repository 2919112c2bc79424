#include "ashlar/sim/program.h"

#include <fmt/format.h>

namespace ashlar::sim {

std::string RankPrograms::name_of(const RankOperation& operation) const {
  const RankGroup& group = groups[size_t(operation.group)];
  const std::string number =
      operation.number >= 0 ? fmt::format("number {} of ", operation.number) : "of ";
  return fmt::format("{} '{}' ({}{})", machine::to_string(operation.op), label(operation), number,
                     group.name);
}

}  // namespace ashlar::sim
