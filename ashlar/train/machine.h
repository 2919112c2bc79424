// The machines of a run, as its ranks see them.
#pragma once

#include <string>
#include <string_view>

#include "ashlar/comm/group.h"

namespace ashlar::train {

std::string host_name();
// Differs between machines, and between containers of one machine, which see different processes;
// "" if the system does not show it.
std::string machine_id();

// Whether no lower rank gives the same `place`, such as its machine_id.  Every rank calls it.
bool is_first_of(comm::Group& ranks, std::string_view place, std::string_view label);

}  // namespace ashlar::train
