// The trace of a step: of real ranks, which are threads, against the dry run of each, event by
// event; and all ranks replayed together.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/nn/precision.h"
#include "tests/train/real_rank.h"
#include "tests/train/replay.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

using Kind = TraceEvent::Kind;

// All of an event but its times.
std::string line_of(const Trace& trace, const TraceEvent& e) {
  const TracePlace& p = e.place;
  std::string text = fmt::format(
      "kind {} {} '{}' {} varies {} count {} at {} {} {} {}, lane {} ticket {} number {} root {}, "
      "{} flop, {} bytes, {} received",
      int(e.kind), trace.text(e.name), trace.text(e.label), name_of(e.dtype), int(e.varies),
      e.count, trace.phase(p), p.block, int(p.branch), p.micro_batch, e.lane, e.ticket, e.number,
      e.root, e.flop, e.bytes, e.received_bytes);
  if (e.group >= 0)
    text += fmt::format(", {} {}", trace.group(e.group).name,
                        fmt::join(trace.group(e.group).world_ranks, " "));
  if (e.kind == Kind::kKernel) {
    const TraceDims dims = trace.dims(e);
    return text + fmt::format(" {} {} {} {}", dims.groups, dims.rows, dims.cols, dims.depth);
  }
  for (const TraceMessage& m : trace.messages(e))
    text += fmt::format(" {} {} of {}", m.sends ? "to" : "from", m.rank, m.bytes);
  return text;
}

std::string first_difference(const std::string& what, const Trace& real, const Trace& dry,
                             std::span<const TraceEvent> r, std::span<const TraceEvent> d) {
  for (size_t i = 0; i < std::max(r.size(), d.size()); ++i) {
    const std::string a = i < r.size() ? line_of(real, r[i]) : "nothing";
    const std::string b = i < d.size() ? line_of(dry, d[i]) : "nothing";
    if (a != b) return fmt::format("{}, event {}\n  real {}\n  dry  {}\n", what, i, a, b);
  }
  return "";
}

std::string first_difference(const Trace& real, const Trace& dry) {
  std::string text = first_difference("rank", real, dry, real.events(), dry.events());
  if (real.num_lanes() != dry.num_lanes()) return text + "other lanes";
  for (int lane = 0; lane < dry.num_lanes(); ++lane)
    text += first_difference(dry.lane_name(lane), real, dry, real.lane_events(lane),
                             dry.lane_events(lane));
  return text;
}

// Rows of one document, as in a dry run; the second step.
void record_second_step(RealRank& rank, const TraceRoom& room) {
  rank.cut_rows(1);
  rank.step(0);
  rank.record(room);
  rank.step(1);
  rank.stop_recording();
}

int64_t count(std::span<const TraceEvent> events, Kind kind) {
  return std::count_if(events.begin(), events.end(),
                       [&](const TraceEvent& e) { return e.kind == kind; });
}

// Properties that replay and the file need of a recording.
void expect_whole(const Trace& trace) {
  EXPECT_EQ(trace.num_dropped(), 0);
  for (const TraceEvent& e : trace.events()) EXPECT_LE(e.start_s, e.end_s);
  for (int lane = 0; lane < trace.num_lanes(); ++lane) {
    const auto events = trace.lane_events(lane);
    const auto posts =
        std::count_if(trace.events().begin(), trace.events().end(),
                      [&](const TraceEvent& e) { return e.kind == Kind::kPost && e.lane == lane; });
    EXPECT_EQ(count(events, Kind::kBegan), posts);
    EXPECT_EQ(count(events, Kind::kEnded), posts);
    for (size_t i = 1; i < events.size(); ++i) EXPECT_LE(events[i - 1].end_s, events[i].start_s);
  }
}

// Calls check with the traces of every rank, real and dry, in their order.
void with_traces(const Recipe& recipe, int num_ranks,
                 const std::function<void(const std::vector<const Trace*>& real,
                                          const std::vector<const Trace*>& dry)>& check) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  std::vector<const Trace*> real(static_cast<size_t>(num_ranks));
  std::vector<const Trace*> dry(static_cast<size_t>(num_ranks));
  on_ranks(num_ranks, [&](comm::Group& ranks, Allocator& allocator) {
    const auto here = size_t(ranks.rank());
    const RunPlan plan = plan_run(recipe, compute, num_ranks, 1, ranks.rank());
    Allocator meta(Device::kMeta);
    comm::RecordingWorld recorded(ranks.rank(), num_ranks, {}, meta);
    RealRank dry_rank(recipe, compute, recorded.group(), meta, {});
    record_second_step(dry_rank, plan.trace);
    RealRank real_rank(recipe, compute, ranks, allocator, plan.step_memory);
    record_second_step(real_rank, plan.trace);
    real[here] = &real_rank.trace();
    dry[here] = &dry_rank.trace();
    // The plan, which forgets events after every micro-batch, has counted the same, but for the
    // barrier and, where there is anybody to wait for, its wait.
    EXPECT_EQ(dry_rank.trace().size().events, plan.trace.events + (num_ranks > 1 ? 2 : 1));
    expect_whole(real_rank.trace());
    expect_whole(dry_rank.trace());
    ranks.barrier("traces").wait();
    if (ranks.rank() == 0) check(real, dry);
    ranks.barrier("checked").wait();
  });
}

