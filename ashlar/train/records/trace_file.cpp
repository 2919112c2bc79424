// How it works.  A rank is a process of the file and has these threads:
//
//   1      step     its position: steps, micro-batches, phases, blocks and branches, nested
//   2      compute  kernels, posts and waits, as the rank's thread ran them
//   3 ...  lanes    operations, from kBegan to kEnded, as the lanes' threads ran them
//   last   device   kernels, as a GPU ran them, where the trace has times of one
//
// The first thread is derived from the places of the second: within a step a slice lasts from the
// first event of a place to the end of its last event.  Steps, and the gaps between them, have
// recorded times.  An arrow (flow) leads from a post to its operation.
#include "ashlar/train/records/trace_file.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "ashlar/core/json.h"

namespace ashlar::train {
namespace {

using Event = TraceEvent;

constexpr int kStepThread = 1, kComputeThread = 2, kFirstLane = 3;

std::string_view name_of(TracePlace::Branch branch) {
  return branch == TracePlace::Branch::kMixer ? "mixer" : "feed_forward";
}

std::string_view name_of(Event::Varies varies) {
  return varies == Event::Varies::kExpertRows ? "expert_rows" : "visible_pairs";
}

class Writer {
 public:
  Writer(const Trace& trace, const TraceFile& file) : trace_(trace), file_(file) {}

  std::string write() {
    Ordered about = {{"format", "ashlar-trace-2"},
                     {"rank", file_.rank},
                     {"ranks", file_.num_ranks},
                     {"first_step", file_.steps.front().number},
                     {"last_step", file_.steps.back().number},
                     {"dropped_events", trace_.num_dropped()},
                     {"clock_ahead_s", file_.clock_ahead_s},
                     {"groups", groups()}};
    if (file_.dry) about["dry"] = true;
    if (file_.tokens > 0) about["tokens"] = file_.tokens;
    if (!file_.device.empty()) about["device"] = file_.device;
    text_ = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n",
                        about.dump());
    write_names();
    write_places();
    std::map<std::pair<int, int64_t>, const Event*> posts;  // by lane and ticket
    for (const Event& e : trace_.events()) {
      if (e.kind == Event::Kind::kPost) posts[{e.lane, e.ticket}] = &e;
      write_compute(e, posts);
    }
    for (int lane = 0; lane < trace_.num_lanes(); ++lane) write_lane(lane, posts);
    write_device();
    text_.resize(text_.size() - 2);  // removes the last comma
    return text_ + "\n]}\n";
  }

 private:
  Ordered groups() const {
    Ordered list = Ordered::array();
    for (const TraceGroup& g : trace_.groups())
      list.push_back({{"name", g.name},
                      {"lane", g.lane >= 0 ? Ordered(trace_.lane_name(g.lane)) : Ordered()},
                      {"ranks", g.world_ranks}});
    return list;
  }

  void line(const Ordered& event) { text_ += event.dump() + ",\n"; }

  bool has_device() const { return !trace_.device_spans().empty(); }
  int device_thread() const { return kFirstLane + trace_.num_lanes(); }

  void write_names() {
    const auto name = [&](const char* what, int thread, const std::string& is) {
      line({{"ph", "M"},
            {"name", what},
            {"pid", file_.rank},
            {"tid", thread},
            {"args", {{"name", is}}}});
    };
    const auto sort = [&](const char* what, int thread, int index) {
      line({{"ph", "M"},
            {"name", what},
            {"pid", file_.rank},
            {"tid", thread},
            {"args", {{"sort_index", index}}}});
    };
    name("process_name", kStepThread, fmt::format("rank {}", file_.rank));
    sort("process_sort_index", kStepThread, file_.rank);
    name("thread_name", kStepThread, "step");
    name("thread_name", kComputeThread, "compute");
    for (int lane = 0; lane < trace_.num_lanes(); ++lane)
      name("thread_name", kFirstLane + lane, "lane " + trace_.lane_name(lane));
    if (has_device()) name("thread_name", device_thread(), "device");
    for (int thread = kStepThread; thread < device_thread() + (has_device() ? 1 : 0); ++thread)
      sort("thread_sort_index", thread, thread);
  }

