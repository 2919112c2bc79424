// A row of the checkpoint benchmark as text and as JSON.
#include <nlohmann/json.hpp>

#include "ashlar/bench/checkpoint.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::bench {
namespace {

Ordered json_of(const Summary& s) {
  return {{"median", s.median}, {"min", s.min}, {"max", s.max}, {"count", s.count}};
}

Ordered json_of(const CheckpointLayout& layout) {
  constexpr const char* kNames[] = {"rows", "columns", "flat", "copies", "grid"};
  return {{"cut", kNames[size_t(layout.cut)]}, {"ranks", layout.ranks}, {"tp", layout.tp}};
}

}  // namespace

std::string checkpoint_head(const CheckpointBenchOptions& options) {
  return fmt::format(
      "{} each, {} repeats, {:.2g} s of computing, {:.2g} s of rest, {}; medians; seconds but for "
      "block (ms)\n"
      "{:<8} {:>9} {:>5} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} | {:>8} {:>8} | {:>8} {:>8} {:>8} "
      "| {:>6} {:>7}",
      format_bytes(options.bytes), options.repeats, options.step_s, options.rest_s,
      options.sync ? "on disk" : "not waiting for the disk", "state", "bytes", "files", "block 1",
      "block", "slower", "save", "load", "other", "raw wr", "raw rd", "pl.save", "pl.load",
      "pl.other", "CPU", "memory");
}

std::string to_text(const CheckpointRow& r, const CheckpointBenchOptions&) {
  return fmt::format(
      "{:<8} {:>9} {:>5} {:>8.1f} {:>7.1f} {:>7.3f} {:>8.2f} {:>8.2f} {:>8.2f} | {:>8.2f} "
      "{:>8.2f} | {:>8.2f} {:>8.2f} {:>8.2f} | {:>6.2f} {:>7}{}",
      r.workload.name, format_bytes(r.bytes), r.files, 1e3 * r.first_block_s, 1e3 * r.block.median,
      r.slowdown.median, r.ashlar.save.median, r.ashlar.load.median, r.ashlar.other_load.median,
      r.raw_write.median, r.raw_read.median, r.plain.save.median, r.plain.load.median,
      r.plain.other_load.median, r.cpu_s, format_bytes(r.memory_bytes),
      r.wrong_elements ? fmt::format("  {} WRONG ELEMENTS", r.wrong_elements) : "");
}

std::string to_json_line(const CheckpointRow& r, const CheckpointBenchOptions& options) {
  const auto times = [](const CheckpointTimes& t) {
    return Ordered{{"save_s", json_of(t.save)},
                   {"load_s", json_of(t.load)},
                   {"other_load_s", json_of(t.other_load)}};
  };
  Ordered json = {{"bench", "checkpoint"},
                  {"workload", r.workload.name},
                  {"saved", json_of(r.workload.saved)},
                  {"other", json_of(r.workload.other)},
                  {"sync", options.sync},
                  {"step_s", options.step_s},
                  {"rest_s", options.rest_s},
                  {"unique_bytes", r.workload.bytes()},
                  {"bytes", r.bytes},
                  {"files", r.files},
                  {"index_bytes", r.index_bytes},
                  {"max_writer_bytes", r.rank_bytes},
                  {"first_block_s", r.first_block_s},
                  {"block_s", json_of(r.block)},
                  {"slowdown", json_of(r.slowdown)},
                  {"cpu_s", r.cpu_s},
                  {"memory_bytes", r.memory_bytes},
                  {"wrong_elements", r.wrong_elements},
                  {"ashlar", times(r.ashlar)}};
  if (options.baselines) {
    json["plain"] = times(r.plain);
    json["raw"] = {{"write_s", json_of(r.raw_write)}, {"read_s", json_of(r.raw_read)}};
  }
  return one_line(json);
}

std::string describe(const CheckpointWorkload& workload) {
  Ordered tensors = Ordered::array();
  for (const LogicalTensor& tensor : workload.tensors)
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.global_shape.dims()}});
  return one_line({{"workload", workload.name},
                   {"what", workload.what},
                   {"saved", json_of(workload.saved)},
                   {"other", json_of(workload.other)},
                   {"tensors", tensors}});
}

}  // namespace ashlar::bench
