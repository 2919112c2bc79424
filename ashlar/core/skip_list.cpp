#include "ashlar/core/skip_list.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar {

std::string skip_list_path(const std::string& run_directory) {
  return join(run_directory, "skips.jsonl");
}

std::string read_skip_list(FileSystem& files, const std::string& run_directory) {
  const std::string path = skip_list_path(run_directory);
  return files.stat(path, LinkPolicy::kFollow) ? read_text(files, path) : "";
}

std::vector<HarmfulStep> parse_skip_list(const std::string& text, const std::string& place) {
  std::vector<HarmfulStep> steps;
  int64_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", place, number);
    const Json row = parse_json(line, where, ErrorKind::kConfig);
    const Fields fields(row, where, ErrorKind::kConfig);
    fields.only({"step", "samples", "reason"});
    steps.push_back({fields.count("step"), fields.counts("samples"), fields.text("reason")});
  }
  return steps;
}

void add_to_skip_list(FileSystem& files, const std::string& run_directory,
                      std::span<const HarmfulStep> steps) {
  const std::string path = skip_list_path(run_directory);
  std::string text = read_skip_list(files, run_directory);
  std::set<int64_t> listed;
  for (const HarmfulStep& step : parse_skip_list(text, path))
    listed.insert(step.samples.begin(), step.samples.end());
  if (!text.empty() && text.back() != '\n') text += '\n';
  for (const HarmfulStep& step : steps) {
    const bool known =
        std::ranges::all_of(step.samples, [&](int64_t sample) { return listed.contains(sample); });
    if (known) continue;
    text +=
        one_line(Ordered{{"step", step.step}, {"samples", step.samples}, {"reason", step.reason}}) +
        "\n";
  }
  write_text(files, path, text);
}

}  // namespace ashlar
