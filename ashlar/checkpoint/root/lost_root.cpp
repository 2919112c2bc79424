#include "ashlar/checkpoint/root/lost_root.h"

namespace ashlar::checkpoint {

Error cause_of(const Error& error, Lease& lease, int64_t step) {
  if (error.kind() != ErrorKind::kStorage) return error;
  try {
    lease.check();
  } catch (const Error& cause) {
    if (cause.kind() == ErrorKind::kConfig)
      return Error(cause.kind(), fmt::format("step {} is not saved: {}", step, cause.what()));
  }
  return error;
}

}  // namespace ashlar::checkpoint
