#include "ashlar/control/wire.h"

namespace ashlar::control {

void WireWriter::put_bytes(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

}  // namespace ashlar::control
