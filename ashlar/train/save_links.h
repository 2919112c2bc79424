// The control channel of a run's checkpoints, from the ranks that are processes of their own.
#pragma once

#include <memory>
#include <string>

#include "ashlar/checkpoint/save_channel.h"
#include "ashlar/comm/group.h"
#include "ashlar/core/log.h"

namespace ashlar::train {

// Every rank calls it.  interface_name: of the network, "" for any.  Null, with a warning of rank
// 0's, where some rank has no address to listen at: saves then go through their directory.
std::unique_ptr<checkpoint::SaveChannel> make_save_channel(comm::Group& ranks,
                                                           const std::string& interface_name,
                                                           Log& log);

}  // namespace ashlar::train
