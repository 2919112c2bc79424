#include "ashlar/sim/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"

namespace ashlar::sim {
namespace {

constexpr int kComputeTrack = 2, kFirstLaneTrack = 3;

class PerfettoWriter {
 public:
  PerfettoWriter(const RankPrograms& programs, const Replayed& replayed)
      : programs_(programs), replayed_(replayed) {
    origin_s_ = std::numeric_limits<double>::infinity();
    for (const auto& spans : replayed.spans)
      for (const ReplaySpan& span : spans) origin_s_ = std::min(origin_s_, span.begin_s);
  }

  std::string write() {
    const Ordered about = {{"format", "ashlar-simulation-1"},
                           {"ranks", programs_.ranks.size()},
                           {"step_s", replayed_.step_s.empty() ? 0 : replayed_.step_s.back()}};
    text_ = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n",
                        about.dump());
    for (int rank = 0; rank < int(programs_.ranks.size()); ++rank)
      if (programs_.simulates(rank)) write_rank(rank);
    text_.resize(text_.size() - 2);  // removes the last comma
    return text_ + "\n]}\n";
  }

 private:
  void line(const Ordered& event) { text_ += event.dump() + ",\n"; }

  void name(int rank, const char* what, int track, const std::string& is) {
    line({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", is}}}});
  }

  void write_rank(int rank) {
    const RankProgram& program = programs_.ranks[size_t(rank)];
    name(rank, "process_name", kComputeTrack, fmt::format("rank {}", rank));
    name(rank, "thread_name", kComputeTrack, "compute");
    for (size_t lane = 0; lane < program.lanes.size(); ++lane)
      name(rank, "thread_name", kFirstLaneTrack + int(lane), "lane " + program.lanes[lane].name);
    for (const ReplaySpan& span : replayed_.spans[size_t(rank)]) write_span(rank, span);
  }

  void write_span(int rank, const ReplaySpan& span) {
    const RankProgram& program = programs_.ranks[size_t(rank)];
    Ordered args = Ordered::object();
    std::string title, category;
    int track = kComputeTrack;
    if (span.kind == ReplaySpan::Kind::kOperation) {
      const RankOperation& o = program.operations[size_t(span.index)];
      title = fmt::format("{} {}", machine::to_string(o.op), programs_.label(o));
      category = "operation";
      track = kFirstLaneTrack + span.lane;
      args = {{"group", programs_.groups[size_t(o.group)].name},
              {"bytes", o.bytes},
              {"waiting_us", 1e6 * (span.met_s - span.begin_s)}};
    } else if (span.kind == ReplaySpan::Kind::kStall) {
      title = category = "stall";
    } else {
      const ProgramEvent& event = program.events[size_t(span.index)];
      const ProgramPlace& place = programs_.places[size_t(event.place)];
      args["phase"] = programs_.texts[size_t(place.phase)];
      if (place.block >= 0) args["block"] = place.block;
      if (place.micro_batch >= 0) args["micro_batch"] = place.micro_batch;
      if (span.kind == ReplaySpan::Kind::kKernel) {
        title = programs_.kernels[size_t(event.value)].op;
        category = "kernel";
      } else if (span.kind == ReplaySpan::Kind::kPost) {
        const RankOperation& o = program.operations[size_t(event.value)];
        title = fmt::format("no room for {} {}", machine::to_string(o.op), programs_.label(o));
        category = "post";
      } else {
        title = "wait " + awaited(program, event);
        category = "wait";
      }
    }
    line({{"ph", "X"},
          {"name", title},
          {"pid", rank},
          {"tid", track},
          {"ts", microseconds(span.begin_s - origin_s_)},
          {"dur", microseconds(span.end_s - span.begin_s)},
          {"cat", category},
          {"args", args}});
  }

  std::string awaited(const RankProgram& program, const ProgramEvent& wait) const {
    const auto& operations = program.lanes[size_t(wait.lane)].operations;
    const int64_t size = int64_t(operations.size());
    if (size == 0) return "for an earlier post";
    const int64_t at = (wait.value % size + size) % size;
    const RankOperation& o = program.operations[size_t(operations[size_t(at)])];
    return fmt::format("{} {}", machine::to_string(o.op), programs_.label(o));
  }

  static double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

  const RankPrograms& programs_;
  const Replayed& replayed_;
  double origin_s_ = 0;
  std::string text_;
};

}  // namespace

std::string to_chrome_json(const RankPrograms& programs, const Replayed& replayed) {
  return PerfettoWriter(programs, replayed).write();
}

}  // namespace ashlar::sim
