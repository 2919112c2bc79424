#include "ashlar/comm/recording/recording.h"

namespace ashlar::comm {

void RecordingTransport::exchange(const Round& round) {
  for (const auto messages : {round.sends, round.receives})
    for (const Message& message : messages)
      ASHLAR_ASSERT(message.peer != rank_ && 0 <= message.peer && message.peer < size_ &&
                    message.data == nullptr);
}

}  // namespace ashlar::comm
