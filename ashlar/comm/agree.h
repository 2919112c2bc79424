// Decisions, numbers and short texts that the ranks of a group exchange besides tensors of the
// model.  Every rank calls these functions in the same order.  Each is a collective, and waits.
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
// The texts of all ranks, in their order.  `wait` waits for an operation in place of Work::wait.
std::vector<std::string> all_said(
    Group& ranks, std::string_view text, std::string_view label,
    void (*wait)(Work) = [](Work work) { work.wait(); });
// The text of the lowest rank whose text is not empty; "" if all are.
std::string first_said(Group& ranks, std::string_view text, std::string_view label);

// Returns when done() has returned true on every rank, however long that takes.  So a wait of some
// ranks only, such as for a disk, exceeds no time-out of collectives.  done() must return within
// the time that it is given; it is not called again after it returned true.
void wait_together(Group& ranks, function_ref<bool(double seconds)> done, std::string_view label);

}  // namespace ashlar::comm