  int64_t nanoseconds(double clock_s) const {
    return std::llround((clock_s - file_.clock_ahead_s - file_.origin_s) * 1e9);
  }

  // Both ends are rounded to nanoseconds, so that a slice within another stays within it.
  Ordered slice(std::string_view name, int thread, double start_s, double end_s) const {
    const int64_t start = nanoseconds(start_s), end = nanoseconds(end_s);
    return {{"ph", "X"},
            {"name", name},
            {"pid", file_.rank},
            {"tid", thread},
            {"ts", double(start) / 1e3},
            {"dur", double(end - start) / 1e3}};
  }

  // The slices around an event within its step, outermost first.
  std::vector<std::string> places_of(const Event& e) const {
    std::vector<std::string> names;
    const TracePlace& p = e.place;
    if (p.micro_batch >= 0) names.push_back(fmt::format("micro-batch {}", p.micro_batch));
    names.emplace_back(trace_.phase(p));
    if (p.block >= 0) names.push_back(fmt::format("block {}", p.block));
    if (p.branch != TracePlace::Branch::kNone) names.emplace_back(name_of(p.branch));
    return names;
  }

  // A slice comes before the slices within it, which may begin at the same moment.
  void write_places() {
    struct Place {
      std::string name;
      double start_s, end_s;
      Ordered args = nullptr;  // of a step or a gap
    };
    std::vector<Place> places;
    std::vector<size_t> open;
    size_t step = 0;
    for (const Event& e : trace_.events()) {
      for (; step < file_.steps.size() && file_.steps[step].start_s <= e.start_s; ++step) {
        const TracedStep& s = file_.steps[step];
        open.clear();
        places.push_back({"between", s.before_s, s.start_s, {{"next_step", s.number}}});
        places.push_back({fmt::format("step {}", s.number),
                          s.start_s,
                          s.end_s,
                          {{"step", s.number}, {"loader_wait_us", s.loader_wait_s * 1e6}}});
      }
      const std::vector<std::string> names = places_of(e);
      size_t same = 0;
      while (same < names.size() && same < open.size() && names[same] == places[open[same]].name)
        ++same;
      open.resize(same);
      for (size_t i = same; i < names.size(); ++i) {
        open.push_back(places.size());
        places.push_back({names[i], e.start_s, 0});
      }
      for (const size_t i : open) places[i].end_s = e.end_s;
    }
    for (const Place& p : places) {
      Ordered event = slice(p.name, kStepThread, p.start_s, p.end_s);
      if (!p.args.is_null()) {
        event["cat"] = p.args.contains("step") ? "step" : "between";
        event["args"] = p.args;
      }
      line(event);
    }
  }

  Ordered place_args(const TracePlace& p) const {
    Ordered args = {{"phase", trace_.phase(p)}};
    if (p.block >= 0) args["block"] = p.block;
    if (p.branch != TracePlace::Branch::kNone) args["branch"] = name_of(p.branch);
    if (p.micro_batch >= 0) args["micro_batch"] = p.micro_batch;
    return args;
  }

  std::string title_of(const Event& post) const {
    return fmt::format("{} {}", trace_.text(post.name), trace_.text(post.label));
  }

  void add_operation(Ordered& args, const Event& post) const {
    args["collective"] = trace_.text(post.name);
    args["label"] = trace_.text(post.label);
    args["group"] = trace_.group(post.group).name;
    args["ranks"] = trace_.group(post.group).world_ranks.size();
    args["dtype"] = ashlar::name_of(post.dtype);
    args["bytes"] = post.bytes;
    if (post.number >= 0) args["number"] = post.number;
    if (post.root >= 0) args["root"] = post.root;
  }

  // The bytes of all chunks if they are uneven, or the ranks sent to and received from.
  void add_messages(Ordered& args, const Event& post) const {
    const std::string_view op = trace_.text(post.name);
    for (const TraceMessage& m : trace_.messages(post)) {
      if (op == "all_gather" || op == "reduce_scatter")
        args["chunks"].push_back(m.bytes);
      else
        args[m.sends ? "sends" : "receives"].push_back({m.rank, m.bytes});
    }
  }

