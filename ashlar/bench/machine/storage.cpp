// The disk under a directory: sequential and random reads and writes over the size of a call and
// the number of ranks, and fsync after small writes.
//
//   storage.write, storage.read   the largest blocks, all ranks
//   storage.iops                  random reads of 4 KiB, all ranks
//   storage.fsync                 median, and the 99th percentile
//
// A rate of reads that the page cache may have served is a row that says so; the profile does not
// get it (disk.h).
#include "ashlar/bench/machine/storage.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ashlar/bench/machine/disk.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/data/index.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/checkpoint.h"

namespace ashlar::bench {
namespace {

constexpr double kMostCached = 0.01;
constexpr int64_t kLargestBlock = 16 << 20;

// The value below which so large a share of the values lies, by the nearest rank.
double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = int64_t(std::ceil(share * double(sorted.size())));
  return sorted[size_t(std::clamp<int64_t>(rank - 1, 0, int64_t(sorted.size()) - 1))];
}

struct Percentiles {
  double p50 = 0, p99 = 0, p999 = 0;
};
// The slowest rank's.
Percentiles percentiles_of(const Rig& rig, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto slowest = slowest_of_ranks(
      rig.ranks, {percentile(us, 0.5), percentile(us, 0.99), percentile(us, 0.999)});
  return {slowest[0], slowest[1], slowest[2]};
}

// Measures the rows of one disk and puts them where they belong.
class StorageRows {
 public:
  StorageRows(const Rig& rig, const StorageOptions& options, FileSystem& files, Findings& findings)
      : rig_(rig),
        findings_(findings),
        row_s_(options.row_s > 0 ? options.row_s : (rig.quick ? 0.1 : 1.0)),
        disk_(rig, files, bytes_of_file(rig, options)) {
    const auto [point, type] = mount_of(std::filesystem::absolute(rig.directory).string());
    mount_ = {point, type, {}};
    direct_ = has_direct_access(disk_.own_path());
    findings.text = fmt::format(
        "{} ({}), calls {} the page cache\n{:<17} {:>8} {:>5} {:>10} {:<5} {:>9} {:>9} {:>9}\n",
        rig.directory, type, direct_ ? "past" : "through", "calls", "block", "ranks", "value",
        "unit", "p50 us", "p99 us", "p99.9 us");
  }

  void measure() {
    traffic({DiskCall::kWrite, DiskAccess::kSequential, kLargestBlock, rig_.ranks.size(), 1, 0},
            "storage.write");
    fsync();
    for (const int ranks : counts_of_ranks())
      for (const int64_t block : blocks())
        for (const DiskAccess access : {DiskAccess::kSequential, DiskAccess::kRandom})
          for (const DiskCall call : {DiskCall::kRead, DiskCall::kWrite}) {
            const bool all = ranks == rig_.ranks.size(), reads = call == DiskCall::kRead;
            const bool random = access == DiskAccess::kRandom;
            const char* key = "";
            if (all && reads && !random && block == blocks().back()) key = "storage.read";
            if (all && reads && random && block == kDiskPage) key = "storage.iops";
            traffic({call, access, block, ranks, random ? queue_of(block) : 1, row_s_}, key);
          }
    rig_.ranks.barrier("storage").wait();  // no rank removes a file that another reads
    for (machine::RateCurve& curve : curves_) findings_.profile.set(std::move(curve));
  }
  machine::Mount& mount() { return mount_; }

 private:
  static int64_t bytes_of_file(const Rig& rig, const StorageOptions& options) {
    const int64_t bytes = options.file_bytes > 0 ? options.file_bytes
                                                 : (rig.quick ? int64_t{64} : int64_t{1024}) << 20;
    return std::max(bytes / rig.ranks.size() / kLargestBlock, int64_t{1}) * kLargestBlock;
  }
  std::vector<int64_t> blocks() const {
    if (rig_.quick) return {kDiskPage, 1 << 20};
    return {kDiskPage, 128 << 10, 1 << 20, kLargestBlock};
  }
  static int queue_of(int64_t block) { return block <= 128 << 10 ? 16 : 4; }
  // 1, 2, 4, ... and all.
  std::vector<int> counts_of_ranks() const {
    std::vector<int> counts;
    for (int count = 1; count < rig_.ranks.size() && !rig_.quick; count *= 2)
      counts.push_back(count);
    counts.push_back(rig_.ranks.size());
    return counts;
  }

  struct Row {
    std::string name;
    double value = 0;
    std::string unit;
    Percentiles us;
    int64_t block = 0;
    int ranks = 1, queue = 1;
    double cached = 0, spread = 0;
    Repeats rate = {};  // GB/s
    int64_t num_wrong = 0;
    bool reads = false;
  };

