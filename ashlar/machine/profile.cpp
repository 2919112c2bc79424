#include "ashlar/machine/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::machine {
namespace {

constexpr std::array<std::string_view, 4> kOriginNames = {"measured", "published", "vendor",
                                                          "assumed"};

const ProfileKey* key_of(std::string_view name) {
  for (const ProfileKey& key : profile_keys())
    if (key.name == name) return &key;
  return nullptr;
}

std::string name_of(const CollectiveCurve& curve) {
  return fmt::format("{} of {} over {} x {} ranks ({}, {})", to_string(curve.op), curve.dtype,
                     curve.groups, curve.ranks, curve.shape, curve.engine);
}

bool same_subject(const CollectiveCurve& a, const CollectiveCurve& b) {
  return a.engine == b.engine && a.op == b.op && a.dtype == b.dtype && a.shape == b.shape &&
         a.ranks == b.ranks && a.groups == b.groups;
}

}  // namespace

std::string_view to_string(Origin origin) {
  return kOriginNames[size_t(origin)];
}

const Quantity* Profile::find(std::string_view key) const {
  const auto found = quantities.find(key);
  return found == quantities.end() ? nullptr : &found->second;
}

const Quantity& Profile::need(std::string_view name) const {
  if (const Quantity* quantity = find(name)) return *quantity;
  const ProfileKey* key = key_of(name);
  ASHLAR_ASSERT(key);
  ASHLAR_FAIL(kConfig, "the machine profile '{}' has no {} ({}); {}", printable(this->name), name,
              key->meaning,
              key->command.empty()
                  ? "add it to the file"
                  : fmt::format("measure it on the machine: {} --profile FILE", key->command));
}

void Profile::set(std::string_view name, Quantity quantity) {
  const ProfileKey* key = key_of(name);
  ASHLAR_ASSERT(key && key->unit == quantity.unit);
  quantities.insert_or_assign(std::string(name), std::move(quantity));
}

void Profile::set(CollectiveCurve curve) {
  const auto found =
      std::find_if(collectives.begin(), collectives.end(),
                   [&](const CollectiveCurve& other) { return same_subject(curve, other); });
  if (found == collectives.end())
    collectives.push_back(std::move(curve));
  else
    *found = std::move(curve);
}

std::string path_beside(const std::string& profile, const std::string& file) {
  return profile.substr(0, profile.rfind('/') + 1) + file;  // npos + 1 is 0
}

void Profile::set(RateCurve curve) {
  const auto found = std::find_if(rates.begin(), rates.end(), [&](const RateCurve& other) {
    return curve.subject == other.subject && curve.threads == other.threads;
  });
  if (found == rates.end())
    rates.push_back(std::move(curve));
  else
    *found = std::move(curve);
}

void Profile::set(PairTimes times) {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const PairTimes& other) {
    return times.engine == other.engine && times.ranks == other.ranks;
  });
  if (found == pairs.end())
    pairs.push_back(std::move(times));
  else
    *found = std::move(times);
}

Cluster Profile::cluster() const {
  Cluster result{links, int64_t(need("node.devices").value), need("topology.link").value, 0};
  if (const Quantity* nic = find("topology.nic")) result.nic_gbps = nic->value;
  return result;
}

std::vector<std::string> Profile::assumed() const {
  std::vector<std::string> result;
  for (const auto& [key, quantity] : quantities)
    if (quantity.origin == Origin::kAssumed) result.push_back(key);
  for (const CollectiveCurve& curve : collectives)
    if (curve.provenance.origin == Origin::kAssumed) result.push_back(name_of(curve));
  for (const PairTimes& times : pairs)
    if (times.provenance.origin == Origin::kAssumed)
      result.push_back(fmt::format("pairs of {} ranks ({})", times.ranks, times.engine));
  for (const RateCurve& curve : rates)
    if (curve.provenance.origin == Origin::kAssumed) result.push_back(curve.subject);
  for (const Mount& mount : mounts)
    for (const auto& [key, quantity] : mount.quantities)
      if (quantity.origin == Origin::kAssumed)
        result.push_back(fmt::format("{} of {}", key, mount.path));
  return result;
}

std::string Profile::fingerprint() const {
  std::string facts = fmt::format("{}\n", int(links));
  for (const auto& [key, text] : identity)
    if (key != "commit") facts += fmt::format("{}={}\n", key, text);
  for (const auto& [key, quantity] : quantities)
    if (key_of(key)->command.empty()) facts += fmt::format("{}={}\n", key, quantity.value);
  return fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(facts))));
}

}  // namespace ashlar::machine
