// How it works.  Every rank listens, then all tell each other where, in the one exchange that the
// links need; the epoch that rank 0 draws keeps other runs' links apart.  Connecting goes on in the
// background.
#include "ashlar/train/save_links.h"

#include <algorithm>

#include "ashlar/checkpoint/layout.h"
#include "ashlar/comm/agree.h"
#include "ashlar/control/tcp_links.h"

namespace ashlar::train {

std::unique_ptr<checkpoint::SaveChannel> make_save_channel(comm::Group& ranks,
                                                           const std::string& interface_name,
                                                           Log& log) {
  std::unique_ptr<control::Listener> listener;
  std::string problem;
  try {
    listener = std::make_unique<control::Listener>(interface_name);
  } catch (const Error& error) {
    problem = fmt::format("rank {}: {}", ranks.rank(), error.what());
  }
  control::Epoch epoch = checkpoint::random_id();
  from_leader(ranks, epoch, "epoch of control links");
  const std::vector<std::string> texts =
      all_said(ranks, listener ? listener->address() : "", "addresses of control links");
  problem = first_said(ranks, problem, "control links");
  if (!problem.empty()) {
    if (ranks.rank() == 0)
      log.warn("checkpoints have no control links, and go through their directory: {}", problem);
    return nullptr;
  }
  std::vector<control::Address> all;
  for (const std::string& text : texts) all.push_back(control::parse_address(text));
  const auto tree =
      std::make_shared<const control::Tree>(control::make_tree(control::nodes_of(all)));
  auto channel = std::make_unique<checkpoint::SaveChannel>(
      tree, ranks.rank(), all[size_t(ranks.rank())].host_name(), log);
  channel->start([&](control::LinkUser& user) {
    return std::make_unique<control::TcpLinks>(std::move(*listener), epoch, ranks.rank(), all,
                                               *tree, user, control::LinkOptions{}, log);
  });
  return channel;
}

}  // namespace ashlar::train
