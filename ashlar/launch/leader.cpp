#include "ashlar/launch/leader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ashlar/core/agent.h"
#include "ashlar/core/error.h"
#include "ashlar/launch/launch_files.h"
#include "ashlar/launch/moments.h"

namespace ashlar::launch {
namespace {

constexpr double kRenewEvery_s = 1, kRecent_s = 60;

Quarantine read_quarantine(FileSystem& files, const std::string& path, Log& log) {
  if (!files.stat(path)) return {};
  try {
    return Quarantine::from_json(parse_json(read_text(files, path), path, ErrorKind::kCorrupt));
  } catch (const std::exception& error) {
    log.warn("{} is passed over: {}", path, error.what());
    return {};
  }
}

// Nodes of a job that begins come one by one; later only links break.
NodeRules rules_of(const FleetSpec& spec, bool has_run) {
  constexpr double kLink_s = 10;
  return {.num_nodes = spec.num_nodes,
          .elastic = spec.limits.elastic,
          .preflight = spec.limits.preflight,
          .first_check = spec.epoch << 32,
          .patience_s = has_run ? kLink_s : spec.limits.wait_nodes_s / 2};
}

// The starter is a child of this process, and its ranks are on other machines.
class FleetAttempt : public Attempt {
 public:
  FleetAttempt(Leader& leader, const AttemptCommand& command, RankSocket& socket)
      : leader_(leader), starter_(command, socket) {}

  News wait(double seconds) override {
    constexpr double kTurn_s = 0.05;  // the agents are heard between two of them
    News news = starter_.wait(std::min(seconds, kTurn_s));
    leader_.take_news(news);
    return news;
  }
  Watch::Sight look(Watch& watch, double now) override { return leader_.look(watch, now); }
  void terminate() override { leader_.ask_ranks_to_stop(); }
  bool fence() override {
    const bool gone = leader_.ranks_are_gone();
    return starter_.fence() && gone;
  }
  int64_t memory_kills() const override { return leader_.memory_kills(); }
  std::string host_of(int rank) const override { return leader_.node_of(rank); }

