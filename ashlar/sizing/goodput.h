// The share of time that a long run trains usefully on nodes that fail: closed formulas.
//
// Failures come at random, rate of them a second: nodes / MTBF of a node.  A run trains T seconds
// from save to save, waits C for each save, which is committed L after it began; after a failure
// its next step comes R later, and what no committed step holds is computed again.  Then
//
//   useful = T / (exp(rate (R + L)) (exp(rate (T + C)) - 1) / rate)
//
// as in Daly, "A higher order estimate of the optimum checkpoint interval" (2006), with L in
// addition.  Failures during a restart begin it anew.
#pragma once

#include <cstdint>

namespace ashlar::sizing {

struct FailingRun {
  double failures_per_s = 0;
  double interval_s = 0;   // T: training from save to save
  double save_wait_s = 0;  // C: training waits for each save
  double commit_s = 0;     // L: from a save's begin until a failure cannot take it
  double restart_s = 0;    // R: from a failure to the next step
};

// Shares of the time of all nodes, which add up to 1.
struct GoodputShares {
  double useful = 0;
  double saves = 0;       // waited for saves
  double restarts = 0;    // nothing trains
  double recomputed = 0;  // steps that a failure took away
};
GoodputShares goodput(const FailingRun& run);

// The interval of the highest useful share, at least commit_s: saves do not overlap.
double best_interval(FailingRun run);

// The fewest spare nodes with which all nodes of a run are there for that share of the time, if
// each failed one is away for away_s.
int64_t spares_for(double failures_per_s, double away_s, double share);

}  // namespace ashlar::sizing
