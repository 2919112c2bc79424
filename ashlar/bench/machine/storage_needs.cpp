// The reads and saves of a run beside what a disk gives.
#include <nlohmann/json.hpp>

#include "ashlar/bench/machine/storage.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/machine/laws.h"

namespace ashlar::bench {
namespace {

void add_need(const std::string& name, double needed, const std::optional<double>& given,
              const std::string& unit, const std::string& hint, NeedsReport& report) {
  Ordered row{{"experiment_name", "needs " + name}, {"needed", needed}, {"unit", unit}};
  row["given"] = given ? Ordered(*given) : Ordered(nullptr);
  if (!given) {
    report.text +=
        fmt::format("{}: needs {:.4g} {}; what the disk gives is unknown\n", name, needed, unit);
    row["verdict"] = machine::to_string(machine::Verdict::kUnknown);
  } else {
    const bool enough = *given >= needed;
    machine::Judgement& j = report.judgements.emplace_back();
    j.name = name;
    j.verdict = enough ? machine::Verdict::kGood : machine::Verdict::kBad;
    j.value = *given;
    j.unit = unit;
    j.ratio = needed > 0 ? std::optional(*given / needed) : std::nullopt;
    j.expected = fmt::format("{:.4g} {}, which the run needs", needed, unit);
    j.hint = enough ? "" : hint;
    report.text += fmt::format("{}: needs {:.4g} {}, the disk gives {:.4g}: {}\n", name, needed,
                               unit, *given, enough ? "enough" : "too slow");
    row["verdict"] = machine::to_string(j.verdict);
  }
  row["wrong"] = 0;
  report.rows.push_back(one_line(row));
}

}  // namespace

NeedsReport compare_needs(const StorageNeeds& needs, const StorageGives& gives) {
  NeedsReport report;
  const machine::Reading reading{needs.sequences, needs.tokens, needs.token_bytes, 4096,
                                 needs.sigma};
  const double step_bytes = needs.sequences * needs.tokens * needs.token_bytes;
  report.text = fmt::format("a step reads {} in {:.0f} pages (scatter {:.3f}, {})\n",
                            format_bytes(int64_t(step_bytes)), reading.reads_a_step(), needs.sigma,
                            needs.sigma_is_measured ? "measured" : "assumed");
  if (gives.iops)
    report.text += fmt::format("steps shorter than {:.3g} s wait for reads\n",
                               reading.shortest_step_s(*gives.iops));
  report.text +=
      fmt::format("a saved step has {}\n", format_bytes(int64_t(needs.checkpoint_bytes)));
  if (needs.step_s <= 0) {
    report.text += "the time of a step is unknown: --step-seconds tells whether this is enough\n";
    return report;
  }
  add_need("reads a second", reading.required_iops(needs.step_s), gives.iops, "1/s",
           "read larger blocks, bundle shards, or put the dataset on a faster disk", report);
  add_need("reading", 1e-9 * step_bytes / needs.step_s, gives.read_gbps, "GB/s",
           "put the dataset on a faster disk", report);
  if (needs.checkpoint_every > 0)
    add_need("saving",
             1e-9 * needs.checkpoint_bytes / (double(needs.checkpoint_every) * needs.step_s),
             gives.write_gbps, "GB/s", "save less often (checkpoint.every), or to a faster disk",
             report);
  return report;
}

}  // namespace ashlar::bench
