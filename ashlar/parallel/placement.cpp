#include "ashlar/parallel/placement.h"

namespace ashlar::parallel {
namespace {

using nn::Portion;

// The portions of each dim that the share holds: the whole dim, or the portions of its sections,
// joined where one continues the other.
std::vector<std::vector<Portion>> portions_by_dim(const nn::ParameterInfo& info,
                                                  const nn::Share& share) {
  std::vector<std::vector<Portion>> dims;
  for (const int64_t extent : info.shape.dims()) dims.push_back({{0, extent}});
  for (const nn::Cut& cut : info.cuts) {
    std::vector<Portion>& here = dims[size_t(cut.dim)];
    here.clear();
    for (const nn::Section& section : cut.sections) {
      const Portion portion = portion_of(section, share);
      const bool goes_on = !here.empty() && here.back().end == portion.begin &&
                           here.back().num_copies == portion.num_copies;
      if (goes_on)
        here.back().end = portion.end;
      else if (portion.size() > 0)
        here.push_back(portion);
    }
  }
  return dims;
}

// Visits boxes in the order of the local tensor's memory, each one range of every dim: a dim before
// one with several portions is walked index by index.
void for_each_box(const std::vector<std::vector<Portion>>& dims, size_t dim, Box& box,
                  const Portion& copies,
                  function_ref<void(const Box&, const Portion& copies)> visit) {
  if (dim == dims.size()) return visit(box, copies);
  bool several_after = false;
  for (size_t later = dim + 1; later < dims.size(); ++later)
    several_after |= dims[later].size() > 1;
  for (const Portion& portion : dims[dim]) {
    const int64_t length = several_after ? 1 : portion.size();
    for (int64_t begin = portion.begin; begin < portion.end; begin += length) {
      box.offset[int(dim)] = begin;
      box.length[int(dim)] = length;
      for_each_box(dims, dim + 1, box, portion.num_copies > 1 ? portion : copies, visit);
    }
  }
}

std::vector<Placement> without_shapes(const nn::ParameterInfo& info, const nn::Share& share) {
  if (info.cuts.empty()) {
    const nn::Fraction copies = copies_of(info, share);
    return {{info.shape, {Box::whole(info.shape)}, copies.index, copies.count}};
  }
  std::vector<Placement> list;
  if (info.share_after_share) {
    nn::ParameterInfo of_one = info;
    of_one.share_after_share = false;
    nn::Share part = share;
    list.push_back({info.shape, {}});
    const bool by_width = info.is_cut_by(nn::Grain::kWidth);
    const int num_parts = by_width ? share.width.count : share.heads.count * share.head_buckets;
    for (int i = 0; i < num_parts; ++i) {
      (by_width ? part.width : part.heads) = {i, num_parts};
      for (const Placement& placement : without_shapes(of_one, part))
        list[0].boxes.insert(list[0].boxes.end(), placement.boxes.begin(), placement.boxes.end());
    }
    return list;
  }
  Box box = Box::whole(info.shape);
  const auto add = [&](const Box& part, const Portion& copies) {
    if (list.empty() || list.back().num_copies != copies.num_copies)
      list.push_back({info.shape, {}, copies.copy, copies.num_copies});
    list.back().boxes.push_back(part);
  };
  for_each_box(portions_by_dim(info, share), 0, box, {}, add);
  return list;
}

}  // namespace

std::vector<Placement> placements(const nn::ParameterInfo& info, const nn::Share& share) {
  std::vector<Placement> list = without_shapes(info, share);
  const bool all_in_one = list.size() == 1 && !info.share_after_share;
  for (Placement& place : list)
    place.local_shape = place.boxes.size() == 1 ? place.boxes[0].length
                        : all_in_one            ? local_shape(info, share)
                                                : Shape{place.numel()};
  return list;
}

}  // namespace ashlar::parallel