struct TracedLayout {
  std::string name;
  int num_ranks;
  Overrides overrides;
};

void PrintTo(const TracedLayout& layout, std::ostream* out) {
  *out << layout.name;
}

class TraceOfRanks : public testing::TestWithParam<TracedLayout> {};

TEST_P(TraceOfRanks, EqualsTheirDryRunsAndReplays) {
  const int num_ranks = GetParam().num_ranks;
  with_traces(recipe_with(GetParam().overrides), num_ranks, [&](const auto& real, const auto& dry) {
    for (size_t rank = 0; rank < real.size(); ++rank)
      EXPECT_EQ(first_difference(*real[rank], *dry[rank]), "") << "on rank " << rank;
    for (const auto* traces : {&real, &dry}) {
      std::vector<Program> programs;
      for (const Trace* t : *traces)
        programs.push_back({t, {t->events().begin(), t->events().end()}});
      EXPECT_EQ(Replay(programs).run(), "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TraceOfRanks,
    testing::Values(
        TracedLayout{"one_rank", 1, {}}, TracedLayout{"dp2_zero1", 2, {"train.precision=bf16"}},
        TracedLayout{"dp2_cp2_tp2_zero3", 8, {"parallel.cp=2", "parallel.tp=2", "parallel.zero=3"}},
        TracedLayout{"dp2_cp2_tp2_zero2_recompute",
                     8,
                     {"parallel.cp=2", "parallel.tp=2", "parallel.zero=2", "train.recompute=true",
                      "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
        TracedLayout{"dp2_tp2_sequence_parallel_owner",
                     4,
                     {"parallel.tp=2", "parallel.sequence_parallel=true", "parallel.muon=owner"}},
        TracedLayout{
            "mixed_dp2_cp2_tp2_zero3",
            8,
            {"parallel.cp=2", "parallel.tp=2", "parallel.zero=3", "model.intermediate_size=40",
             "model.layer_types=[\"attention+moe\", \"cca+mlp\"]", "model.qk_norm=rms"}},
        TracedLayout{"top_3_dp2_cp2_tp2_zero3_recompute",
                     8,
                     {"parallel.cp=2", "parallel.tp=2", "parallel.zero=3", "train.recompute=true",
                      "model.layer_types=[\"attention+mlp\", \"attention+moe\"]",
                      "model.intermediate_size=40", "model.router=linear",
                      "model.num_experts_per_tok=3", "model.router_expert_bias=true",
                      "model.shared_expert_intermediate_size=24", "model.shared_expert_gate=true",
                      "moe.router_aux_loss_coef=0.01", "moe.router_z_loss_coef=0.001"}},
        TracedLayout{"dp2_tsp4_zero1",
                     8,
                     {"parallel.tsp=4", "model.layer_types=full_attention",
                      "model.intermediate_size=40", "model.num_key_value_heads=4"}},
        TracedLayout{"dp2_tsp2_cca_recompute", 4, {"parallel.tsp=2", "train.recompute=true"}},
        TracedLayout{"tsp4_same_heads_zero3", 4, {"parallel.tsp=4", "parallel.zero=3"}},
        TracedLayout{"cp2_tsp2_zero3_recompute",
                     4,
                     {"parallel.cp=2", "parallel.tsp=2", "parallel.zero=3", "train.recompute=true",
                      "model.layer_types=full_attention", "model.intermediate_size=40",
                      "train.precision=bf16"}},
        TracedLayout{"pp2_tp2_sequence_parallel_bf16_stream",
                     4,
                     {"parallel.pp=2", "parallel.tp=2", "parallel.sequence_parallel=true",
                      "train.recompute=true", "train.precision=bf16", "train.stream=bf16"}},
        TracedLayout{"dp2_cp2_ring", 4, {"parallel.cp=2", "parallel.cp_exchange=ring"}},
        TracedLayout{"dp2_cp2_tp2_all_to_all_recompute",
                     8,
                     {"parallel.cp=2", "parallel.tp=2", "parallel.cp_exchange=all_to_all",
                      "train.recompute=true"}}),
    [](const testing::TestParamInfo<TracedLayout>& info) { return info.param.name; });

// The copies into a unit before its gather have the place of the unit's block; the events after
// them have the place of the step again.
TEST(TraceOfShards, HoldsTheCopiesBeforeEveryGather) {
  const Recipe recipe =
      recipe_with({"train.precision=bf16", "parallel.zero=3", "parallel.zero_layout=bucketed"});
  with_traces(recipe, 2, [&](const auto& real, const auto& dry) {
    for (const auto* traces : {&real, &dry})
      for (const Trace* trace : *traces) {
        std::map<int, int64_t> copied, gathered;  // by block, elements
        const TraceEvent* before = nullptr;
        for (const TraceEvent& e : trace->events()) {
          const bool gathers = e.kind == Kind::kPost && trace->text(e.label) == "weights";
          const bool copies = before && gathers && before->kind == Kind::kKernel &&
                              trace->text(before->name) == "copy" && before->place != e.place;
          if (copies) {
            copied[before->place.block] += before->bytes / (4 + 2);
            gathered[before->place.block] += e.bytes / 2;
            EXPECT_EQ(trace->phase(before->place), trace->phase(e.place));
          }
          before = &e;
        }
        EXPECT_EQ(int64_t(copied.size()), recipe.model.num_hidden_layers);
        for (const auto& [block, elements] : copied) {
          EXPECT_GT(elements, 0) << "block " << block;
          EXPECT_LE(elements, gathered[block]) << "block " << block;
        }
      }
  });
}

// The host waits for numbers of a step once, at its end: losses, loads and squares come together.
TEST(Trace, NothingIsDownloadedBeforeTheEndOfAStep) {
  const Recipe recipe = recipe_with({"parallel.pp=2", "model.num_hidden_layers=2"});
  with_traces(recipe, 2, [&](const auto& real, const auto&) {
    for (const Trace* trace : real) {
      std::vector<std::string_view> phases;
      for (const TraceEvent& e : trace->events())
        if (e.kind == Kind::kKernel && trace->text(e.name) == "download")
          phases.push_back(trace->phase(e.place));
      const std::vector<std::string_view> expected = {"gradient norm"};
      EXPECT_EQ(phases, expected);
    }
  });
}

// Two posts of one rank change places, in every lane by turns.
TEST(Replay, FindsPostsInAnotherOrder) {
  const Recipe recipe = recipe_with({"parallel.cp=2", "parallel.tp=2", "parallel.zero=3"});
  with_traces(recipe, 8, [&](const auto& real, const auto&) {
    std::vector<Program> programs;
    for (const Trace* t : real) programs.push_back({t, {t->events().begin(), t->events().end()}});
    constexpr size_t kRank = 5;
    const int num_lanes = real[kRank]->num_lanes();
    EXPECT_EQ(num_lanes, 3);
    for (int lane = 0; lane < num_lanes; ++lane) {
      SCOPED_TRACE(real[kRank]->lane_name(lane));
      std::vector<TraceEvent>& events = programs[kRank].events;
      std::vector<size_t> posts;
      for (size_t i = 0; i < events.size(); ++i)
        if (events[i].kind == Kind::kPost && events[i].lane == lane) posts.push_back(i);
      ASSERT_GE(posts.size(), 4u);
      const size_t i = posts[posts.size() / 2], j = posts[posts.size() / 2 + 1];
      std::swap(events[i], events[j]);
      EXPECT_NE(Replay(programs).run(), "");
      std::swap(events[i], events[j]);
    }
    EXPECT_EQ(Replay(programs).run(), "");
  });
}

// A rank that posts a sum of another length, and one that leaves a post out.
TEST(Replay, FindsOtherSizesAndMissingPosts) {
  const Recipe recipe = recipe_with({"parallel.tp=2"});
  with_traces(recipe, 4, [&](const auto& real, const auto&) {
    std::vector<Program> programs;
    for (const Trace* t : real) programs.push_back({t, {t->events().begin(), t->events().end()}});
    std::vector<TraceEvent>& events = programs[1].events;
    const auto post = std::find_if(events.begin(), events.end(), [](const TraceEvent& e) {
      return e.kind == Kind::kPost && e.lane >= 0 && e.number >= 0;
    });
    ASSERT_NE(post, events.end());
    ++post->bytes;
    EXPECT_NE(Replay(programs).run().find("bytes; rank"), std::string::npos);
    events.erase(post);
    EXPECT_NE(Replay(programs).run().find("is in"), std::string::npos);
  });
}

}  // namespace
}  // namespace ashlar::train
