#include "ashlar/train/data_check.h"

#include <utility>

#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/text.h"
#include "ashlar/train/alike.h"

namespace ashlar::train {

void DataCheck::prepare(const data::Sources& sources) {
  reads_ = is_first_of_copy(ranks_, sources);
}

void DataCheck::begin(const data::Sources& sources, int64_t first_step) {
  first_step_ = first_step;
  if (reads_) verify_ = std::make_unique<data::BackgroundVerify>(files_, sources);
}

void DataCheck::require_good(double patience_s) {
  if (!verify_) return;
  if (const std::optional<Error> error = verify_->failure(patience_s))
    throw Error(error->kind(),
                fmt::format("{}; this start trained on it: do not keep what it saved after step {}",
                            error->what(), first_step_));
}

void DataCheck::before_save() {
  constexpr double kPatienceS = 5.0;
  require_good();
  if (std::exchange(has_waited_, true)) return;
  const auto start = Clock::now();
  comm::wait_together(
      ranks_,
      [&](double seconds) {
        const bool ended = !verify_ || verify_->done() || seconds_since(start) >= kPatienceS;
        require_good(ended ? 0.0 : seconds);
        return ended;
      },
      "check of datasets");
}

void DataCheck::report_rest() {
  if (!verify_ || verify_->done()) return;
  log_.info(
      "of {} of datasets, {} were compared with their checksums when the run ended; "
      "`ashlar data verify` reads all",
      format_bytes(verify_->bytes_total()), format_bytes(verify_->bytes_done()));
}

}  // namespace ashlar::train
