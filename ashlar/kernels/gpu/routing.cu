// moe.h, topk.h: choices of experts, counted and put in order.  A block takes
// kChoicesOfPart choices of a row.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_BOTH int64_t num_parts(int64_t choices) {
  return (choices + kChoicesOfPart - 1) / kChoicesOfPart;
}

// counts [classes, rows, parts] of expert [rows, choices].
struct ChoiceCounts {
  const int32_t* expert;
  int32_t* counts;
  int64_t rows, choices, classes;
};

// A block has one part and kLanes classes, of which a lane counts one; each group of lanes looks at
// one of the shares of the part.
constexpr int kCountShares = 8, kCountThreads = kCountShares * kLanes;

ASHLAR_KERNEL(kCountThreads) count_choices_kernel(ChoiceCounts x) {
  auto* counts = (int32_t*)shared_memory();  // [kCountShares, kLanes]
  const int lane = thread_index() % kLanes, share = thread_index() / kLanes;
  const int64_t parts = num_parts(x.choices), some_classes = block_index() / (x.rows * parts);
  const int64_t in_class = block_index() - some_classes * x.rows * parts;
  const int64_t row = in_class / parts, first = (in_class - row * parts) * kChoicesOfPart;
  const int64_t end = first + kChoicesOfPart < x.choices ? first + kChoicesOfPart : x.choices;
  const int64_t number = some_classes * kLanes + lane;  // of the lane's class
  const int32_t* expert = x.expert + row * x.choices;
  int32_t count = 0;
  for (int64_t i = first + share; i < end; i += kCountShares) count += expert[i] == number;
  counts[thread_index()] = count;
  sync_block();
  if (share > 0 || number >= x.classes) return;
  for (int i = 1; i < kCountShares; ++i) count += counts[i * kLanes + lane];
  x.counts[number * x.rows * parts + in_class] = count;
}

std::string run_count(const ChoiceCounts& x) {
  const int64_t blocks = (x.classes + kLanes - 1) / kLanes * x.rows * num_parts(x.choices);
  if (blocks == 0) return "";
  return run(count_choices_kernel, {blocks, kCountThreads, kCountThreads * int(sizeof(int32_t))},
             x);
}

constexpr int kScanThreads = 1024, kScanGroups = kScanThreads / kLanes;

// The sums of what the threads before this one have, and of what all have.
struct Scan {
  int32_t before, all;
};
ASHLAR_DEVICE Scan scan_block(int32_t own, int32_t* room) {
  const int group = thread_index() / kLanes;
  int32_t* of_groups = room + kScanThreads;
  room[thread_index()] = own;
  sync_block();
  Scan sum{0, 0};
  for (int i = group * kLanes; i < thread_index(); ++i) sum.before += room[i];
  if (thread_index() % kLanes == kLanes - 1) of_groups[group] = sum.before + own;
  sync_block();
  for (int i = 0; i < kScanGroups; ++i) {
    sum.before += i < group ? of_groups[i] : 0;
    sum.all += of_groups[i];
  }
  return sum;
}

// One block turns counts into the first row of each class and part, the skip class last, as if it
// had rows too.
ASHLAR_KERNEL(kScanThreads) scan_counts_kernel(RoutePlan x) {
  const int64_t classes = x.num_experts + 1, parts = num_parts(x.choices), n = classes * parts;
  const int64_t each = (n + kScanThreads - 1) / kScanThreads, begin = thread_index() * each;
  const int64_t end = begin + each < n ? begin + each : n;
  int32_t own = 0;
  for (int64_t i = begin; i < end; ++i) own += x.counts[i];
  const Scan sum = scan_block(own, (int32_t*)shared_memory());
  int32_t row = sum.before;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t count = x.counts[i];
    x.counts[i] = row;
    row += count;
  }
  sync_block();
  const auto first_row = [&](int64_t number) {
    return number * parts < n ? x.counts[number * parts] : sum.all;
  };
  for (int64_t number = thread_index(); number < classes; number += kScanThreads) {
    const int32_t first = first_row(number);
    x.row_of_expert[number] = first;
    x.count[number] = first_row(number + 1) - first;
  }
}

// A block has a part, and a thread one choice, whose row follows those of its expert's choices
// before it.
ASHLAR_KERNEL(kChoicesOfPart) place_choices_kernel(RoutePlan x) {
  auto* experts = (int32_t*)shared_memory();  // [kChoicesOfPart]
  const int64_t choice = int64_t(block_index()) * kChoicesOfPart + thread_index();
  const int32_t expert = choice < x.choices ? x.expert[choice] : -1;
  experts[thread_index()] = expert;
  sync_block();
  if (choice >= x.choices) return;
  if (expert < 0 || expert == x.num_experts) {
    x.row_of_token[choice] = -1;
    return;
  }
  int32_t row = x.counts[expert * num_parts(x.choices) + block_index()];
  for (int i = 0; i < thread_index(); ++i) row += experts[i] == expert;
  x.row_of_token[choice] = row;
  x.token_of_row[row] = int32_t(choice / x.k);
}

ASHLAR_KERNEL(kEachThreads) sum_loads_kernel(RowLoads x) {
  const int64_t parts = num_parts(x.choices);
  for_each_of_block(x.rows * x.classes, [&](int64_t i) {
    const Place p = place_of(i, x.rows, x.classes);
    int32_t count = 0;
    for (int64_t part = 0; part < parts; ++part)
      count += x.counts[(p.column * x.rows + p.row) * parts + part];
    x.loads[i] = float(count);
  });
}

}  // namespace

std::string launch(const RoutePlan& x) {
  std::string error = run_count({.expert = x.expert,
                                 .counts = x.counts,
                                 .rows = 1,
                                 .choices = x.choices,
                                 .classes = x.num_experts + 1});
  if (!error.empty()) return error;
  constexpr int kRoom = (kScanThreads + kScanGroups) * int(sizeof(int32_t));
  error = run(scan_counts_kernel, {1, kScanThreads, kRoom}, x);
  if (!error.empty() || x.choices == 0) return error;
  return run(place_choices_kernel,
             {num_parts(x.choices), kChoicesOfPart, kChoicesOfPart * int(sizeof(int32_t))}, x);
}

std::string launch(const RowLoads& x) {
  const std::string error = run_count({.expert = x.expert,
                                       .counts = x.counts,
                                       .rows = x.rows,
                                       .choices = x.choices,
                                       .classes = x.classes});
  if (!error.empty()) return error;
  return run(sum_loads_kernel, {blocks_for_each(x.rows * x.classes), kEachThreads, 0}, x);
}

}  // namespace ashlar::device