  void traffic(const DiskTraffic& traffic, const std::string& key) {
    if (findings_.num_left_out > 0 || !rig_.goes_on()) {
      ++findings_.num_left_out;
      return;
    }
    Row row = row_of(traffic, key);
    if (rig_.again()) row = row_of(traffic, key);
    add(row);
    if (row.cached > kMostCached) return;
    if (!key.empty()) mount_.quantities[key] = rig_.quantity(row.value, row.unit, row.spread);
    add_to_curve(row);
  }

  // The median of some rounds.
  Row row_of(DiskTraffic traffic, const std::string& key) {
    const bool reads = traffic.call == DiskCall::kRead, counts = key == "storage.iops";
    Row row{fmt::format("{} {}", traffic.access == DiskAccess::kRandom ? "random" : "sequential",
                        reads ? "read" : "write"),
            0,
            counts ? "1/s" : "GB/s",
            {}};
    row.block = traffic.block;
    row.ranks = traffic.ranks;
    row.queue = traffic.queue;
    row.reads = reads;
    const int rounds = traffic.limit_s > 0 ? 3 : 1;
    traffic.limit_s /= rounds;
    std::vector<double> values, rates, call_us;
    for (int round = 0; round < rounds; ++round) {
      const DiskResult result = disk_.run(traffic);
      const double seconds = std::max(result.seconds, 1e-9);
      rates.push_back(1e-9 * double(result.bytes) / seconds);
      values.push_back(counts ? double(result.calls) / seconds : rates.back());
      call_us.insert(call_us.end(), result.call_us.begin(), result.call_us.end());
      row.cached = std::max(row.cached, result.cached);
      row.num_wrong += result.num_wrong;
    }
    const Repeats value = repeats_of(std::move(values));
    row.value = value.median;
    row.spread = value.spread();
    row.rate = repeats_of(std::move(rates));
    row.us = percentiles_of(rig_, std::move(call_us));
    return row;
  }

  void fsync() {
    if (findings_.num_left_out > 0 || !rig_.goes_on()) {
      ++findings_.num_left_out;
      return;
    }
    const auto measure = [&] {
      return disk_.fsync_us(rig_.quick ? 20 : 1000, rig_.quick ? 0.3 : 5);
    };
    std::vector<double> us = measure();
    if (rig_.again()) us = measure();
    const Repeats repeats = repeats_of(us);
    const Percentiles p = percentiles_of(rig_, std::move(us));
    Row row{"fsync", p.p50, "us", p};
    row.block = kDiskPage;
    row.ranks = rig_.ranks.size();
    add(row);
    mount_.quantities["storage.fsync"] = rig_.quantity(p.p50, "us", repeats.spread());
    mount_.quantities["storage.fsync_p99"] = rig_.quantity(p.p99, "us", 0);
  }

  void add(const Row& row) {
    std::string line = fmt::format("{:<17} {:>8} {:>5} {:>10.4g} {:<5} {:>9.1f} {:>9.1f} {:>9.1f}",
                                   row.name, format_bytes(row.block), row.ranks, row.value,
                                   row.unit, row.us.p50, row.us.p99, row.us.p999);
    if (row.cached > kMostCached)
      line += fmt::format(" {:.0f} % of the file stays in the cache: says nothing about the disk",
                          100 * row.cached);
    findings_.add_line(line, rig_.row());
    Ordered json{{"experiment_name", row.name}, {"value", row.value},   {"unit", row.unit},
                 {"block", row.block},          {"ranks", row.ranks},   {"queue", row.queue},
                 {"p50_us", row.us.p50},        {"p99_us", row.us.p99}, {"p999_us", row.us.p999}};
    if (row.reads) {
      json["cached_share"] = row.cached;
      json["ranks_shifted_by"] = 1;
    }
    json["direct"] = direct_;
    json["path"] = mount_.path;
    json["filesystem"] = mount_.filesystem;
    json["row"] = rig_.row();
    json["wrong"] = row.num_wrong;
    findings_.rows.push_back(one_line(json));
    if (row.num_wrong == 0) return;
    machine::Measured& wrong = findings_.faults.emplace_back();
    wrong.name = fmt::format("{} of {} in {}", row.name, format_bytes(row.block), mount_.path);
    wrong.subject = machine::Subject::kStorage;
    wrong.num_wrong = row.num_wrong;
  }
  void add_to_curve(const Row& row) {
    const std::string subject =
        fmt::format("disk {}, {} rank{}", row.name, row.ranks, row.ranks == 1 ? "" : "s");
    auto curve = std::find_if(curves_.begin(), curves_.end(),
                              [&](const auto& c) { return c.subject == subject; });
    if (curve == curves_.end()) {
      curves_.push_back({subject, "B", "GB/s", row.queue, rig_.provenance(), {}});
      curve = curves_.end() - 1;
    }
    // The whole file with the largest block is a point of its curve unless that is measured again.
    const auto at = double(row.block);
    std::erase_if(curve->points, [&](const auto& point) { return point.at == at; });
    curve->points.push_back({at, row.rate.p10, row.rate.median, row.rate.p90});
    std::sort(curve->points.begin(), curve->points.end(),
              [](const auto& a, const auto& b) { return a.at < b.at; });
  }

