#include "ashlar/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ashlar/core/error.h"
#include "ashlar/plan/search_stages.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::plan {
namespace {

constexpr size_t kExpandedFrames = 300;  // whose details are looked at
constexpr int kMostDryRuns = 60;         // before the smallest layouts are tried instead
constexpr int kSmallest = 12;            // layouts of least memory that are tried

using Layouts = std::vector<SearchedLayout>;

int64_t reach_of(const SearchedLayout& layout, Goal goal) {
  return goal == Goal::kMaxSequence     ? layout.sequence_length
         : goal == Goal::kMaxMicroBatch ? layout.micro_batch
                                        : 0;
}

void sort_by_memory(Layouts& layouts) {
  std::stable_sort(layouts.begin(), layouts.end(),
                   [](const auto& a, const auto& b) { return a.formula_bytes < b.formula_bytes; });
}

// The order in which layouts are tried: by closed formulas.
void sort_by_goal(Layouts& layouts, Goal goal) {
  if (goal == Goal::kMinMemory) return sort_by_memory(layouts);
  std::stable_sort(layouts.begin(), layouts.end(), [goal](const auto& a, const auto& b) {
    const int64_t x = reach_of(a, goal), y = reach_of(b, goal);
    return x != y ? x > y : a.promise_s / double(a.tokens) < b.promise_s / double(b.tokens);
  });
}

class Search {
 public:
  Search(SearchStages& stages, SearchResult& result) : stages_(stages), result_(result) {}

  // Layouts that rules and formulas leave, in the order of the goal.
  Layouts by_formulas() {
    Layouts frames;
    Progress progress(stages_.log(), "layouts by formulas", 0, "layouts");
    stages_.space().each_frame([&](const LayoutChoice& choice) {
      add_judged(choice, frames);
      progress.set(result_.num_layouts);
    });
    for (SearchedLayout& frame : frames) frame.promise_s = stages_.promise_s(frame);
    sort_by_goal(frames, goal());
    Layouts all;
    for (size_t i = 0; i < frames.size(); ++i) {
      frames[i].promise_s = frames[i].time.total_s;
      if (i >= kExpandedFrames) {
        all.push_back(std::move(frames[i]));
        continue;
      }
      stages_.space().each_detail(frames[i].choice, [&](const LayoutChoice& choice) {
        if (choice == frames[i].choice)
          all.push_back(frames[i]);
        else
          add_judged(choice, all);
      });
    }
    sort_by_goal(all, goal());
    return all;
  }

  // Layouts that fit by a dry run, at most as many as are to be simulated.
  Layouts that_fit(Layouts& layouts) {
    Layouts fitting;
    Progress progress(stages_.log(), "dry runs", 0, "layouts");
    size_t begin = 0;
    while (begin < layouts.size() && fitting.empty()) {
      size_t end = begin;
      while (end < layouts.size() &&
             reach_of(layouts[end], goal()) == reach_of(layouts[begin], goal()))
        ++end;
      Layouts group(layouts.begin() + int64_t(begin), layouts.begin() + int64_t(end));
      const bool ranked = goal() == Goal::kMaxSequence || goal() == Goal::kMaxMicroBatch;
      // A reach that even the smallest layouts do not have is left at once.
      if (!ranked || smallest_fits(group)) take_fitting(group, fitting, progress);
      begin = end;
    }
    return fitting;
  }

  // The legal layout of least memory; nullopt: no layout is legal.
  const std::optional<SearchedLayout>& smallest() const { return smallest_; }
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  Goal goal() const { return stages_.options().goal; }

  void add_judged(const LayoutChoice& choice, Layouts& to) {
    ++result_.num_layouts;
    SearchStages::Judged judged;
    if (std::string links = stages_.links_problem(choice); !links.empty())
      judged.refusal = {true, std::move(links)};
    else
      judged = stages_.judge(choice);
    if (judged.refusal) {
      ++(judged.refusal->links ? result_.num_links : result_.num_refused);
      last_refusal_ = judged.refusal->reason;
      ++result_.refusals[judged.refusal->links ? "links of a node"
                                               : last_refusal_.substr(0, last_refusal_.find(' '))];
      return;
    }
    SearchedLayout& layout = *judged.layout;
    layout.promise_s = layout.time.total_s;
    if (!smallest_ || layout.formula_bytes < smallest_->formula_bytes) smallest_ = layout;
    if (!stages_.may_fit(layout)) {
      ++result_.num_formula;
      return;
    }
    ++result_.num_timed;
    to.push_back(std::move(layout));
  }

  bool try_layout(SearchedLayout& layout) {
    const bool fits = stages_.fits(layout);
    result_.num_too_large += !fits;
    return fits;
  }

  bool smallest_fits(Layouts group) {
    sort_by_memory(group);
    for (size_t i = 0; i < std::min(size_t(kSmallest), group.size()); ++i)
      if (try_layout(group[i])) return true;
    return false;
  }

  // Whether a layout that differs in details alone has the same memory and time.
  bool is_known(const Layouts& layouts, const SearchedLayout& other) const {
    return std::any_of(layouts.begin(), layouts.end(), [&](const SearchedLayout& known) {
      for (size_t k = 0; k < other.choice.size(); ++k)
        if (!stages_.space().is_detail(k) && known.choice[k] != other.choice[k]) return false;
      return known.memory->tag_bytes == other.memory->tag_bytes &&
             known.time.total_s == other.time.total_s;
    });
  }

