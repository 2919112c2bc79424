#include "ashlar/train/signals.h"

#include <signal.h>
#include <string.h>

#include "ashlar/core/error.h"

namespace ashlar::train {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};

// A handler can reach nothing but such a variable.
volatile sig_atomic_t caught = 0;

void on_signal(int number) {
  if (caught != 0 && number != SIGUSR1) {
    signal(number, SIG_DFL);
    raise(number);
  }
  caught = number;
}

}  // namespace

StopSignals::StopSignals() {
  caught = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) ASHLAR_ASSERT(sigaction(number, &action, nullptr) == 0);
}

StopSignals::~StopSignals() {
  for (const int number : kSignals) signal(number, SIG_DFL);
}

bool StopSignals::requested() const {
  return caught != 0;
}

const char* StopSignals::name() const {
  return caught == 0 ? "" : sigabbrev_np(caught);
}

}  // namespace ashlar::train
