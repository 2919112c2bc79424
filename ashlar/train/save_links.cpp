// How it works.  The ranks exchange the names of their machines, so that ranks of a single machine
// listen where no other machine reaches them, and then the addresses at which they listen.  The
// epoch that rank 0 draws keeps strangers out.  Links connect in the background.
#include "ashlar/train/save_links.h"

#include <algorithm>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/comm/agree.h"
#include "ashlar/control/tcp_links.h"

namespace ashlar::train {
namespace {

control::Reach reach_of(const std::vector<std::string>& nodes, std::span<const int> writers) {
  const auto is_here = [&](int writer) {
    return nodes[size_t(writer)] == nodes[size_t(writers[0])];
  };
  return std::ranges::all_of(writers, is_here) ? control::Reach::kMachine
                                               : control::Reach::kNetwork;
}

// Links with a log of their own: the log of ranks other than 0 is not shown, since all ranks do the
// same, but strangers connect to a single one.
class LinksOfARank : public control::Links {
 public:
  template <typename... Args>
  explicit LinksOfARank(Args&&... args) : links_(std::forward<Args>(args)..., log_) {}
  void send(int rank, uint16_t kind, std::span<const std::byte> body) override {
    links_.send(rank, kind, body);
  }

 private:
  Log log_;
  control::TcpLinks links_;
};

}  // namespace

std::unique_ptr<checkpoint::SaveChannel> make_save_channel(comm::Group& ranks,
                                                           std::span<const int> writers,
                                                           const std::string& interface_name,
                                                           Log& log) {
  if (writers.size() == 1 || interface_name == "none") return nullptr;
  const auto place = std::find(writers.begin(), writers.end(), ranks.rank());
  const bool writes = place != writers.end();
  std::unique_ptr<control::Listener> listener;
  std::string node, problem;
  const auto attempt = [&](auto&& body) {
    try {
      if (writes && problem.empty()) body();
    } catch (const Error& error) {
      problem = fmt::format("rank {}: {}", ranks.rank(), error.what());
    }
  };
  attempt([&] { node = control::this_node(); });
  const control::Reach reach =
      reach_of(all_said(ranks, node, "machines of control links"), writers);
  attempt([&] { listener = std::make_unique<control::Listener>(reach, interface_name); });
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
  if (!writes) return nullptr;
  std::vector<control::Address> all;
  for (const int writer : writers) all.push_back(control::parse_address(texts[size_t(writer)]));
  const auto tree =
      std::make_shared<const control::Tree>(control::make_tree(control::nodes_of(all)));
  const auto mine = int(place - writers.begin());
  auto channel =
      std::make_unique<checkpoint::SaveChannel>(tree, mine, all[size_t(mine)].host_name(), log);
  channel->start([&](control::LinkUser& user) -> std::unique_ptr<control::Links> {
    const control::LinkOptions options;
    if (ranks.rank() != 0)
      return std::make_unique<LinksOfARank>(std::move(*listener), epoch, mine, all, *tree, user,
                                            options);
    return std::make_unique<control::TcpLinks>(std::move(*listener), epoch, mine, all, *tree, user,
                                               options, log);
  });
  return channel;
}

}  // namespace ashlar::train
