#include "ashlar/checkpoint/load/match.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/cover.h"

namespace ashlar::checkpoint {
namespace {

bool matches_any(std::string_view name, std::span<const std::string> patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

bool convertible(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16;
}

std::string some_of(std::span<const std::string> items) {
  constexpr size_t kMost = 5;
  std::string text = fmt::format("{}", fmt::join(items.first(std::min(kMost, items.size())), ", "));
  if (items.size() > kMost) text += fmt::format(" and {} more", items.size() - kMost);
  return text;
}

bool considered(const Index& index, const IndexTensor& tensor, const LoadOptions& options) {
  return options.components.empty() ||
         std::count(options.components.begin(), options.components.end(),
                    component_of(index, tensor)) > 0;
}

void check_cover(const StepReader& reader, const IndexTensor& tensor) {
  const auto error = find_cover_error(tensor.logical.global_shape, tensor.boxes.size(),
                                      [&](size_t i) -> const Box& { return tensor.boxes[i].box; });
  ASHLAR_REQUIRE(!error, kCorrupt, "{}: tensor '{}': {}", reader.directory(), tensor.logical.name,
                 *error);
}

// Compares what is stored with what is wanted, as the options allow.
class Matcher {
 public:
  Matcher(const StepReader& reader, const LoadOptions& options)
      : reader_(reader), options_(options) {}

  LoadReport check(std::span<const Piece> destinations) {
    std::set<std::string_view> wanted;
    for (const Piece& piece : destinations) {
      ASHLAR_ASSERT(piece.data.numel() == piece.box.length.numel() &&
                    inside(piece.box, piece.logical.global_shape));
      // A tensor may have several destinations, which agree in all that is checked but the box.
      if (wanted.insert(piece.logical.name).second) check(piece);
    }
    if (!options_.only_these) find_unexpected(wanted);
    report_.tensors = int64_t(wanted.size() - report_.missing.size());
    fail_on_findings();
    return std::move(report_);
  }

 private:
  void find_unexpected(const std::set<std::string_view>& wanted) {
    for (const IndexTensor& tensor : reader_.index().tensors)
      if (!tensor.alias && !wanted.contains(tensor.logical.name) &&
          considered(reader_.index(), tensor, options_)) {
        const bool allowed = matches_any(tensor.logical.name, options_.allow_unexpected);
        (allowed ? report_.unexpected : unexpected_).push_back(tensor.logical.name);
      }
  }

  void check(const Piece& piece) {
    const LogicalTensor& wanted = piece.logical;
    const IndexTensor* stored = reader_.find(wanted.name);
    if (!stored) {
      const bool allowed = matches_any(wanted.name, options_.allow_missing);
      (allowed ? report_.missing : missing_).push_back(wanted.name);
      return;
    }
    if (!(stored->logical.global_shape == wanted.global_shape)) {
      mismatched_.push_back(fmt::format("{} is {} but {} is wanted", wanted.name,
                                        stored->logical.global_shape.to_string(),
                                        wanted.global_shape.to_string()));
      return;
    }
    const DType from = stored->logical.dtype, to = piece.data.dtype;
    if (from != to) {
      const bool asked =
          std::count(options_.cast.begin(), options_.cast.end(), std::pair(from, to));
      if (asked && convertible(from) && convertible(to))
        report_.cast.push_back(wanted.name);
      else
        mismatched_.push_back(
            fmt::format("{} is {} but {} is wanted", wanted.name, name_of(from), name_of(to)));
    }
  }

  void fail_on_findings() const {
    std::string text;
    const auto add = [&](std::string_view what, std::span<const std::string> items) {
      if (!items.empty())
        text += fmt::format("{}{} {}", text.empty() ? "" : "; ", what, some_of(items));
    };
    add("missing there:", missing_);
    add("not wanted here:", unexpected_);
    add("different:", mismatched_);
    ASHLAR_REQUIRE(
        text.empty(), kConfig,
        "{} does not match this model: {}; use the recipe that the checkpoint was made with",
        reader_.directory(), text);
  }

  const StepReader& reader_;
  const LoadOptions& options_;
  LoadReport report_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

}  // namespace

LoadReport match(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options) {
  return Matcher(reader, options).check(destinations);
}

void check_cover(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options, int rank, int num_ranks) {
  if (options.only_these) {
    std::set<const IndexTensor*> wanted;
    for (const Piece& piece : destinations)
      if (const IndexTensor* tensor = reader.find(piece.logical.name)) wanted.insert(tensor);
    for (const IndexTensor* tensor : wanted) check_cover(reader, *tensor);
    return;
  }
  const std::vector<IndexTensor>& tensors = reader.index().tensors;
  for (size_t t = size_t(rank); t < tensors.size(); t += size_t(num_ranks))
    if (considered(reader.index(), tensors[t], options)) check_cover(reader, tensors[t]);
}

}  // namespace ashlar::checkpoint
