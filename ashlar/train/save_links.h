// The control channel between the ranks that write a run's checkpoints.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ashlar/checkpoint/writers/save_channel.h"
#include "ashlar/comm/group.h"
#include "ashlar/core/log.h"

namespace ashlar::train {

// Every rank calls it, with the same arguments.  writers: the ranks that write, in order.
// interface_name: checkpoint.control_interface; "" is the loopback if all writers are on one
// machine, else every interface that is up.
//
// Null for ranks that do not write, for a single writer, for "none", and, with a warning by rank 0,
// if a writer has no address to listen at: saves then go through their directory.
std::unique_ptr<checkpoint::SaveChannel> make_save_channel(comm::Group& ranks,
                                                           std::span<const int> writers,
                                                           const std::string& interface_name,
                                                           Log& log);

}  // namespace ashlar::train
