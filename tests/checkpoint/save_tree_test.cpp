// Saves over trees of ranks by chance, in bad weather: lost, doubled and late messages, ranks that
// fail, die or come late.  Either the leader has all parts, or all ranks know why not.
#include <gtest/gtest.h>

#include <cstdlib>

#include "ashlar/checkpoint/writers/collect_parts.h"
#include "ashlar/checkpoint/writers/read_back.h"
#include "tests/checkpoint/save_tree_sim.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

// The part of a rank with one row of a tensor, or with none of it.
WriterPart part_of(int rank, int ranks, const Id& attempt, bool has_row) {
  WriterPart part;
  part.rank = rank;
  part.has_boxes = true;
  part.index.attempt = attempt;
  IndexFile file;
  file.path = "model/f" + std::to_string(rank);
  file.writer = uint32_t(rank + 1);
  file.size_bytes = 16;
  file.chunk_crcs = {uint32_t(rank)};
  part.index.files.push_back(file);
  if (has_row) {
    IndexTensor tensor;
    tensor.logical = {"w", DType::kF32, {ranks, 4}, Role::kParameter};
    tensor.boxes.push_back({0, {{rank, 0}, {1, 4}}, 0, std::nullopt});
    part.index.tensors.push_back(tensor);
  }
  part.layout = layout_hash(part.index);
  return part;
}

void send_part(Simulation& sim, int rank, const Id& attempt, bool has_row = true) {
  const WriterPart part = part_of(rank, sim.size(), attempt, has_row);
  sim[rank].part(attempt, part.layout, cover_of(part.index), {part.index.files[0].path, 16},
                 encode(part, false), encode(part, true));
  sim.pump(rank);
}

CoverHash whole_cover(int ranks, const Id& attempt) {
  return CoverHasher(cover_seed(attempt), "w", 2)(Box::whole({ranks, 4}));
}

void see_all(Simulation& sim, const Id& attempt) {
  for (int rank = 0; rank < sim.size(); ++rank)
    while (const auto next = sim[rank].to_see(attempt)) {
      if (sim.is_dead(rank)) break;
      sim[rank].seen(attempt, next->child);
      sim.pump(rank);
    }
}

struct Outcome {
  bool collected = false, failed = false, broken = false, covered = false;
};

// Runs one attempt until the leader knows what became of it, for two minutes at most.
Outcome attempt_once(Simulation& sim, KnownBoxes& known, Draw& draw, int64_t step, int failing,
                     int dying, int without_row) {
  const Id attempt = random_id();
  std::vector<double> begins, writes;
  for (int rank = 0; rank < sim.size(); ++rank) {
    begins.push_back(sim.now() + 0.01 * double(draw.below(500)));
    writes.push_back(begins.back() + 0.01 * double(draw.below(500)));
  }
  const double death = sim.now() + 0.01 * double(draw.below(1000));
  std::set<int> begun, written;
  Outcome outcome;
  for (const double end = sim.now() + 120; sim.now() < end;) {
    sim.run(0.05);
    for (int rank = 0; rank < sim.size(); ++rank) {
      if (rank == dying && sim.now() >= death && !sim.is_dead(rank)) sim.kill(rank);
      if (sim.is_dead(rank)) continue;
      if (sim.now() >= begins[size_t(rank)] && begun.insert(rank).second)
        sim[rank].begin(attempt, step, sim.now());
      if (rank > 0 && sim.now() >= writes[size_t(rank)] && written.insert(rank).second) {
        if (rank == failing)
          sim[rank].fail(attempt, step, "the disk is full", sim.now());
        else
          send_part(sim, rank, attempt, rank != without_row);
      }
      sim.pump(rank);
    }
    see_all(sim, attempt);
    if (sim.is_dead(0)) continue;
    if (sim[0].broken()) {
      outcome.broken = true;
      break;
    }
    if (const auto failure = sim[0].failure(attempt)) {
      EXPECT_EQ(failure->rank, failing);
      EXPECT_EQ(failure->why, "the disk is full");
      outcome.failed = true;
      break;
    }
    if (!begun.contains(0)) continue;
    if (auto all = collect_parts(sim[0], known, attempt, sim.size(), sim.now())) {
      outcome.collected = true;
      CoverHash cover = cover_of(part_of(0, sim.size(), attempt, true).index);
      cover += all->cover;
      outcome.covered = cover == whole_cover(sim.size(), attempt);
      for (const WriterPart& part : all->parts) {
        EXPECT_EQ(part.index.files[0].chunk_crcs[0], uint32_t(part.rank));
        EXPECT_EQ(part.index.tensors.size(), part.rank == without_row ? 0u : 1u);
      }
      break;
    }
    sim.pump(0);
  }
  if (outcome.collected || outcome.failed) {
    sim[0].decide({attempt, step, outcome.collected && outcome.covered, "because"});
    sim.pump(0);
    const bool all_know = sim.run(60, [&] {
      for (int rank = 0; rank < sim.size(); ++rank)
        if (!sim.is_dead(rank) && begun.contains(rank) && !sim[rank].result(attempt) &&
            !sim[rank].broken())
          return false;
      return true;
    });
    EXPECT_TRUE(all_know);
    for (int rank = 0; rank < sim.size(); ++rank)
      if (const auto result = sim[rank].result(attempt)) {
        EXPECT_EQ(result->committed, outcome.collected && outcome.covered);
      }
  }
  return outcome;
}

