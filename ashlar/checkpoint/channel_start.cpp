#include "ashlar/checkpoint/channel_start.h"

namespace ashlar::checkpoint {

ChannelStart::ChannelStart(const std::string& interface_name, Log& log) : log_(log) {
  try {
    listener_.emplace(interface_name);
  } catch (const Error& error) {
    log_.warn("no control channel for checkpoints: {}", error.what());
  }
}

std::unique_ptr<SaveChannel> ChannelStart::connect(const control::Epoch& epoch, int rank,
                                                   const std::vector<std::string>& all) {
  std::vector<control::Address> addresses;
  for (size_t each = 0; each < all.size(); ++each) {
    try {
      addresses.push_back(control::parse_address(all[each]));
    } catch (const Error& error) {
      if (rank == 0)
        log_.warn(
            "no control channel for checkpoints, since rank {} has no address: writers tell "
            "through the checkpoint's directory",
            each);
      return nullptr;
    }
  }
  const auto tree =
      std::make_shared<const control::Tree>(control::make_tree(control::nodes_of(addresses)));
  auto channel =
      std::make_unique<SaveChannel>(tree, rank, addresses[size_t(rank)].host_name(), log_);
  channel->start([&](control::LinkUser& user) {
    return std::make_unique<control::TcpLinks>(std::move(*listener_), epoch, rank, addresses, *tree,
                                               user, control::LinkOptions{}, log_);
  });
  return channel;
}

}  // namespace ashlar::checkpoint
