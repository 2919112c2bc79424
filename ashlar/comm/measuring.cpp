#include "ashlar/comm/measuring.h"

#include "ashlar/comm/world.h"

namespace ashlar::comm {

void mute(Group& group, bool muted) {
  group.world().measuring.muted = muted;
}

void delay(Group& group, double seconds) {
  Measuring& measuring = group.world().measuring;
  measuring.delay_s = seconds;
  measuring.delayed = &group;
}

void keep_one_lane(Group& group, bool keep) {
  group.world().measuring.one_lane = keep;
}

}  // namespace ashlar::comm
