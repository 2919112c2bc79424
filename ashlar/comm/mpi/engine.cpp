// How it works.  MPI is started with MPI_THREAD_SERIALIZED: while lanes run, every call of MPI is
// made within a turn (Turn).  communicators_mutex_ is taken alone or within a turn, never around
// one.
//
//   tags       tag 0 carries failures.  A lane has two tags, computed from its name, because ranks
//              create different lanes in different orders.
//   failures   listen keeps one receive posted for a Notice from any rank; hear tests it whenever a
//              poll of a lane has found nothing.  fail sends a Notice to all other ranks, once, and
//              only if none has arrived before.
//                nothing heard   failure_.rank is -1
//                heard           failure_ is another rank's; exchanges throw it
//                announced       this rank has sent its own; its caller, FailureState, interrupts
//                                the lanes
//              A rank that hears of a time-out while it waits itself answers for whom it waits
//              (answer), so that the reporting rank can name the rank that is late on its own
//              (cause_of).
//   end        tell listens for a while longer (choose), because ranks that fail at the same time
//              each believe that they are the first.  `before` orders the failures, so all ranks
//              choose the same one; its rank reports.  Then each rank may use kLeaving_s and calls
//              end_world, where the rank that has reported aborts.  The others wait, and abort if
//              it does not.
#include "ashlar/comm/mpi/engine.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "ashlar/comm/mpi/collectives.h"
#include "ashlar/comm/mpi/transport.h"
#include "ashlar/comm/queue.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/rng.h"

namespace ashlar::comm {
namespace {

using std::chrono::milliseconds;

constexpr int kFailureTag = 0;
constexpr int kMaxTag = 32767;  // every MPI allows tags up to this one
// Beyond kLeaving_s: how long a rank that has heard of a failure waits for the reporting rank to
// end it; and how long the reporting rank may take to leave.
constexpr double kStepIn_s = 3, kUnwinding_s = 10;

// The first of a lane's two tags: a function of its name, because not every rank has every lane; at
// most kMaxTag - 3.
int tag_of(std::string_view lane) {
  return 2 + 2 * int(fnv1a64(lane) % uint64_t((kMaxTag - 1) / 2 - 1));
}

// Whether `a` is reported rather than `b` if both failed at the same time.  A kComm comes last,
// since it may only have waited for the other.
bool before(const Failure& a, const Failure& b) {
  const auto rank_of = [](const Failure& f) {
    return std::pair(f.exit_code == int(ErrorKind::kComm) || !f.awaits.empty(), f.rank);
  };
  return rank_of(a) < rank_of(b);
}

// inout = in + inout: integers wrap, bf16 is rounded at every sum.
template <typename T>
void add(void* in, void* inout, int* length, MPI_Datatype*) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(inout);
  for (int i = 0; i < *length; ++i)
    if constexpr (std::is_same_v<T, bf16>)
      to[i] = bf16(float(from[i]) + float(to[i]));
    else
      to[i] = T(from[i] + to[i]);
}

std::string host_of_process() {
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(host, &length);
  return host;
}

// Whether no process of this host has that id, or it has ended and its parent does not know yet.
bool is_gone(pid_t id) {
  if (kill(id, 0) != 0) return errno == ESRCH;
  std::ifstream file(fmt::format("/proc/{}/stat", id));
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end != stat.npos && stat.compare(name_end + 2, 1, "Z") == 0;
}

constexpr MPI_User_function* kSums[] = {add<bf16>, add<uint8_t>, add<uint16_t>, add<uint32_t>,
                                        add<uint64_t>};

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  ASHLAR_FAIL(kComm, "{} failed: {}", call, std::string_view(text, size_t(length)));
}

MpiEngine::MpiEngine(const Options& options, Report report)
    : collectives_(options.collectives),
      native_lane_(options.native_lane),
      telling_(options.telling),
      late_(options.late),
      lost_(options.lost),
      report_(std::move(report)) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  for (size_t i = 0; i < sums_.size(); ++i)
    check_mpi(MPI_Op_create(kSums[i], 1, &sums_[i]), "MPI_Op_create");
  const Process mine{fnv1a64(host_of_process()), getpid()};
  processes_.resize(size_t(size_));
  check_mpi(
      MPI_Allgather(&mine, sizeof mine, MPI_BYTE, processes_.data(), sizeof mine, MPI_BYTE, comm_),
      "MPI_Allgather");
  listen();
}

