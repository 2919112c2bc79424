// The report of forecasts: what `ashlar plan search --json` and `ashlar plan simulate --json` say.
#pragma once

#include <span>

#include "ashlar/report/plan_page.h"

namespace ashlar::report {

// Whether the text is such a forecast, by its member "format".
bool is_forecast(const PlanFile& file);

// Errors   kData: a file that holds none, named.
Page forecast_page(std::span<const PlanFile> files);

}  // namespace ashlar::report
