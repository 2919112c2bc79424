// The page of a long run stays small.  ASHLAR_REPORT_ROWS=1000000 repeats the figures of
// docs/commands.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>

#include "ashlar/report/run_page.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::report {
namespace {

// Rows as a run of a mixture with 24 blocks of 16 experts writes them, some 500 bytes a step.
std::string many_rows(int num_steps) {
  std::string text =
      "{\"event\":\"start\",\"step\":0,\"isa\":\"amx\",\"cpu\":\"Xeon\",\"cpus\":8,"
      "\"memory_bytes\":68719476736,\"host\":\"n01\",\"ranks\":8,\"threads\":1}\n";
  for (int step = 1; step <= num_steps; ++step) {
    const double wave = std::sin(12.9898 * step);
    text += fmt::format(
        "{{\"step\":{},\"samples\":{},\"tokens\":{},\"loss\":{},\"lr\":{},\"gradient_norm\":{},"
        "\"load_entropy\":{},\"max_load\":{},\"applied\":true,\"skipped\":0,\"non_finite\":0,"
        "\"step_s\":{},\"data_stall_s\":0.0,\"checkpoint_blocked_s\":1.937e-06,\"tokens_per_s\":{},"
        "\"tflops\":0.08742583050058686,\"mfu\":{},\"mfu_convention\":\"exact-causal\","
        "\"memory_peak_bytes\":571904064,\"allocations\":19}}\n",
        step, 4 * step, 2048 * int64_t(step),
        2 + 9 * std::exp(-20.0 * step / num_steps) + 0.1 * wave,
        3e-4 * (1 - double(step) / num_steps), 1 + 0.3 * wave, 0.97 + 0.01 * wave, 1.5 + 0.2 * wave,
        0.25 + 0.02 * wave, 8000 + 500 * wave, 0.3 + 0.02 * wave);
    if (step % 50 == 0) {
      text += fmt::format("{{\"event\":\"expert_loads\",\"step\":{},\"blocks\":{{", step);
      for (int block = 0; block < 24; ++block) {
        text += fmt::format("{}\"{}\":[", block ? "," : "", block);
        for (int expert = 0; expert < 16; ++expert)
          text += fmt::format("{}{}", expert ? "," : "", 100 + (step * (expert + 3) + block) % 300);
        text += "]";
      }
      text += "}}\n";
    }
    if (step % 2000 != 0) continue;
    text += fmt::format(
        "{{\"event\":\"evaluation\",\"step\":{0},\"validation_loss\":2.1}}\n{{\"event\":"
        "\"checkpoint\","
        "\"step\":{0},\"phases\":{{\"copy\":{{\"median_s\":0.1,\"max_s\":0.2,\"rank\":1}},"
        "\"write\":{{"
        "\"median_s\":0.3,\"max_s\":0.4,\"rank\":0}}}}}}\n",
        step);
  }
  return text;
}

TEST(LongRun, ItsPageIsSmall) {
  const char* rows = std::getenv("ASHLAR_REPORT_ROWS");
  const int num_steps = rows ? std::atoi(rows) : 100000;
  const testing_support::TemporaryDirectory directory;
  const auto files = posix_files();
  const std::string text = many_rows(num_steps);
  write_text(*files, (directory / "metrics.jsonl").string(), text);
  const std::clock_t begin = std::clock();
  const std::string html = to_html(run_page(*files, {directory.path().string()}));
  const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  fmt::print("{} steps, {:.0f} MB of rows: {:.2f} s of processor time, {:.2f} MB\n", num_steps,
             1e-6 * double(text.size()), seconds, 1e-6 * double(html.size()));
  EXPECT_LT(html.size(), num_steps > 100000 ? 5e6 : 3e6);
}

}  // namespace
}  // namespace ashlar::report
