#include "ashlar/kernels/product_forms.h"

#include <fmt/format.h>

#include <algorithm>

namespace ashlar::kernels {
namespace {

constexpr std::string_view kPasses[] = {"forward", "backward_input", "backward_weight"};
constexpr int64_t kFarthest = 2;  // times as many rows as a near entry

}  // namespace

std::string ProductForm::text() const {
  std::string text;
  if (rows > 0) text += fmt::format(" rows {}", rows);
  if (panels > 0) text += fmt::format(" panels {}", panels);
  if (order != TaskOrder::kByRule)
    text += order == TaskOrder::kRowsFirst ? " rows-first" : " panels-first";
  if (copies != RowCopies::kByRule) text += copies == RowCopies::kAlways ? " copied" : " in-place";
  return text.empty() ? "rules" : text.substr(1);
}

std::string ProductKey::op() const {
  return fmt::format("{}linear_{}",
                     own_columns  ? "blockdiag_"
                     : groups > 1 ? "grouped_"
                                  : "",
                     kPasses[size_t(pass)]);
}

bool set_op(std::string_view op, ProductKey& key) {
  key.own_columns = op.starts_with("blockdiag_");
  for (const std::string_view prefix : {"blockdiag_", "grouped_"})
    if (op.starts_with(prefix)) op.remove_prefix(prefix.size());
  constexpr std::string_view kLinear = "linear_";
  if (!op.starts_with(kLinear)) return false;
  op.remove_prefix(kLinear.size());
  const auto* const found = std::find(std::begin(kPasses), std::end(kPasses), op);
  if (found == std::end(kPasses)) return false;
  key.pass = ProductPass(found - std::begin(kPasses));
  return true;
}

ProductTable::ProductTable(std::vector<ProductEntry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const ProductEntry& a, const ProductEntry& b) { return a.key < b.key; });
}

// Keys differ last in their rows, so that the neighbours of a key are its nearest rows.
const ProductForm* ProductTable::find(const ProductKey& key) const {
  const auto after = std::lower_bound(
      entries_.begin(), entries_.end(), key,
      [](const ProductEntry& entry, const ProductKey& k) { return entry.key < k; });
  if (after != entries_.end() && after->key == key) {
    exact_.fetch_add(1, std::memory_order_relaxed);
    return &after->form;
  }
  const auto is_near = [&](const ProductEntry& entry) {
    ProductKey same = entry.key;
    same.rows = key.rows;
    return same == key && entry.key.rows <= kFarthest * key.rows &&
           key.rows <= kFarthest * entry.key.rows;
  };
  const ProductEntry* nearest = nullptr;
  if (after != entries_.end() && is_near(*after)) nearest = &*after;
  if (after != entries_.begin() && is_near(*(after - 1)) &&
      (!nearest || key.rows - (after - 1)->key.rows <= nearest->key.rows - key.rows))
    nearest = &*(after - 1);
  (nearest ? near_ : missed_).fetch_add(1, std::memory_order_relaxed);
  return nearest ? &nearest->form : nullptr;
}

std::vector<ProductForm> task_candidates(const ProductKey& key) {
  // The extents of the result that a task's rows and panels cut.
  const bool weights = key.pass == ProductPass::kBackwardWeight;
  const int64_t rows = weights ? key.cols : key.rows,
                columns = key.pass == ProductPass::kForward ? key.cols : key.depth;
  constexpr int64_t kWidth = 32;  // of a panel, or more than it
  std::vector<ProductForm> forms;
  for (const int32_t r : {0, 32, 64, 128, 256, 512, 1024, 2048})
    for (const int32_t p : {0, 1, 2, 4, 8, 16, 24, 32, 64})
      if ((r > 0 || p > 0) && r < 2 * rows && p * kWidth < 2 * columns)
        forms.push_back({.rows = r, .panels = p});
  return forms;
}

std::vector<ProductForm> order_candidates(const ProductKey& key, const ProductForm& form) {
  std::vector<ProductForm> forms;
  if (key.pass == ProductPass::kBackwardWeight) return forms;
  for (const TaskOrder order : {TaskOrder::kByRule, TaskOrder::kRowsFirst, TaskOrder::kPanelsFirst})
    for (const RowCopies copies : {RowCopies::kByRule, RowCopies::kAlways, RowCopies::kNever}) {
      ProductForm other = form;
      other.order = order;
      other.copies = copies;
      if (other != form) forms.push_back(other);
    }
  return forms;
}

}  // namespace ashlar::kernels
