#include "ashlar/train/records/metrics.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/train/records/chart.h"

namespace ashlar::train {
namespace {

// Room for rows that wait for the file.  step() flushes when half of it is used, so that the row of
// a step fits and allocates nothing.
constexpr size_t kRoom = RowFile::kRoom;

// JSON has no NaN: a non-finite value is null.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

// Appends a member to a row, in place because rows of steps must not allocate.
void put(std::string& row, const char* key, int64_t value) {
  fmt::format_to(std::back_inserter(row), "\"{}\":{},", key, value);
}
void put(std::string& row, const char* key, double value) {
  fmt::format_to(std::back_inserter(row), "\"{}\":", key);
  const size_t begin = row.size();
  if (std::isfinite(value))
    fmt::format_to(std::back_inserter(row), "{}", value);  // the shortest that reads back the same
  else
    row += "null";
  // A whole number gets ".0": readers that tell integers from floating point see one type a column.
  if (row.find_first_not_of("-0123456789", begin) == std::string::npos) row += ".0";
  row += ',';
}

// The parts of a line of metrics.jsonl that matter here.
struct Line {
  bool is_event = false;
  int64_t step = 0;  // 0: the line names none
};
// nullopt: a kill cut the line short, or another program wrote it.
std::optional<Line> parse_line(std::string_view text) {
  const auto row = nlohmann::json::parse(text, nullptr, false);
  if (!row.is_object()) return std::nullopt;
  const auto step = row.find("step");
  const bool names_step = step != row.end() && step->is_number_integer();
  const bool is_event = row.contains("event");
  if (!names_step && !is_event) return std::nullopt;
  return Line{is_event, names_step ? step->get<int64_t>() : 0};
}

// The part of metrics.jsonl that stays when a start continues after `step`.
struct Kept {
  bool has_rows = false;  // rows of steps or events, kept or not
  size_t bytes = 0;       // the end of the last row of a step up to it
  std::string events;     // the lines of events up to it that follow that row
};
// Reads from the end, as far back as necessary.
Kept kept_of(std::string_view text, int64_t step) {
  Kept kept;
  for (size_t end = text.rfind('\n') + 1; end > 0;) {  // npos + 1 is 0
    const size_t begin = end < 2 ? 0 : text.rfind('\n', end - 2) + 1;
    const std::string_view text_of_line = text.substr(begin, end - begin);
    const std::optional<Line> line = parse_line(text_of_line);
    kept.has_rows |= line.has_value();
    if (line && line->step <= step) {
      if (!line->is_event) {
        kept.bytes = end;
        break;
      }
      kept.events.insert(0, text_of_line);
    }
    end = begin;
  }
  return kept;
}

// Whether the text may be the part of a file's first line that a kill left.
bool begins_a_row(std::string_view text) {
  for (const std::string_view begin : {R"({"step":)", R"({"event":)"}) {
    const size_t length = std::min(begin.size(), text.size());
    if (text.find('\n') == text.npos && text.substr(0, length) == begin.substr(0, length))
      return true;
  }
  return false;
}

// metrics.jsonl without the rows after `step`, which are done again.
std::unique_ptr<File> open_after(FileSystem& files, const std::string& path, int64_t step) {
  Kept kept;
  if (const auto info = files.stat(path); info && info->size_bytes > 0) {
    const auto mapping = files.map(path, LinkPolicy::kRefuse);
    const auto bytes = mapping->bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    kept = kept_of(text, step);
    ASHLAR_REQUIRE(
        kept.has_rows || begins_a_row(text), kStorage,
        "{} holds {} and no row of a run, so that it is not cut or appended to; expected "
        "the metrics of this run or no such file: move it away, or choose another "
        "train.run_dir",
        path, format_bytes(int64_t(bytes.size())));
  }
  auto file = files.append(path);
  file->truncate(int64_t(kept.bytes));
  file->write_at(std::as_bytes(std::span(kept.events)), int64_t(kept.bytes));
  files.sync_directory(parent_of(path));
  return file;
}

}  // namespace

Metrics::Metrics(FileSystem& files, const std::string& directory, Log& log, const RunScale& scale,
                 int64_t log_every, int64_t after_step)
    : files_(files),
      path_(join(directory, "metrics.jsonl")),
      log_(log),
      scale_(scale),
      log_every_(log_every),
      jsonl_(files, path_, open_after(files, path_, after_step), log),
      board_(files, join(directory, "tensorboard"), after_step + 1, log),
      last_flush_(Clock::now()) {
  pending_.reserve(kRoom);
}

Metrics::~Metrics() {
  hand_over();
}

void Metrics::step(const StepRow& row) {
  std::string& out = pending_;
  out += '{';
  put(out, "step", row.step);
  put(out, "samples", row.samples);
  put(out, "tokens", row.tokens);
  put(out, "loss", row.has_targets ? row.loss : NAN);
  put(out, "lr", row.lr);
  put(out, "gradient_norm", row.gradient_norm);
  if (scale_.has_router_losses) {
    put(out, "aux_loss", row.aux_loss);
    put(out, "z_loss", row.z_loss);
  }
  if (scale_.has_experts) {
    put(out, "load_entropy", row.entropy);
    put(out, "max_load", row.max_load);
  }
  if (scale_.shares_experts) put(out, "expert_rounds", row.expert_rounds);
  out += row.applied ? "\"applied\":true," : "\"applied\":false,";
  put(out, "skipped", row.skipped);
  put(out, "non_finite", row.non_finite);
  put(out, "step_s", row.step_s);
  put(out, "data_stall_s", row.stall_s);
  put(out, "checkpoint_blocked_s", row.checkpoint_blocked_s);
  put(out, "tokens_per_s", row.tokens_per_s);
  put(out, "tflops", row.tflops);
  put(out, "mfu", row.mfu);
  out += "\"mfu_convention\":\"exact-causal\",";
  put(out, "memory_peak_bytes", row.memory_peak_bytes);
  put(out, "allocations", row.num_allocations);
  out.back() = '}';  // replaces the last comma
  out += '\n';
  for (const auto& [tag, value] : {std::pair{"loss", row.loss},
                                   {"lr", row.lr},
                                   {"gradient_norm", row.gradient_norm},
                                   {"tokens_per_s", row.tokens_per_s},
                                   {"mfu", row.mfu},
                                   {"data_stall_s", row.stall_s}})
    if (row.has_targets || tag != std::string_view("loss")) board_.scalar(row.step, tag, value);
  if (scale_.has_router_losses) {
    board_.scalar(row.step, "aux_loss", row.aux_loss);
    board_.scalar(row.step, "z_loss", row.z_loss);
  }
  if (scale_.has_experts) {
    board_.scalar(row.step, "load_entropy", row.entropy);
    board_.scalar(row.step, "max_load", row.max_load);
  }
  if (scale_.shares_experts) board_.scalar(row.step, "expert_rounds", row.expert_rounds);
  console(row);
  if (out.size() > kRoom / 2 || seconds_since(last_flush_) > 2.0) flush();
}

void Metrics::console(const StepRow& row) {
  window_s_ += row.step_s;
  window_stall_s_ += row.stall_s;
  window_tokens_ += int64_t(std::llround(row.tokens_per_s * row.step_s));
  ++window_steps_;
  // Half of the weight is on the last 14 steps.
  recent_step_s_ = recent_step_s_ == 0.0 ? row.step_s : 0.95 * recent_step_s_ + 0.05 * row.step_s;
  const bool due = row.step % log_every_ == 0 || row.step == scale_.steps || row.step == 1;
  if (!due) return;
  const double tokens_per_s = double(window_tokens_) / window_s_;
  log_.info(
      "step {:>6}/{}  loss {}  lr {:.2e}  gnorm {:.3f}  {:>7} tok/s  MFU {:4.1f}%{}  "
      "stall {:.1f}%  left {}",
      row.step, scale_.steps, row.has_targets ? fmt::format("{:.4f}", row.loss) : "none", row.lr,
      row.gradient_norm, format_thousands(int64_t(tokens_per_s)),
      100.0 * tokens_per_s * scale_.flop_per_token / scale_.peak_flops,
      scale_.has_experts ? fmt::format("  balance {:.3f}", row.entropy) : "",
      100.0 * window_stall_s_ / window_s_, format_duration(left_s(row.step)));
  window_s_ = window_stall_s_ = 0.0;
  window_tokens_ = window_steps_ = 0;
}

// Assumes that steps take as long as the last ones; train.max_minutes may end the run earlier.
double Metrics::left_s(int64_t step) const {
  const double of_steps = double(scale_.steps - step) * recent_step_s_;
  if (!scale_.seconds_left) return of_steps;
  return std::max(0.0, std::min(of_steps, scale_.seconds_left()));
}

void Metrics::evaluation(int64_t step, double loss, int64_t tokens, double seconds) {
  event("evaluation", {{"step", step},
                       {"validation_loss", number(loss)},
                       {"perplexity", number(std::exp(loss))},
                       {"tokens", tokens},
                       {"seconds", seconds}});
  board_.scalar(step, "validation_loss", loss);
  log_.info("step {:>6}/{}  validation loss {:.4f}  perplexity {:.2f}  ({} tokens, {})", step,
            scale_.steps, loss, std::exp(loss), format_thousands(tokens), format_duration(seconds));
}

void Metrics::expert_loads(int64_t step, std::span<const int64_t> blocks,
                           std::span<const std::span<const int64_t>> loads) {
  std::string& out = pending_;
  out += R"({"event":"expert_loads",)";
  put(out, "step", step);
  out += R"("blocks":{)";
  for (size_t i = 0; i < blocks.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":[", i == 0 ? "" : ",", blocks[i]);
    for (const int64_t count : loads[i].first(loads[i].size() - 1))
      fmt::format_to(std::back_inserter(out), "{},", count);
    out.back() = ']';
  }
  out += "}}\n";
}

void Metrics::event(const char* name, const nlohmann::ordered_json& members) {
  nlohmann::ordered_json row{{"event", name}};
  row.update(members);
  pending_ += one_line(row) + "\n";
}

void Metrics::hand_over() {
  last_flush_ = Clock::now();
  jsonl_.add(pending_);
  board_.hand_over();
}

void Metrics::flush() {
  hand_over();
  jsonl_.check();
  board_.file().check();
}

void Metrics::drain() {
  flush();
  jsonl_.drain();
  board_.file().drain();
}

void Metrics::sync() {
  jsonl_.sync();
  board_.file().sync();
}

// A chart that fails must not fail the run, which is trained and saved.
void Metrics::show_curves() {
  try {
    drain();
    const RunCurves curves = read_curves(read_text(files_, path_, INT64_MAX));
    const std::string chart = render_chart(curves.loss, curves.validation);
    if (!chart.empty()) log_.lines(fmt::format("\n{}\n", chart));
  } catch (const Error& error) {
    log_.warn("no chart of the losses: {}", error.what());
  }
}

}  // namespace ashlar::train