  // An integer that a double can hold, different in every rank's file.
  int64_t flow_id(const Event& e) const {
    return (int64_t{file_.rank} << 32) + e.ticket * 16 + e.lane;
  }
  // Written after the slice that it begins or ends at.
  void flow(const char* end, const Event& post, int thread, double at_s) {
    Ordered event = {{"ph", end},
                     {"cat", "post"},
                     {"name", "post"},
                     {"id", flow_id(post)},
                     {"pid", file_.rank},
                     {"tid", thread},
                     {"ts", double(nanoseconds(at_s)) / 1e3}};
    if (*end == 'f') event["bp"] = "e";  // binds to the enclosing slice
    line(event);
  }

  void add_kernel(Ordered& args, const Event& e) const {
    args["dtype"] = ashlar::name_of(e.dtype);
    args["flop"] = e.flop;
    args["bytes"] = e.bytes;
    const TraceDims dims = trace_.dims(e);
    if (dims != TraceDims{}) args["shape"] = {dims.groups, dims.rows, dims.cols, dims.depth};
    if (e.varies != Event::Varies::kNo) args[std::string(name_of(e.varies))] = e.count;
    if (!file_.device.empty()) args["launches"] = e.num_launches;
  }

  void write_device() {
    for (const DeviceSpan& span : trace_.device_spans()) {
      const Event& e = trace_.events()[size_t(span.event)];
      Ordered args = place_args(e.place);
      add_kernel(args, e);
      Ordered event = slice(trace_.text(e.name), device_thread(), span.start_s, span.end_s);
      event["cat"] = "device";
      event["args"] = std::move(args);
      line(event);
    }
  }

  using Posts = std::map<std::pair<int, int64_t>, const Event*>;

  void write_compute(const Event& e, const Posts& posts) {
    Ordered args = place_args(e.place);
    std::string name(trace_.text(e.name));
    const char* category = "kernel";
    if (e.kind == Event::Kind::kKernel) {
      add_kernel(args, e);
    } else if (e.kind == Event::Kind::kPost) {
      category = "post";
      name = "post " + title_of(e);
      add_operation(args, e);
      add_messages(args, e);
    } else {
      category = "wait";
      const auto post = posts.find({e.lane, e.ticket});
      name = post != posts.end() ? "wait " + title_of(*post->second) : "wait for an earlier post";
      args["lane"] = trace_.lane_name(e.lane);
      args["ticket"] = e.ticket;
    }
    Ordered event = slice(name, kComputeThread, e.start_s, e.end_s);
    event["cat"] = category;
    event["args"] = std::move(args);
    line(event);
    if (e.kind == Event::Kind::kPost && e.lane >= 0) flow("s", e, kComputeThread, e.start_s);
  }

  // Operations of a lane run one after the other.  If one began and did not end, it failed or its
  // end was dropped.
  void write_lane(int lane, const Posts& posts) {
    const auto events = trace_.lane_events(lane);
    for (size_t i = 0; i < events.size(); ++i) {
      const Event& began = events[i];
      if (began.kind != Event::Kind::kBegan) continue;
      const bool ended = i + 1 < events.size() && events[i + 1].ticket == began.ticket;
      const Event& last = ended ? events[i + 1] : began;
      const auto post = posts.find({lane, began.ticket});
      Ordered args = {{"ticket", began.ticket}, {"ended", ended}};
      std::string name = "operation";  // the name if the post was dropped
      if (post != posts.end()) {
        name = title_of(*post->second);
        add_operation(args, *post->second);
      }
      args["sent_bytes"] = last.bytes;
      args["received_bytes"] = last.received_bytes;
      if (ended) args["rounds"] = last.count;
      Ordered event = slice(name, kFirstLane + lane, began.start_s, last.end_s);
      event["cat"] = "operation";
      event["args"] = std::move(args);
      line(event);
      if (post != posts.end()) flow("f", *post->second, kFirstLane + lane, began.start_s);
    }
  }

  const Trace& trace_;
  const TraceFile& file_;
  std::string text_;
};

}  // namespace

std::string to_chrome_json(const Trace& trace, const TraceFile& file) {
  return Writer(trace, file).write();
}

}  // namespace ashlar::train