// Runs only if no rank has failed: otherwise the world ends first.
MpiEngine::~MpiEngine() {
  for (auto& [group, communicator] : communicators_) MPI_Comm_free(&communicator);
  for (MPI_Op& sum : sums_) MPI_Op_free(&sum);
  MPI_Cancel(&listening_);
  MPI_Wait(&listening_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm_);
}

std::unique_ptr<Transport> MpiEngine::transport(std::string_view lane) {
  const int tag = tag_of(lane);
  ASHLAR_ASSERT(std::find(tags_.begin(), tags_.end(), tag) == tags_.end() &&
                "two lanes have the same tag: rename one");
  tags_.push_back(tag);
  return std::make_unique<MpiTransport>(*this, tag, telling_);
}

std::unique_ptr<Executor> MpiEngine::executor(std::string_view lane, FailureState& failure_state,
                                              Buffer staging, double timeout_s) {
  if (collectives_ == Collectives::kExact && (native_lane_.empty() || lane != native_lane_))
    return Engine::executor(lane, failure_state, std::move(staging), timeout_s);
  return std::make_unique<OperationQueue>(
      failure_state,
      std::make_unique<MpiCollectives>(*this, transport(lane), std::move(staging), timeout_s),
      size(), !immediate());
}

MPI_Op MpiEngine::sum_of(DType dtype) const {
  if (dtype == DType::kF64 || dtype == DType::kF32) return MPI_SUM;
  if (dtype == DType::kBF16) return sums_[0];
  return sums_[1 + size_t(std::countr_zero(uint64_t(size_of(dtype))))];
}

bool MpiEngine::has_communicator(const Group& group) const {
  const std::lock_guard lock(communicators_mutex_);
  return communicators_.contains({group.lane(), group.id()});
}

// Blocks within the turn, so no lane of this rank moves; the ranks have met before.
void MpiEngine::make_communicator(const Group& group) {
  const std::lock_guard turn(turn_);
  MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(comm_, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, group.size(), group.world_ranks().data(), &members),
            "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(comm_, members, tag_of(group.lane()), &made),
            "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  const std::lock_guard lock(communicators_mutex_);
  communicators_[{group.lane(), group.id()}] = made;
}

MPI_Comm MpiEngine::communicator(const Group& group) const {
  const std::lock_guard lock(communicators_mutex_);
  return communicators_.at({group.lane(), group.id()});
}

void MpiEngine::require_going_on(bool interrupted,
                                 function_ref<std::optional<LateError>()> waiting) {
  if (hear() && !announced_) {
    if (!waiting_ && !failure_.awaits.empty())
      if (const std::optional<LateError> late = waiting()) {
        waiting_ = own_failure(std::make_exception_ptr(*late));
        answer();
      }
    fail_because(failure_);
  }
  ASHLAR_REQUIRE(!interrupted, kComm, "rank {}: cancelled while it leaves", rank_);
}

Failure MpiEngine::own_failure(const std::exception_ptr& error) const {
  Failure failure = failure_of(rank_, error);
  if (failure.awaits.empty()) return failure;
  failure.exit_code = int(late_);
  for (const int rank : failure.awaits) {
    const Process& process = processes_[size_t(rank)];
    if (process.host != processes_[size_t(rank_)].host || !is_gone(pid_t(process.id))) continue;
    failure.exit_code = int(lost_);
    failure.message += fmt::format("; rank {} has ended: process {} is gone", rank, process.id);
  }
  return failure;
}

void MpiEngine::listen() {
  check_mpi(
      MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, kFailureTag, comm_, &listening_),
      "MPI_Irecv");
}

bool MpiEngine::hear() {
  while (true) {
    int some = 0;
    check_mpi(MPI_Test(&listening_, &some, MPI_STATUS_IGNORE), "MPI_Test");
    if (!some) return failure_.rank >= 0;
    const Failure heard{heard_.rank,
                        heard_.exit_code,
                        heard_.message,
                        {heard_.awaited, heard_.awaited + heard_.num_awaited}};
    if (!heard.awaits.empty()) others_.push_back(heard);
    if (!heard_.is_answer && (failure_.rank < 0 || before(heard, failure_))) failure_ = heard;
    listen();
  }
}

