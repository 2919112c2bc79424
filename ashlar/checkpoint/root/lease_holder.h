// The process that holds a lease, as the text of the lease describes it.
//
// The text is one line of JSON: format, host, boot, pid_namespace, pid, started, token, refresh_s,
// beat; epoch and attempt, of a launch on several machines.  Programs that write no refresh_s
// refresh every 60 s, and write the same text again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar::checkpoint {

struct LeaseHolder {
  std::string host, boot, pid_namespace;
  int64_t pid = 0, started = 0;  // started: clock ticks after boot
  std::string token;             // of this lease; "" if the text has none
  double refresh_s = 60;         // between two refreshes
  // The leader and the attempt that the process belongs to, of a launch on several machines; 0: of
  // none.
  int64_t epoch = 0, attempt = 0;

  // A holder that was watched for this long without a sign of life counts as dead.
  double expiry_s() const { return 6 * refresh_s; }
};

// Whether `me` belongs to a later start of a launch on several machines: its leader has replaced
// the holder's ranks, so that they count as dead even if they live, cut off on a lost node.
bool replaces(const LeaseHolder& me, const LeaseHolder& holder);

LeaseHolder this_process();  // its token and refresh_s are left to the caller

std::string lease_text(const LeaseHolder& holder, int64_t beat);
// nullopt: the text is torn.  Leases appear whole; only the crash of a machine leaves a torn one.
std::optional<LeaseHolder> parse_lease(std::string_view text, const std::string& path);

// The state of the holder, as process `me` knows it without waiting.  A process of the same boot
// and pid namespace is recognized by its start time, even if its pid was reused.  One from an
// earlier boot of the same host is dead.  Any other is known only by its signs of life.
enum class Life : uint8_t { kDead, kAlive, kUnknown };
Life life_of(const LeaseHolder& holder, const LeaseHolder& me);
bool is_same_process(const LeaseHolder& a, const LeaseHolder& b);

}  // namespace ashlar::checkpoint
