#include "ashlar/parallel/mesh.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::parallel {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kNumAxes> names = {"pp", "dp", "cp", "tp"};
  return names[size_t(axis)];
}

Mesh Mesh::of(const ParallelSpec& resolved) {
  ASHLAR_ASSERT(resolved.dp > 0);
  return {{int(resolved.pp), int(resolved.dp), int(resolved.cp), int(resolved.tp)}};
}

int Mesh::num_ranks() const {
  int product = 1;
  for (const int size : sizes) product *= size;
  return product;
}

std::array<int, kNumAxes> Mesh::coordinates(int rank) const {
  std::array<int, kNumAxes> at{};
  for (int axis = kNumAxes - 1; axis >= 0; --axis) {
    at[size_t(axis)] = rank % sizes[size_t(axis)];
    rank /= sizes[size_t(axis)];
  }
  return at;
}

int Mesh::coordinate(int rank, Axis axis) const {
  return coordinates(rank)[size_t(axis)];
}

int Mesh::number_within(int rank, std::span<const Axis> axes) const {
  const auto at = coordinates(rank);
  int number = 0;
  for (int axis = 0; axis < kNumAxes; ++axis)
    if (std::find(axes.begin(), axes.end(), Axis(axis)) != axes.end())
      number = number * sizes[size_t(axis)] + at[size_t(axis)];
  return number;
}

Groups::Groups(comm::Group& world, const Mesh& mesh) : world_(world), mesh_(mesh) {
  ASHLAR_ASSERT(world.size() == mesh.num_ranks());
  data_ = along("data", std::array{Axis::kDp, Axis::kCp});
  const bool bulk = data_->size() > 1;  // of ZeRO, for sums to stand behind
  cp_ = along("cp", std::array{Axis::kCp}, bulk ? "keys" : "");
  tp_ = along("tp", std::array{Axis::kTp}, bulk ? "sums" : "");
  model_ = along("model", std::array{Axis::kDp, Axis::kCp, Axis::kTp});
}

std::unique_ptr<comm::Group> Groups::along(std::string_view name, std::span<const Axis> axes,
                                           std::string_view lane) const {
  std::vector<Axis> others;
  for (int axis = 0; axis < kNumAxes; ++axis)
    if (std::find(axes.begin(), axes.end(), Axis(axis)) == axes.end()) others.push_back(Axis(axis));
  return world_.split(
      std::string(name),
      [&](int rank) {
        return comm::SplitKey{mesh_.number_within(rank, others), rank};
      },
      lane);
}

}  // namespace ashlar::parallel
