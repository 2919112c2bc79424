// The control channel between the ranks that write a run's checkpoints.
//
// ASHLAR_CONTROL_INTERFACE, a variable of the environment, names the network interface that it uses
// ("eth0"), as NCCL_SOCKET_IFNAME does for NCCL.  Without it ranks of one machine use its loopback,
// and others any interface that is up.  "none": writers tell each other through the checkpoint's
// directory alone.
#pragma once

#include <memory>
#include <span>

#include "ashlar/checkpoint/writers/save_channel.h"
#include "ashlar/comm/group.h"
#include "ashlar/core/log.h"

namespace ashlar::train {

// Every rank calls it.  writers: the ranks that write, in their order.  Null for ranks that do not,
// for a single writer, and, with a warning of rank 0's, where a writer has no address to listen at:
// saves then go through their directory.
std::unique_ptr<checkpoint::SaveChannel> make_save_channel(comm::Group& ranks,
                                                           std::span<const int> writers, Log& log);

}  // namespace ashlar::train
