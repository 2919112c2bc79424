#include "ashlar/parallel/copy_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "ashlar/comm/agree.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/text.h"

namespace ashlar::parallel {
namespace {

constexpr const char* kCopiesLabel = "copies of weights";

}  // namespace

CopyCheck::CopyCheck(int64_t every, const nn::Units& units, std::vector<comm::Group*> ranks_of_unit)
    : every_(every), units_(units), sums_(ranks_of_unit.size()) {
  for (size_t unit = 0; unit < ranks_of_unit.size(); ++unit) {
    comm::Group* ranks = ranks_of_unit[unit];
    if (ranks->size() == 1) continue;
    auto found = std::ranges::find(shared_, ranks, &Shared::ranks);
    if (found == shared_.end()) {
      shared_.push_back({ranks, {}, std::vector<int32_t>(size_t(ranks->size()))});
      found = shared_.end() - 1;
    }
    found->units.push_back(int64_t(unit));
  }
}

void CopyCheck::add(int64_t unit, const Tensor& whole) {
  meta_ |= whole.device == Device::kMeta;  // a unit of frozen products has no memory and no device
  if (num_steps_ % every_ != 0 || meta_) return;
  const int64_t part = num_steps_ / every_ % kNumParts;
  const int64_t begin = whole.bytes() * part / kNumParts;
  const int64_t end = whole.bytes() * (part + 1) / kNumParts;
  uint32_t& sum = sums_[size_t(unit)];
  sum = crc32c(std::span<const std::byte>(whole.data + begin, whole.data + end), sum);
}

void CopyCheck::end_step() {
  if (num_steps_++ % every_ != 0) return;
  for (Shared& shared : shared_) compare(shared);
  sums_.assign(sums_.size(), 0);
}

void CopyCheck::compare(Shared& shared) {
  uint32_t sum = 0;
  for (const int64_t unit : shared.units)
    sum = crc32c(std::as_bytes(std::span(&sums_[size_t(unit)], 1)), sum);
  auto own = int32_t(sum);
  Tensor from = tensor_over(std::span(&own, 1)), to = tensor_over(std::span(shared.sums));
  if (meta_) from.device = to.device = Device::kMeta;
  shared.ranks->all_gather(from, to, kCopiesLabel).wait();
  if (meta_) return;
  const bool differ =
      std::ranges::any_of(shared.sums, [&](int32_t other) { return other != shared.sums[0]; });
  if (differ) fail(shared);
}

// Names the unit and the rank, from the sums of all units of all ranks.
void CopyCheck::fail(const Shared& shared) {
  std::string own;
  for (const int64_t unit : shared.units) own += fmt::format("{:08x}", sums_[size_t(unit)]);
  const std::vector<std::string> said = comm::all_said(*shared.ranks, own, kCopiesLabel);
  const std::span<const int> world = shared.ranks->world_ranks();
  size_t first = own.size();  // of the digits, where ranks differ
  for (const std::string& text : said)
    first = std::min(first, size_t(std::mismatch(text.begin(), text.end(), said[0].begin()).first -
                                   text.begin()));
  const std::string unit = name_of(shared.units[first / 8]);
  std::map<std::string, std::vector<int>> ranks_by_sum;
  for (size_t rank = 0; rank < said.size(); ++rank)
    ranks_by_sum[said[rank].substr(first / 8 * 8, 8)].push_back(world[rank]);
  const auto most = std::ranges::max_element(ranks_by_sum, {},
                                             [](const auto& entry) { return entry.second.size(); });
  std::vector<int> odd;
  for (const auto& [sum, ranks] : ranks_by_sum)
    if (sum != most->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
  const std::string who = odd.size() == 1 ? fmt::format("rank {} has", odd[0])
                                          : fmt::format("ranks {} have", fmt::join(odd, ", "));
  if (2 * most->second.size() > said.size())
    ASHLAR_FAIL(kDevice,
                "{} other weights of {} than {} other ranks, although they are copies: its memory, "
                "its processor or the way to it changes bits; continue from a step before this one "
                "without that machine",
                who, unit, most->second.size());
  ASHLAR_FAIL(kDevice,
              "ranks {} and {} differ in the weights of {}, although they are copies: memory, a "
              "processor or the way between them changes bits",
              fmt::join(most->second, ", "), fmt::join(odd, ", "), unit);
}

std::string CopyCheck::name_of(int64_t unit) const {
  if (!units_.of_block(unit)) return "the root (embedding, head and vectors)";
  return fmt::format("block {}", units_.block_of(unit));
}

}  // namespace ashlar::parallel
