#include "ashlar/parallel/schedule_picture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/parallel/schedule_simulation.h"

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;

constexpr int kMostChunks = 26;  // letters

struct Cell {
  Kind kind;
  int chunk;
  int64_t begin, units;
  std::string label;
};

struct Picture {
  Simulation run;
  std::vector<std::vector<Cell>> rows;  // by stage
  size_t label_columns = 0;             // of the longest label
};

Picture picture_of(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches) {
  const Programs programs = compute_order(schedule, num_stages, num_chunks, micro_batches);
  ASHLAR_REQUIRE(num_chunks <= kMostChunks, kConfig,
                 "{} virtual stages on each stage, but a picture has letters for {}; choose fewer",
                 num_chunks, kMostChunks);
  Picture picture{simulate(programs), {}};
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    auto& row = picture.rows.emplace_back();
    for (size_t i = 0; i < programs[stage].size(); ++i) {
      const Action& action = programs[stage][i];
      const Interval time = picture.run.times[stage][i];
      const char letter = action.kind == Kind::kForward   ? 'F'
                          : action.kind == Kind::kWeights ? 'W'
                                                          : 'B';
      std::string label = fmt::format("{}{}", letter, action.micro_batch);
      if (num_chunks > 1) label += char('a' + action.chunk);
      picture.label_columns = std::max(picture.label_columns, label.size());
      row.push_back({action.kind, action.chunk, int64_t(time.begin_s),
                     int64_t(time.end_s - time.begin_s), std::move(label)});
    }
  }
  return picture;
}

// An action of several units fills its cells with '-'.
std::string text_of(const std::vector<Cell>& row, size_t columns) {
  std::string text;
  int64_t at = 0;
  const auto add = [&](std::string_view label, char fill, int64_t units) {
    const size_t room = size_t(units) * columns - 1 - label.size();
    text += fmt::format("{}{} ", label, std::string(room, fill));
    at += units;
  };
  for (const Cell& cell : row) {
    while (at < cell.begin) add(".", ' ', 1);
    add(cell.label, cell.units > 1 ? '-' : ' ', cell.units);
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string sizes_of(int num_stages, int num_chunks, int64_t micro_batches) {
  const std::string chunks =
      num_chunks == 1 ? "" : fmt::format(" of {} virtual stages", num_chunks);
  return fmt::format("{} stages{}, {} micro-batches", num_stages, chunks, micro_batches);
}

}  // namespace

std::string describe_schedule(Schedule schedule, int num_stages, int num_chunks,
                              int64_t micro_batches) {
  const Picture picture = picture_of(schedule, num_stages, num_chunks, micro_batches);
  std::string text = fmt::format("{}: {}\n", kScheduleNames[size_t(schedule)],
                                 sizes_of(num_stages, num_chunks, micro_batches));
  for (int stage = 0; stage < num_stages; ++stage)
    text += fmt::format("stage {}  {}\n", stage,
                        text_of(picture.rows[size_t(stage)], picture.label_columns + 1));
  const Programs programs = compute_order(schedule, num_stages, num_chunks, micro_batches);
  std::vector<int> computing, transferring;
  for (const auto& program : programs) computing.push_back(num_slots(program));
  for (const auto& program : with_transfers(programs)) transferring.push_back(num_slots(program));
  text += fmt::format("bubble   {} of {} units, {:.1f} %\n",
                      bubble_s(schedule, num_stages, micro_batches, {}), picture.run.end_s,
                      100 * picture.run.bubble_share);
  text += fmt::format("slots    {} by stage; {} with one received ahead\n",
                      fmt::join(computing, " "), fmt::join(transferring, " "));
  return text;
}

std::string schedule_svg(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches) {
  const Picture picture = picture_of(schedule, num_stages, num_chunks, micro_batches);
  const int64_t unit = 12 + 7 * int64_t(picture.label_columns), height = 24, left = 60;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"monospace\" font-size=\"12\">\n<title>{}: {}</title>\n",
      left + unit * int64_t(picture.run.end_s) + 4, height * num_stages + 4,
      kScheduleNames[size_t(schedule)], sizes_of(num_stages, num_chunks, micro_batches));
  for (int stage = 0; stage < num_stages; ++stage) {
    const int64_t top = 2 + height * stage;
    text += fmt::format("<text x=\"2\" y=\"{}\">stage {}</text>\n", top + 16, stage);
    for (const Cell& cell : picture.rows[size_t(stage)]) {
      const char* color = cell.kind == Kind::kForward   ? "#9ecae1"
                          : cell.kind == Kind::kWeights ? "#c7e9c0"
                                                        : "#fdae6b";
      const int64_t x = left + unit * cell.begin;
      text += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" fill-opacity=\"{:.2f}\" "
          "stroke=\"#555\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
          x, top, unit * cell.units, height - 2, color, 1 - 0.7 * cell.chunk / num_chunks, x + 5,
          top + 15, cell.label);
    }
  }
  return text + "</svg>\n";
}

}  // namespace ashlar::parallel