 private:
  Leader& leader_;
  LocalAttempt starter_;
};

}  // namespace

Leader::Leader(const FleetSpec& spec, FileSystem& files, Log& log)
    : spec_(spec),
      files_(files),
      log_(log),
      epochs_(files, spec.directory),
      tenure_(spec.epoch, spec.num_before, now_s()),
      star_(control::Listener(control::Reach::kNetwork, spec.interface_name),
            epochs_.key_of(spec.epoch, spec.job)),
      attempt_(next_attempt(files, join(spec.directory, "ranks")) - 1),
      decisions_(rules_of(spec, attempt_ > 0),
                 read_quarantine(files, join(spec.directory, "quarantine.json"), log), attempt_,
                 {now_s(), unix_now_s()}),
      now_(now_s()),
      written_s_(now_) {
  epochs_.beat(spec.epoch);
  epochs_.publish(spec.epoch, star_.address());
  log_.info("leads the launch, epoch {}", spec.epoch);
}

void Leader::pass(double now) {
  now_ = now;
  decisions_.pass({now, unix_now_s()});
}

bool Leader::lead(double now) {
  pass(now);
  star_.serve(kReportFrame, [&](int number, auto body) { take_report(number, body); });
  if (now - renewed_s_ >= kRenewEvery_s) {
    renewed_s_ = now;
    renew();
    give_orders();
  }
  return tenure_.holds({newest_, written_s_, decisions_.num_heard(FleetDecisions::kLost_s),
                        decisions_.num_heard(kRecent_s)},
                       now);
}

// A failure is tried again each second; Tenure says for how long that may go on.
void Leader::renew() {
  try {
    newest_ = epochs_.newest();
    epochs_.beat(spec_.epoch);
    written_s_ = now_;
  } catch (const Error& error) {
    log_.warn("the lead of epoch {} is not renewed: {}", spec_.epoch, error.what());
  }
}

void Leader::take_report(int number, std::span<const std::byte> body) {
  Agent& agent = agents_[number];
  agent.report = parse_report(body);
  if (!decisions_.is_heard(number)) renewed_s_ = 0;  // it gets its orders at once
  decisions_.hear(number, agent.report);
  for (auto& [rank, page] : agent.report.pages) move_to_here(agent, page);
  std::set<int> living;
  for (const AgentReport::Rank& rank : agent.report.ranks) {
    if (rank.attempt != attempt_) continue;
    living.insert(rank.rank);
    ranks_.emplace(rank.rank, agent.report.node);
  }
  for (const int rank : agent.living)
    if (!living.contains(rank))
      gone_.push_back(
          {EvidenceKind::kGone, rank, 0,
           fmt::format("the process of rank {} on {} is gone", rank, agent.report.node)});
  agent.living = std::move(living);
}

void Leader::give_orders() {
  AgentOrder order = order_;
  order.fence = decisions_.fence();
  order.num_recent = decisions_.num_heard(kRecent_s);
  for (const auto& [number, agent] : agents_) {
    order.check = decisions_.check_of(agent.report.node);
    star_.send(number, kOrderFrame, to_bytes(order));
    if (decisions_.is_heard(number)) ++order.place;
  }
  star_.serve(kReportFrame, [&](int number, auto body) { take_report(number, body); });
}

std::string Leader::lost_leader() {
  const int64_t before = spec_.epoch - 1;
  if (before == 0 || epochs_.job_of(before) != spec_.job || epochs_.end_of(before)) return "";
  const std::optional<std::string> address = epochs_.address_of(before);
  const std::string host = address ? control::parse_address(*address).host_name() : "unknown";
  return fmt::format("the leader of epoch {} is gone, on node {}", before, host);
}

bool Leader::asked_to_stop() const {
  return std::ranges::any_of(agents_,
                             [](const auto& agent) { return agent.second.report.asked_to_stop; });
}

// Reads them from time to time, while the process that finds them is at work.
void Leader::read_layouts() {
  constexpr double kReadEvery_s = 5;
  if (spec_.layouts.empty() || knows_layouts_ || now_ - layouts_read_s_ < kReadEvery_s) return;
  layouts_read_s_ = now_;
  LaunchLayouts layouts =
      launch::read_layouts(files_, join(spec_.directory, "layouts.json"), spec_.layouts);
  knows_layouts_ = layouts.whole;
  decisions_.know(std::move(layouts));
}

void Leader::ask_starter() {
  constexpr double kAskEvery_s = 10;  // it may take seconds, in which no agent is heard
  if (!spec_.startable || now_ - starter_asked_s_ < kAskEvery_s) return;
  starter_asked_s_ = now_;
  decisions_.know_startable(spec_.startable());
}

std::string Leader::missing(double now) {
  pass(now);
  read_layouts();
  ask_starter();
  const NodePlacement::Decision& next = decisions_.decide();
  if (next.asks) give_orders();
  return next.missing;
}

std::unique_ptr<Attempt> Leader::start(const AttemptCommand& command, int attempt,
                                       RankSocket& socket) {
  ASHLAR_REQUIRE(is_newest(), kLaunch, "another launcher leads the run");
  decisions_.start(attempt);
  const std::vector<std::string>& nodes = decisions_.nodes();
  const std::optional<LaunchLayout>& fewer = decisions_.layout();
  files_.make_directories(fmt::format("{}/ranks/{}", spec_.directory, attempt));
  attempt_ = attempt;
  ranks_.clear();
  gone_.clear();
  for (auto& [number, agent] : agents_) agent.living.clear();
  starter_asked_s_ = 0;  // before the next start
  order_.stop = 0;
  AttemptCommand whole = command;
  whole.starter = spec_.kind;
  whole.words = spec_.starter(nodes, fewer ? fewer->ranks_per_node : spec_.ranks_per_node);
  whole.words.insert(whole.words.end(), command.words.begin(), command.words.end());
  if (fewer) whole.words.insert(whole.words.end(), fewer->keys.begin(), fewer->keys.end());
  whole.variables.insert(whole.variables.end(), spec_.variables.begin(), spec_.variables.end());
  whole.variables.push_back(fmt::format("{}={}", kAgentVariable, epochs_.agent_socket()));
  whole.variables.push_back(fmt::format("{}={}", kEpochVariable, spec_.epoch));
  log_.info("attempt {} on {}", attempt, fmt::join(nodes, ", "));
  return std::make_unique<FleetAttempt>(*this, whole, socket);
}

// Adds the ranks that have ended, as the agents see it, and the loss of a node.
void Leader::take_news(Attempt::News& news) {
  if (auto lost = decisions_.take_loss()) news.gone.insert(news.gone.begin(), std::move(*lost));
  for (Evidence& gone : gone_) news.gone.push_back(std::move(gone));
  gone_.clear();
}

Watch::Sight Leader::look(Watch& watch, double now) {
  Watch::Finds finds;
  for (const auto& [number, agent] : agents_) {
    for (const auto& [rank, page] : agent.report.pages)
      if (page.attempt == attempt_) finds.pages.emplace(rank, page);
    for (const AgentReport::Rank& rank : agent.report.ranks) {
      if (rank.attempt != attempt_) continue;
      finds.states[rank.rank] = rank.state;
      if (rank.trouble.empty()) continue;
      if (rank.killed)
        finds.killed = {EvidenceKind::kSignal, rank.rank, SIGKILL, rank.trouble};
      else
        finds.suspended = {EvidenceKind::kSuspended, rank.rank, 0, rank.trouble};
    }
    if (decisions_.runs_on(agent.report.node)) finds.bytes += agent.report.bytes;
  }
  return watch.judge(std::move(finds), now);
}

// Gives the page the times of this machine's clock.
void Leader::move_to_here(Agent& agent, PulsePage& page) {
  SeenPage& seen = agent.seen[page.rank];
  if (seen.moved_ns != page.moved_ns())
    seen = {page.moved_ns(), pulse_now_ns() - agent.report.now_ns};
  const auto shift = [&](int64_t& time_ns) {
    if (time_ns > 0) time_ns += seen.offset_ns;
  };
  shift(page.changed_ns);
  shift(page.operated_ns);
  shift(page.waiting_ns);
  for (PulseOperation& operation : page.operations) {
    shift(operation.queued_ns);
    shift(operation.started_ns);
  }
}

void Leader::ask_ranks_to_stop() {
  order_.stop = attempt_;
  give_orders();
}

bool Leader::ranks_are_gone() {
  if (decisions_.begin_fence()) give_orders();
  return decisions_.is_fenced();
}

std::string Leader::node_of(int rank) const {
  const auto known = ranks_.find(rank);
  return known == ranks_.end() ? "" : known->second;
}

void Leader::judge(const Cause& cause, double now) {
  pass(now);
  decisions_.judge(cause, node_of(cause.rank));
}

std::optional<NodePlacement::Move> Leader::move(int slow_rank, double share, double now) {
  pass(now);
  read_layouts();
  decisions_.check_spares();
  const auto look = [&] {
    return slow_rank < 0 ? decisions_.grow() : decisions_.leave(node_of(slow_rank), share);
  };
  if (!look()) return std::nullopt;
  ask_starter();  // Slurm may have taken that node out of the job
  return look();
}

void Leader::leave_out(const NodePlacement::Move& move) {
  decisions_.leave_out(move);
}

std::vector<std::string> Leader::take_notes() {
  std::vector<std::string> notes = decisions_.take_notes();
  if (!notes.empty()) save_quarantine();
  return notes;
}

void Leader::save_quarantine() {
  try {
    write_text(files_, join(spec_.directory, "quarantine.json"),
               one_line(decisions_.quarantine().to_json()) + "\n");
  } catch (const Error& error) {
    log_.warn("the quarantine is not kept for later leaders: {}", error.what());
  }
}

// The file is for agents that are not linked now.
void Leader::end(int exit_code) {
  if (!is_newest()) return;
  order_.over = true;
  order_.exit_code = exit_code;
  give_orders();
  try {
    epochs_.end(spec_.epoch, exit_code);
  } catch (const Error& error) {
    log_.warn("agents that are not linked do not hear of the end: {}", error.what());
  }
}

bool Leader::is_newest() {
  try {
    newest_ = epochs_.newest();
  } catch (const Error& error) {  // Tenure says for how long that may go on
    log_.warn("whether another launcher leads is not seen: {}", error.what());
  }
  return newest_ <= spec_.epoch;
}

int64_t Leader::memory_kills() const {
  int64_t kills = 0;
  for (const auto& [number, agent] : agents_)
    if (decisions_.runs_on(agent.report.node)) kills += agent.report.memory_kills;
  return kills;
}

}  // namespace ashlar::launch