// Answers the rank that will report its time-out; again if that turns out to be another rank.
void MpiEngine::answer() {
  if (!waiting_ || failure_.awaits.empty() || failure_.rank == answered_) return;
  answered_ = failure_.rank;
  answer_ = notice_of(*waiting_, true);
  send(answer_, answered_);
}

MpiEngine::Notice MpiEngine::notice_of(const Failure& failure, bool is_answer) {
  Notice notice{};
  notice.rank = failure.rank;
  notice.exit_code = failure.exit_code;
  notice.is_answer = is_answer;
  notice.num_awaited = std::min(int(failure.awaits.size()), Notice::kMostAwaited);
  std::copy_n(failure.awaits.begin(), notice.num_awaited, notice.awaited);
  std::strncpy(notice.message, failure.message.c_str(), sizeof notice.message - 1);
  return notice;
}

// Nobody waits for its end: the world ends first.
void MpiEngine::send(const Notice& notice, int rank) {
  MPI_Request request;
  check_mpi(MPI_Isend(&notice, sizeof notice, MPI_BYTE, rank, kFailureTag, comm_, &request),
            "MPI_Isend");
  check_mpi(MPI_Request_free(&request), "MPI_Request_free");
}

void MpiEngine::fail(const std::exception_ptr& error) {
  const std::lock_guard turn(turn_);
  try {
    const Failure own = own_failure(error);
    if (hear()) {  // another Notice came first, or this rank has announced before
      if (!announced_ && !waiting_ && !own.awaits.empty()) waiting_ = own;
      return answer();
    }
    failure_ = own;
    announced_ = true;
    told_ = notice_of(failure_, false);
    for (int other = 0; other < size_; ++other)
      if (other != rank_) send(told_, other);
  } catch (const Error&) {
    // MPI itself is broken: the others notice by their own errors and deadlines.
    if (failure_.rank < 0) failure_ = own_failure(error);
    announced_ = true;
  }
}

// Other ranks may have failed at the same moment; then one of the failures is chosen.  A time-out
// waits for the answers of the other ranks that wait.
void MpiEngine::choose() {
  const auto start = Clock::now();
  try {
    for (double wait_s = 1; seconds_since(start) < wait_s;
         std::this_thread::sleep_for(milliseconds(1))) {
      const std::lock_guard turn(turn_);
      hear();
      answer();
      wait_s = failure_.awaits.empty() ? 0.15 : 1;
    }
  } catch (const Error&) {
    // MPI is broken: this rank reports what it knows.
  }
  chosen_ = Clock::now();
}

void MpiEngine::report_cause() {
  const Failure& cause = cause_of(failure_, others_);
  const std::string where = cause.rank == rank_ ? fmt::format(", host {}", host_of_process())
                                                : fmt::format(", told by rank {}", rank_);
  report_(size_ == 1 ? cause.message
                     : fmt::format("{} [rank {} of {}{}]", cause.message, cause.rank, size_, where),
          cause.exit_code);
}

bool MpiEngine::tell(const std::exception_ptr& error) {
  if (chosen_) return true;
  fail(error);
  choose();
  const std::lock_guard turn(turn_);
  const int exit_code = cause_of(failure_, others_).exit_code;
  if (failure_.rank == rank_) report_cause();
  std::thread([exit_code] {
    std::this_thread::sleep_for(std::chrono::duration<double>(kLeaving_s + kUnwinding_s));
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }).detach();
  return true;
}

// The reporting rank ends this one; if it cannot, this one reports.
void MpiEngine::end_world(const std::exception_ptr& error) {
  tell(error);
  if (failure_.rank != rank_) {
    const double left_s = kLeaving_s + kStepIn_s - seconds_since(*chosen_);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(left_s, 0.0)));
    report_cause();
  }
  MPI_Abort(MPI_COMM_WORLD, cause_of(failure_, others_).exit_code);
  std::abort();
}

}  // namespace ashlar::comm
