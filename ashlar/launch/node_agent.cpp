#include "ashlar/launch/node_agent.h"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/control/connection.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"
#include "ashlar/launch/agent_messages.h"
#include "ashlar/launch/epochs.h"
#include "ashlar/launch/moments.h"
#include "ashlar/launch/pid_fd.h"
#include "ashlar/launch/rank_socket.h"
#include "ashlar/launch/watch.h"

namespace ashlar::launch {
namespace {

constexpr double kReportEvery_s = 0.5, kLookEvery_s = 1, kLookAfter_s = 2, kConnectEvery_s = 0.2,
                 kForlorn_s = 60;
constexpr int kTurn_ms = 20, kChildPatience_ms = 5000;
constexpr int kTroubleCode = 74;  // EX_IOERR, of a leader's process
constexpr int kMostTroubles = 3;

// Signals that ask to stop wait until the agent looks for them; the leader's process takes them as
// any launcher.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&signals_);
    for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
  }
  ~HeldSignals() { release(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  int take() const {  // the number of one that has come, or -1
    const timespec none{};
    return sigtimedwait(&signals_, nullptr, &none);
  }
  void release() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t signals_{}, before_{};
};

class NodeAgent {
 public:
  NodeAgent(const AgentSpec& spec, FileSystem& files, Log& log)
      : spec_(spec),
        log_(log),
        directory_(join(spec.run_directory, "launch")),
        epochs_(files, directory_),
        socket_(epochs_.agent_socket()),
        watch_(spec.run_directory, spec.hang_s, log),
        preflight_(spec.program, spec.ranks_per_node),
        heard_s_(now_s()) {}

  int run() {
    log_.info("node {} joins the launch ({})", spec_.node, spec_.job);
    while (!result_) look(now_s());
    kill_all_ranks();
    end_child(leader_, kChildPatience_ms);  // it ends by itself when it has ended the run
    end_child(aside_, 0);
    try {
      remove_pulse(spec_.run_directory);
    } catch (const Error& error) {
      log_.warn("the ranks' pages in /dev/shm were not removed: {}", error.what());
    }
    log_.info("the run ends with code {} ({})", *result_, spec_.job);
    return *result_;
  }

 private:
  struct Rank {
    JoinedRank joined;
    PidFd process;
    bool asked_to_stop = false;
  };

  void look(double now) {
    pollfd ready[2] = {{socket_.fd(), POLLIN, 0}, {-1, 0, 0}};
    if (link_) ready[1] = {link_->fd(), link_->events(), 0};
    poll(ready, 2, kTurn_ms);
    while (std::optional<JoinedRank> rank = socket_.accept())
      if (PidFd process(rank->pid, rank->hello.start_ticks); process)
        ranks_.push_back({*rank, std::move(process)});
    std::erase_if(ranks_, [](const Rank& rank) { return rank.process.has_ended(); });
    signal_ = std::max(signal_, signals_.take());
    look_at_child();
    // The shared file system may be slow; the leader that is heard says all that is to be known.
    const bool alone = epoch_ == 0 || now - heard_s_ >= kLookAfter_s;
    if (alone && now - looked_s_ >= kLookEvery_s) look_at_epochs(now);
    serve_link(ready[1].revents, now);
    if (now - heard_s_ >= kForlorn_s) lose_heart();
    obey();
    if (const int64_t checked = preflight_.look(now).number; checked != checked_) {
      checked_ = checked;
      reported_s_ = 0;  // the leader waits for it
    }
    if (now - reported_s_ >= kReportEvery_s) report(now);
  }

  bool is_replaced(const Rank& rank) const {
    return rank.joined.hello.epoch < epoch_ || rank.joined.hello.attempt <= order_.fence;
  }

  void kill_all_ranks() {
    for (const Rank& rank : ranks_) rank.process.signal(SIGKILL);
  }

  void obey() {
    for (Rank& rank : ranks_)
      if (is_replaced(rank))
        rank.process.signal(SIGKILL);
      else if (rank.joined.hello.attempt == order_.stop && !std::exchange(rank.asked_to_stop, true))
        rank.process.signal(stop_signal());
  }

  // Slurm may have signalled the ranks as it did this agent, and the same signal again would end
  // them without a save (core/signals.h).
  int stop_signal() const { return signal_ == SIGUSR1 ? SIGTERM : SIGUSR1; }

  // Kills the ranks of this node, of which no leader says whether they may go on.
  void lose_heart() {
    if (!ranks_.empty())
      log_.warn("no leader for {:.0f} s: the ranks of this node are killed", kForlorn_s);
    kill_all_ranks();
    if (signal_ > 0) result_ = int(ErrorKind::kPreempted);
  }

  void look_at_child() {
    int status = 0;
    if (leader_ == 0 || waitpid(leader_, &status, WNOHANG) != leader_) return;
    leader_ = 0;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kResignedCode;
    if (code == kTroubleCode) ++num_troubles_;
    if (code != kResignedCode && code != kTroubleCode)
      result_ = code;
    else
      candidacy_.resigned();
  }

  void look_at_epochs(double now) {
    looked_s_ = now;
    try {
      const int64_t newest = epochs_.newest();
      const std::optional<int> ended = newest > 0 ? epochs_.end_of(newest) : std::nullopt;
      if (ended && epochs_.job_of(newest) == spec_.job) {
        result_ = *ended;
        return;
      }
      const std::string job = newest > 0 ? epochs_.job_of(newest) : "";
      const bool foreign = !ended && !job.empty() && job != spec_.job;
      if (newest != epoch_ && !ended && !foreign) follow(newest);
      const bool stands = candidacy_.may_lead(
          {newest, newest > 0 ? epochs_.beat_of(newest) : "", ended.has_value(), heard_s_, place_},
          now);
      if (foreign && candidacy_.has_seen_life()) return refuse(job);
      if (stands && leader_ == 0 && !result_ && epochs_.claim(newest + 1, spec_.job))
        lead(newest + 1);
    } catch (const Error& error) {
      if (!std::exchange(warned_, true))
        log_.warn("the run directory is not seen: {}", error.what());
    }
  }

  void refuse(const std::string& job) {
    log_.warn(
        "another launch, job {}, runs this directory; stop it, or choose another train.run_dir",
        job);
    result_ = int(ErrorKind::kConfig);
  }

  void follow(int64_t epoch) {
    epoch_ = epoch;
    link_.reset();
    order_ = {};
  }

  // The child has this process's files and signals, and ends with it.
  void lead(int64_t epoch) {
    follow(epoch);
    heard_s_ = now_s();
    const pid_t agent = getpid();
    begin_aside(agent);
    leader_ = fork();
    ASHLAR_REQUIRE(leader_ >= 0, kLaunch, "the leader's process cannot be made");
    if (leader_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) _exit(kResignedCode);
    signals_.release();
    _exit(lead_here(epoch));
  }

  // Starts the work beside the leader, once: it outlives that leader.
  void begin_aside(pid_t agent) {
    if (!spec_.aside || aside_ > 0) return;
    aside_ = fork();
    if (aside_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) _exit(0);
    signals_.release();
    lower_thread_priority();
    try {
      spec_.aside();
    } catch (const std::exception& error) {
      log_.warn("what runs beside the leader ends: {}", error.what());
    }
    _exit(0);
  }

  // Trouble with files or the network may be this node's, or pass, and leaves the lead to others.
  // Other errors would come to the next leader, too, and end the run.
  int lead_here(int64_t epoch) {
    try {
      return spec_.lead(epoch, num_agents_);
    } catch (const Error& error) {
      log_.warn("the lead of epoch {} ends: {}", epoch, error.what());
      const bool trouble = error.kind() == ErrorKind::kStorage || error.kind() == ErrorKind::kComm;
      if (trouble && num_troubles_ + 1 < kMostTroubles) return kTroubleCode;
      try {
        if (epochs_.newest() > epoch) return kResignedCode;
        if (!epochs_.end_of(epoch)) epochs_.end(epoch, int(error.kind()));
      } catch (const Error&) {  // the run directory itself is the trouble
      }
      return int(error.kind());
    }
  }

  // A child that even SIGKILL does not end, as one that waits for a hung file system, is left.
  static void end_child(pid_t child, int patience_ms) {
    for (int waited_ms = 0; child > 0 && waited_ms < patience_ms + kChildPatience_ms;
         waited_ms += kTurn_ms) {
      if (waited_ms >= patience_ms) kill(child, SIGKILL);
      if (waitpid(child, nullptr, WNOHANG) != 0) return;
      usleep(kTurn_ms * 1000);
    }
  }

  void connect(double now) {
    tried_s_ = now;
    const std::optional<std::string> text = epochs_.address_of(epoch_);
    if (!text) return;
    const control::Address address = control::parse_address(*text);
    const std::string& host = address.hosts[size_t(next_host_++) % address.hosts.size()];
    link_ = std::make_unique<control::Connection>(control::Connection::start(
        host, address.port,
        control::Handshake::of_child(epochs_.key_of(epoch_, spec_.job), spec_.number, 0,
                                     control::random_nonce()),
        kMaxAgentBody));
  }

  void serve_link(short found, double now) {
    try {
      if (!link_ && epoch_ > 0 && now - tried_s_ >= kConnectEvery_s) return connect(now);
      if (!link_) return;
      link_->serve(found, [&](const control::Frame& frame) {
        if (frame.kind == kOrderFrame) take(parse_order(frame.body), now);
      });
      const double silent_s = seconds_since(std::max(link_->last_heard(), link_->begun()));
      if (silent_s > Candidacy::kUnheard_s) link_.reset();
    } catch (const Error& error) {  // connects again
      if (error.kind() != ErrorKind::kComm && !std::exchange(told_, true))
        log_.warn("the leader is not reached: {}", error.what());
      link_.reset();
      tried_s_ = now;
    }
  }

  void take(const AgentOrder& order, double now) {
    order_ = order;
    place_ = order.place;
    num_agents_ = order.num_recent;
    heard_s_ = now;
    reported_s_ = 0;  // the leader waits for the answer
    preflight_.obey(order.check, now);
    if (order.over) result_ = order.exit_code;
  }

  void report(double now) {
    if (!link_ || !link_->proved()) return;
    reported_s_ = now;
    AgentReport report{.node = spec_.node, .asked_to_stop = signal_ > 0};
    std::map<int, pid_t> pids;
    report.fenced = order_.fence;
    for (const Rank& rank : ranks_) {
      const AgentHello& hello = rank.joined.hello;
      report.fenced = is_replaced(rank) ? -1 : report.fenced;
      if (hello.epoch != epoch_) continue;
      report.ranks.push_back({hello.rank, hello.attempt});
      pids[hello.rank] = rank.joined.pid;  // of the one that came last
    }
    Watch::Finds finds = watch_.find(pids, now);
    for (AgentReport::Rank& rank : report.ranks) {
      if (const auto state = finds.states.find(rank.rank); state != finds.states.end())
        rank.state = state->second;
      for (const std::optional<Evidence>* found : {&finds.suspended, &finds.killed})
        if (*found && (*found)->rank == rank.rank) {
          rank.trouble = (*found)->text;
          rank.killed = found == &finds.killed;
        }
    }
    report.bytes = finds.bytes;
    report.memory_kills = memory_kills();
    report.check = preflight_.look(now);
    report.pages = std::move(finds.pages);
    report.now_ns = pulse_now_ns();
    link_->queue(kReportFrame, to_bytes(report));
  }

  const AgentSpec& spec_;
  Log& log_;
  const HeldSignals signals_;
  const std::string directory_;
  EpochFiles epochs_;
  RankSocket socket_;
  Watch watch_;
  Preflight preflight_;
  int64_t checked_ = 0;  // the last check that the leader was told of
  Candidacy candidacy_;
  std::vector<Rank> ranks_;  // that live
  std::unique_ptr<control::Connection> link_;
  AgentOrder order_;  // the last of this epoch's leader
  int64_t epoch_ = 0;
  int place_ = Candidacy::kMostPlaces, next_host_ = 0;
  int num_agents_ = 0;  // that the last leader heard; 0: none was heard
  double heard_s_, looked_s_ = 0, reported_s_ = 0, tried_s_ = 0;
  pid_t leader_ = 0;  // the child that leads; 0: none
  pid_t aside_ = 0;   // the child beside it
  int signal_ = -1;   // that asks the run to stop; -1: none came
  bool warned_ = false, told_ = false;
  int num_troubles_ = 0;  // that have ended the lead of this agent
  std::optional<int> result_;
};

}  // namespace

int run_agent(const AgentSpec& spec, FileSystem& files, Log& log) {
  files.make_directories(join(spec.run_directory, "launch"));
  return NodeAgent(spec, files, log).run();
}

}  // namespace ashlar::launch