  const Rig& rig_;
  Findings& findings_;
  const double row_s_;
  Disk disk_;
  machine::Mount mount_;
  bool direct_ = false;
  std::vector<machine::RateCurve> curves_;
};

// On rank 0: the scatter factor, and the needs of the run.
void add_needs(const Rig& rig, const StorageOptions& options, FileSystem& files,
               machine::Mount& mount, Findings& findings) {
  const Recipe& recipe = *options.recipe;
  StorageNeeds needs;
  needs.sequences = double(recipe.train.global_batch);
  needs.tokens = double(recipe.data.sequence_length);
  needs.token_bytes = double(data::size_of(data::token_type_for(recipe.model.vocab_size)));
  needs.checkpoint_every = recipe.checkpoint.every;
  needs.step_s = options.step_s;
  if (recipe.data.train.empty()) {
    findings.text += "scatter: not measured: the recipe names no data.train\n";
  } else {
    const Scatter scatter = measure_scatter(files, recipe, rig.quick ? 4 : 20);
    needs.token_bytes = double(scatter.token_bytes);
    needs.sigma = scatter.sigma();
    needs.sigma_is_measured = scatter.cached <= kMostCached;
    findings.text += fmt::format(
        "scatter: {} steps of {} sequences read {:.0f} distinct pages a step, {:.3f} of contiguous "
        "ones; {:.0f} page faults, {} from the device{}\n",
        scatter.steps, scatter.sequences, scatter.pages, scatter.sigma(), scatter.faults,
        format_bytes(int64_t(scatter.device_bytes)),
        needs.sigma_is_measured
            ? ""
            : fmt::format("; {:.0f} % stayed in the cache", 100 * scatter.cached));
    findings.rows.push_back(one_line(Ordered{{"experiment_name", "scatter"},
                                             {"value", scatter.sigma()},
                                             {"unit", "1"},
                                             {"steps", scatter.steps},
                                             {"sequences", scatter.sequences},
                                             {"bytes", scatter.bytes},
                                             {"pages", scatter.pages},
                                             {"page_faults", scatter.faults},
                                             {"device_bytes", scatter.device_bytes},
                                             {"cached_share", scatter.cached},
                                             {"row", rig.row()},
                                             {"wrong", 0}}));
    mount.quantities["storage.scatter"] = rig.quantity(scatter.sigma(), "1", 0);
  }
  const int run_ranks = options.run_ranks > 0 ? options.run_ranks : rig.ranks.size();
  Recipe saved = recipe;
  saved.parallel.bucket_bytes = ParallelSpec().bucket_bytes;  // no number of bytes depends on it
  needs.checkpoint_bytes =
      double(plan::plan_checkpoint(saved, nn::resolve_precision(saved.train.precision), run_ranks)
                 .data_bytes);
  const auto given = [&](const char* key) {
    const auto found = mount.quantities.find(key);
    return found == mount.quantities.end() ? std::nullopt : std::optional(found->second.value);
  };
  NeedsReport report =
      compare_needs(needs, {given("storage.iops"), given("storage.read"), given("storage.write")});
  findings.text += report.text;
  for (std::string& row : report.rows) findings.rows.push_back(std::move(row));
  findings.judged = std::move(report.judgements);
}

}  // namespace

Findings measure_storage(const Rig& rig, const StorageOptions& options, FileSystem& files) {
  Findings findings;
  StorageRows rows(rig, options, files, findings);
  rows.measure();
  machine::Mount mount = std::move(rows.mount());
  if (options.recipe && findings.num_left_out == 0 && rig.goes_on() && rig.leads())
    add_needs(rig, options, files, mount, findings);
  rig.ranks.barrier("storage").wait();
  if (!mount.quantities.empty()) findings.profile.mounts.push_back(std::move(mount));
  return findings;
}

Findings measure_storage(const Rig& rig) {
  const auto files = posix_files();
  return measure_storage(rig, {}, *files);
}

}  // namespace ashlar::bench
