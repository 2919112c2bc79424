// What the ranks of a group tell each other besides tensors of the model: decisions, numbers, short
// texts.  Every rank calls these in the same order.  Each is a collective that is waited for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/comm/group.h"

namespace ashlar::comm {

// Sums over the ranks, in place.
void add_up(Group& ranks, std::span<int64_t> values, std::string_view label);
// Rank 0's value.
int64_t from_leader(Group& ranks, int64_t value, std::string_view label);
void from_leader(Group& ranks, std::span<uint8_t> bytes, std::string_view label);
std::string text_from_leader(Group& ranks, std::string text, std::string_view label);
// The texts of all ranks, in their order.
std::vector<std::string> all_said(Group& ranks, std::string_view text, std::string_view label);
// The text of the lowest rank whose text is not empty; "" if all are.
std::string first_said(Group& ranks, std::string_view text, std::string_view label);

// Returns when done() has said true on every rank, however long that takes: what only some ranks
// wait for, such as a disk, passes no time-out of collectives.  done() waits no longer than it is
// told before it answers; it is not asked again once it said true.
void wait_together(Group& ranks, function_ref<bool(double seconds)> done, std::string_view label);

}  // namespace ashlar::comm