  // Takes the first layout that fits of those that differ in details alone, and the others only
  // where too few are left.
  void take_fitting(Layouts& group, Layouts& fitting, Progress& progress) {
    std::set<LayoutChoice> taken;  // frames
    std::vector<bool> tried(group.size());
    const auto take = [&](bool others, int most) {
      int num_tries = 0;
      for (size_t i = 0; i < group.size() && num_tries < most; ++i) {
        const LayoutChoice frame = stages_.space().frame_of(group[i].choice);
        if (tried[i] || (!others && taken.contains(frame))) continue;
        if (int(fitting.size()) >= stages_.options().num_simulated) return;
        ++num_tries;
        tried[i] = true;
        if (try_layout(group[i]) && !is_known(fitting, group[i])) {
          fitting.push_back(group[i]);
          taken.insert(frame);
        }
        progress.set(stages_.num_dry_runs());
      }
    };
    take(false, kMostDryRuns);
    if (!fitting.empty()) return take(true, kMostDryRuns);
    sort_by_memory(group);
    tried.assign(group.size(), false);
    take(true, kSmallest);
  }

  SearchStages& stages_;
  SearchResult& result_;
  std::optional<SearchedLayout> smallest_;
  std::string last_refusal_;
};

// Number of keys that differ from the recipe's.
int64_t num_changes(const SearchedLayout& layout) {
  return std::count_if(layout.choice.begin(), layout.choice.end(),
                       [](uint8_t v) { return v != 0; });
}

void sort_best(Layouts& layouts, Goal goal) {
  std::stable_sort(layouts.begin(), layouts.end(), [goal](const auto& a, const auto& b) {
    const int64_t x = reach_of(a, goal), y = reach_of(b, goal);
    if (x != y) return x > y;
    if (goal == Goal::kMinMemory && a.memory->total_bytes != b.memory->total_bytes)
      return a.memory->total_bytes < b.memory->total_bytes;
    const double s = a.step_s() / double(a.tokens), t = b.step_s() / double(b.tokens);
    return s != t ? s < t : num_changes(a) < num_changes(b);
  });
}

void add_facts(SearchResult& result, const SearchStages& stages, const Recipe& base) {
  const machine::Profile& profile = stages.machine().profile;
  result.memory_bytes = stages.memory_bytes();
  result.memory_from = stages.options().memory_bytes > 0 ? "--memory"
                       : profile.find("device.memory")   ? "device.memory"
                       : profile.find("node.memory")     ? "node.memory over its ranks"
                                                         : "";
  const char* type = stages.compute() == DType::kBF16 ? "bf16" : "fp32";
  for (const char* rate : {"device.peak_", "compute.achievable_"}) {
    const std::string key = std::string(rate) + type;
    const machine::Quantity* peak = profile.find(key);
    if (!peak || !result.peak_from.empty()) continue;
    result.peak_flop = 1e12 * peak->value;
    result.peak_from = key;
  }
  const auto note = [&](std::string text) { result.notes.push_back(std::move(text)); };
  if (result.memory_bytes <= 0)
    note("every layout fits: neither device.memory nor node.memory is known (--memory)");
  else
    note(
        "beside what a dry run counts nothing takes memory: runtime and library buffers are not "
        "known");
  if (base.parallel.dp != 0) note("parallel.dp follows from the ranks and the other degrees");
}

// The layouts that fit, simulated, best first.
Layouts ranked_layouts(Search& search, SearchStages& stages) {
  const SearchOptions& options = stages.options();
  Layouts candidates = search.by_formulas();
  Layouts fitting = search.that_fit(candidates);
  if (options.goal == Goal::kMinMemory && !fitting.empty()) {
    // Memory decides: only what is shown is simulated.
    sort_best(fitting, options.goal);
    fitting.resize(std::min(fitting.size(), size_t(options.top)));
  }
  Progress progress(stages.log(), "simulated steps", int64_t(fitting.size()), "layouts");
  for (SearchedLayout& layout : fitting) {
    stages.simulate(layout);
    progress.advance(1);
  }
  sort_best(fitting, options.goal);
  return fitting;
}

}  // namespace

SearchResult search(const Recipe& base, DType compute, const MachineFile& machine,
                    const SearchOptions& options, Log& log) {
  SearchStages stages(base, compute, machine, options, log);
  SearchResult result;
  add_facts(result, stages, base);
  Search search(stages, result);
  Layouts fitting = ranked_layouts(search, stages);
  ASHLAR_REQUIRE(search.smallest(), kConfig,
                 "{} ranks cannot share this recipe in any way; the rule of the last layout: {}",
                 options.num_ranks, search.last_refusal());
  if (fitting.empty()) {
    SearchedLayout least = *search.smallest();
    stages.fits(least);
    result.nearest_miss = stages.smallest();
    result.num_dry_runs = stages.num_dry_runs();
    return result;
  }
  Recipe best = base;
  best.data.sequence_length = fitting[0].sequence_length;
  result.flop_a_token = train::training_flop(best);
  result.neighbours = neighbours_of(stages, fitting[0]);
  result.sensitivity = sensitivity_of(stages, fitting);
  result.classes = classes_of(stages, fitting[0]);
  for (const std::string& note : fitting[0].step->notes) result.notes.push_back(note);
  result.num_dry_runs = stages.num_dry_runs();
  result.num_simulated = stages.num_simulated();
  fitting.resize(std::min(fitting.size(), size_t(options.top)));
  result.best = std::move(fitting);
  return result;
}

std::vector<SearchedLayout> best_layouts(const Recipe& base, DType compute,
                                         const MachineFile& machine, const SearchOptions& options,
                                         Log& log) {
  SearchStages stages(base, compute, machine, options, log);
  SearchResult counts;
  Search search(stages, counts);
  Layouts best = ranked_layouts(search, stages);
  best.resize(std::min(best.size(), size_t(options.top)));
  return best;
}

}  // namespace ashlar::plan