int weather_rounds() {
  const char* text = std::getenv("ASHLAR_SAVE_TREE_ROUNDS");
  return text ? std::atoi(text) : 150;
}

TEST(SaveTree, InAnyWeatherAllPartsOrAReason) {
  for (int round = 0; round < weather_rounds(); ++round) {
    SCOPED_TRACE(round);
    Draw draw(uint64_t(round), "round");
    std::vector<int> nodes;
    const int ranks = 1 + int(draw.below(40));
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(int(draw.below(6)));
    Weather weather;
    if (draw.below(2)) weather = {int(draw.below(25)), int(draw.below(25)), int(draw.below(25))};
    Simulation sim(nodes, uint64_t(round), weather, 1 + int(draw.below(4)));
    KnownBoxes known;
    for (int64_t step = 1; step <= 3; ++step) {
      if (draw.below(4) == 0) known = {};  // it has to ask
      const auto some = [&](int percent) {
        return draw.below(100) < percent && ranks > 1 ? 1 + int(draw.below(ranks - 1)) : -1;
      };
      const int failing = some(15), dying = some(10), without_row = some(15);
      const Outcome outcome = attempt_once(sim, known, draw, step, failing, dying, without_row);
      EXPECT_TRUE(outcome.collected || outcome.failed || outcome.broken);
      if (failing < 0) {
        EXPECT_FALSE(outcome.failed);
      }
      if (dying < 0) {
        EXPECT_FALSE(outcome.broken);
      }
      if (outcome.collected && failing < 0) {
        EXPECT_EQ(outcome.covered, without_row < 0);
      }
      if (failing >= 0) {
        EXPECT_FALSE(outcome.collected);
      }
      if (outcome.broken) {
        EXPECT_NE(sim[0].why_broken().find("lost its link to rank"), std::string::npos);
        // A rank that still has links learns it too, sooner or later.
        sim.run(40);
        for (int rank = 0; rank < ranks; ++rank)
          if (!sim.is_dead(rank) && weather.lost_percent == 0) {
            EXPECT_TRUE(sim[rank].broken()) << rank;
          }
      }
      if (outcome.broken || dying >= 0) break;
    }
  }
}

TEST(SaveTree, ReadsBackWithAllRanks) {
  for (int round = 0; round < weather_rounds(); ++round) {
    SCOPED_TRACE(round);
    Draw draw(uint64_t(round), "read back");
    std::vector<int> nodes;
    const int ranks = 1 + int(draw.below(40));
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(int(draw.below(6)));
    Weather weather;
    if (draw.below(2)) weather = {int(draw.below(25)), int(draw.below(25)), int(draw.below(25))};
    Simulation sim(nodes, uint64_t(round), weather, 1 + int(draw.below(4)));
    const Id attempt = random_id();
    std::map<int, std::vector<std::byte>> tasks;
    for (int rank = 0; rank < ranks; ++rank)
      tasks[rank] = std::vector<std::byte>(size_t(rank), std::byte(rank));
    sim[0].order(attempt, 7, tasks, 0);
    sim.pump(0);
    const int bad = draw.below(3) ? -1 : int(draw.below(ranks));
    std::set<int> worked;
    const bool finished = sim.run(120, [&] {
      for (int rank = 0; rank < ranks; ++rank)
        if (const auto task = sim[rank].take_task()) {
          EXPECT_EQ(task->what, tasks[rank]);
          EXPECT_EQ(task->step, 7);
          EXPECT_TRUE(worked.insert(rank).second);
          sim[rank].done(attempt, {1, 10, rank == bad ? rank : -1, true, rank == bad ? "bad" : ""});
          sim.pump(rank);
        }
      return sim[0].read_back(attempt).has_value();
    });
    ASSERT_TRUE(finished);
    const ReadBackResult result = *sim[0].read_back(attempt);
    EXPECT_EQ(result.count, uint32_t(ranks));
    EXPECT_EQ(result.bytes, 10 * ranks);
    EXPECT_EQ(result.bad_rank, bad);
  }
}

TEST(SaveTree, WhatCannotBeReadBreaksItByName) {
  Simulation sim({0, 0, 0}, 1);
  sim[0].received(2, 2, std::vector<std::byte>(5), 0);
  sim.pump(0);
  sim.run(1);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(sim[rank].broken());
    EXPECT_NE(sim[rank].why_broken().find("rank 0 cannot read a message of rank 2: "),
              std::string::npos);
  }
}

TEST(ReadBack, PartnersAreOnOtherNodes) {
  for (const auto& nodes : {std::vector<int>{0, 0, 1, 1},
                            {0, 1, 0, 1, 0, 1},
                            {5, 5, 5, 1, 1, 2},
                            {0, 1, 2, 3, 4},
                            {3, 3, 3, 3, 1, 1, 1}}) {
    const control::Tree tree = control::make_tree(nodes);
    const std::vector<int> partners = read_back_partners(tree);
    std::set<int> read(partners.begin(), partners.end());
    EXPECT_EQ(read.size(), nodes.size());  // every writer by one
    int same = 0;
    for (size_t rank = 0; rank < nodes.size(); ++rank)
      same += nodes[rank] == nodes[size_t(partners[rank])];
    const int crowded = nodes == std::vector<int>{3, 3, 3, 3, 1, 1, 1} ? 1 : 0;
    EXPECT_EQ(same, crowded);
  }
  EXPECT_EQ(read_back_partners(control::make_tree(std::vector<int>{0})), std::vector<int>{0});
}

}  // namespace
}  // namespace ashlar::checkpoint
