// How it works.  A trace file has an event in each line, so it is read line by line; lines of the
// thread `step` other than steps and gaps, and other lines without a category, are skipped
// unparsed.  A post's ticket and lane stand in the arrow behind it.  Operations, which follow all
// events of the rank's thread, add the bytes that moved and the rounds to their posts; the program
// is built when both are known.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"
#include "ashlar/sim/traces.h"

namespace ashlar::sim {
namespace {

constexpr int kTicketBits = 32;  // of an arrow's id, behind the rank
constexpr int kFirstLaneThread = 3;
constexpr int64_t kMaxTraceBytes = int64_t{4} << 30;

DType dtype_named(const Fields& args) {
  const std::string& name = args.text("dtype");
  for (int i = 0; i <= int(DType::kU64); ++i)
    if (name_of(DType(i)) == name) return DType(i);
  args.fail("dtype is '{}'", printable(name));
}

struct ReadPost {
  size_t event;
  RankOperation operation;
  std::vector<TraceMessage> messages;
  int lane = -1;
  int64_t ticket = 0;
};

class TraceReader {
 public:
  TraceReader(ProgramBuilder& builder, int rank, const std::string& name)
      : builder_(builder), rank_(rank), name_(name) {}

  void read(std::string_view text) {
    size_t begin = 0;
    for (int64_t number = 1; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      if (number == 1) {
        read_about(line);
        continue;
      }
      if (line.ends_with(',')) line.remove_suffix(1);
      line_ = fmt::format("{}, line {}", name_, number);
      read_event(line);
    }
    build();
  }

 private:
  struct Step {
    double begin_us, end_us;
  };
  struct Item {  // of the rank's thread, in order
    enum class Kind : uint8_t { kKernel, kPost, kWait } kind;
    double begin_us;
    ProgramPlace place;
    size_t index;  // of works_, posts_ or waits_
  };

  void read_about(std::string_view line) {
    const Json about = parse_json(std::string(line) + "]}", name_, ErrorKind::kData);
    const Fields file(about, name_, ErrorKind::kData);
    const Fields data(file.at("otherData"), name_ + ": otherData", ErrorKind::kData);
    const std::string& format = data.text("format");
    ASHLAR_REQUIRE(format == "ashlar-trace-2", kData,
                   "{} has the format {}; expected ashlar-trace-2: record it with this version",
                   name_, printable(format));
    const int64_t rank = data.count("rank");
    ASHLAR_REQUIRE(rank == rank_, kData, "{} is of rank {}; expected {}", name_, rank, rank_);
    const int64_t dropped = data.count("dropped_events");
    ASHLAR_REQUIRE(dropped == 0, kData, "{} lacks {} events that had no room: record it again",
                   name_, dropped);
    if (data.has("dry")) builder_.programs().dry = data.boolean("dry");
    if (data.has("tokens")) builder_.programs().tokens = data.count("tokens");
    for (const Json& item : data.array("groups")) {
      const Fields group(item, name_ + ": groups", ErrorKind::kData);
      std::vector<int> ranks;
      for (const int64_t r : group.counts("ranks")) ranks.push_back(int(r));
      groups_.push_back({group.text("name"), ranks});
    }
  }

  void read_event(std::string_view line) {
    const bool arrow = line.starts_with("{\"ph\":\"s\"");
    const bool name = line.starts_with("{\"ph\":\"M\",\"name\":\"thread_name\"");
    const bool slice = line.find("\"cat\":") != line.npos && line.starts_with("{\"ph\":\"X\"");
    if (!arrow && !name && !slice) return;
    const Json event = parse_json(line, line_, ErrorKind::kData);
    const Fields fields(event, line_, ErrorKind::kData);
    if (arrow) return read_arrow(fields);
    const Fields args(fields.at("args"), line_ + ": args", ErrorKind::kData);
    if (name) return read_name(fields, args);
    const std::string& category = fields.text("cat");
    const double begin_us = fields.number("ts");
    if (category == "step")
      steps_.push_back({begin_us, begin_us + fields.number("dur")});
    else if (category == "between")
      between_us_.push_back(fields.number("dur"));
    else if (category == "kernel")
      read_kernel(fields, args, begin_us);
    else if (category == "post")
      read_post(args, begin_us);
    else if (category == "wait")
      read_wait(args, begin_us);
    else if (category == "operation")
      read_operation(fields, args);
  }

  void read_name(const Fields& fields, const Fields& args) {
    const std::string& name = args.text("name");
    if (name.starts_with("lane "))
      lanes_[int(fields.count("tid")) - kFirstLaneThread] =
          builder_.lane(rank_, std::string_view(name).substr(5));
  }

  ProgramPlace place_of(const Fields& args) {
    ProgramPlace place;
    place.phase = builder_.text(args.text("phase"));
    if (args.has("block")) place.block = int32_t(args.count("block"));
    if (args.has("micro_batch")) place.micro_batch = int32_t(args.count("micro_batch"));
    if (args.has("branch"))
      place.branch = args.text("branch") == "mixer" ? TracePlace::Branch::kMixer
                                                    : TracePlace::Branch::kFeedForward;
    return place;
  }

  void read_kernel(const Fields& fields, const Fields& args, double begin_us) {
    KernelWork work{.op = fields.text("name"),
                    .dtype = dtype_named(args),
                    .flop = args.count("flop"),
                    .bytes = args.count("bytes")};
    if (args.has("shape")) {
      const auto shape = args.counts("shape");
      if (shape.size() != 4) args.fail("shape has {} numbers; expected 4", shape.size());
      work.dims = {int32_t(shape[0]), int32_t(shape[1]), int32_t(shape[2]), int32_t(shape[3])};
    }
    for (const auto& [key, varies] : {std::pair{"expert_rows", TraceEvent::Varies::kExpertRows},
                                      {"visible_pairs", TraceEvent::Varies::kVisiblePairs}})
      if (args.has(key)) {
        work.varies = varies;
        work.count = args.count(key);
      }
    items_.push_back({Item::Kind::kKernel, begin_us, place_of(args), works_.size()});
    works_.push_back(std::move(work));
  }

  void read_post(const Fields& args, double begin_us) {
    ReadPost post{};
    RankOperation& o = post.operation;
    o.op = machine::collective_of(args.text("collective"));
    o.dtype = dtype_named(args);
    o.label = builder_.text(args.text("label"));
    o.group = group_of(args);
    o.number = args.has("number") ? args.count("number") : -1;
    o.root = args.has("root") ? int32_t(args.count("root")) : -1;
    o.bytes = args.count("bytes");
    for (const char* key : {"sends", "receives"})
      if (args.has(key))
        for (const Json& pair : args.array(key)) {
          if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
              !pair[1].is_number_integer())
            args.fail("{} holds {}; expected [rank, bytes]", key, shown(pair));
          post.messages.push_back({pair[0].get<int32_t>(), *key == 's', pair[1].get<int64_t>()});
        }
    items_.push_back({Item::Kind::kPost, begin_us, place_of(args), posts_.size()});
    posts_.push_back(std::move(post));
  }

  // The rank may be in several groups of one name only if they are channels, whose names differ.
  int group_of(const Fields& args) {
    const std::string& name = args.text("group");
    const size_t size = size_t(args.count("ranks"));
    for (const auto& [known, ranks] : groups_)
      if (known == name && ranks.size() == size) return builder_.group(name, ranks);
    args.fail("no group '{}' of {} ranks is listed in otherData", printable(name), size);
  }

  void read_arrow(const Fields& fields) {
    if (posts_.empty()) fields.fail("an arrow without a post");
    const int64_t id = fields.count("id") & ((int64_t{1} << kTicketBits) - 1);
    posts_.back().ticket = id / 16;
    posts_.back().lane = lane_at(fields, int(id % 16));
    by_ticket_[{posts_.back().lane, posts_.back().ticket}] = posts_.size() - 1;
  }

  int lane_at(const Fields& fields, int thread) const {
    const auto found = lanes_.find(thread);
    if (found == lanes_.end()) fields.fail("lane {} has no name", thread);
    return found->second;
  }

  void read_wait(const Fields& args, double begin_us) {
    items_.push_back({Item::Kind::kWait, begin_us, place_of(args), waits_.size()});
    waits_.push_back({builder_.lane(rank_, args.text("lane")), args.count("ticket")});
  }

  void read_operation(const Fields& fields, const Fields& args) {
    const int lane = lane_at(fields, int(fields.count("tid")) - kFirstLaneThread);
    const auto post = by_ticket_.find({lane, args.count("ticket")});
    if (post == by_ticket_.end()) return;  // posted before the recording
    RankOperation& operation = posts_[post->second].operation;
    operation.sent_bytes = args.count("sent_bytes");
    operation.received_bytes = args.count("received_bytes");
    if (args.has("rounds")) operation.rounds = int32_t(args.integer("rounds", 1, INT32_MAX));
  }

  void build() {
    ASHLAR_REQUIRE(!steps_.empty(), kData, "{} has no step", name_);
    size_t step = 0;
    for (const Item& item : items_) {
      for (; step + 1 < steps_.size() && item.begin_us >= steps_[step + 1].begin_us; ++step)
        builder_.end_step(rank_);
      if (item.kind == Item::Kind::kKernel) {
        builder_.kernel(rank_, works_[item.index], item.place);
      } else if (item.kind == Item::Kind::kPost) {
        ReadPost& post = posts_[item.index];
        post.operation.lane = int16_t(post.lane);
        builder_.post(rank_, post.operation, post.ticket, post.messages, item.place);
      } else {
        builder_.wait(rank_, waits_[item.index].first, waits_[item.index].second, item.place);
      }
    }
    for (; step < steps_.size(); ++step) builder_.end_step(rank_);
    if (!builder_.programs().dry && !between_us_.empty())
      builder_.programs().between_s =
          std::max(builder_.programs().between_s, 1e-6 * summarize(between_us_).median);
  }

  ProgramBuilder& builder_;
  const int rank_;
  const std::string name_;
  std::string line_;
  std::vector<std::pair<std::string, std::vector<int>>> groups_;
  std::map<int, int> lanes_;  // by thread
  std::vector<Step> steps_;
  std::vector<double> between_us_;
  std::vector<Item> items_;
  std::vector<KernelWork> works_;
  std::vector<ReadPost> posts_;
  std::vector<std::pair<int, int64_t>> waits_;
  std::map<std::pair<int, int64_t>, size_t> by_ticket_;
};

constexpr std::string_view kBeforeRank = "-rank-", kEnding = ".json";

// "steps-2-4" and 7 of "steps-2-4-rank-7.json".
std::optional<std::pair<std::string, int>> parts_of(const std::string& name) {
  const size_t at = name.rfind(kBeforeRank);
  if (at == name.npos || !name.ends_with(kEnding)) return std::nullopt;
  const size_t begin = at + kBeforeRank.size(), end = name.size() - kEnding.size();
  const std::string digits = name.substr(begin, end - begin);
  if (digits.empty() || digits.size() > 6 ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  return std::pair{name.substr(0, at), std::stoi(digits)};
}

}  // namespace

RankPrograms parse_traces(std::span<const std::string> texts, std::span<const std::string> names) {
  ProgramBuilder builder(int(texts.size()));
  for (size_t rank = 0; rank < texts.size(); ++rank)
    TraceReader(builder, int(rank), names[rank]).read(texts[rank]);
  return builder.finish();
}

RankPrograms read_traces(FileSystem& files, const std::string& directory, Log& log) {
  std::string place = directory;
  if (const auto inner = files.stat(join(directory, "trace"), LinkPolicy::kFollow);
      inner && inner->type == FileInfo::Type::kDirectory)
    place = join(directory, "trace");
  std::map<int, std::string> names;
  std::string recording;
  for (const std::string& name : files.list(place)) {
    const auto parts = parts_of(name);
    if (!parts) continue;
    if (names.empty()) recording = parts->first;
    ASHLAR_REQUIRE(parts->first == recording, kData,
                   "{} has the recordings {} and {}; keep one of them", place, recording,
                   printable(parts->first));
    names[parts->second] = join(place, name);
  }
  ASHLAR_REQUIRE(!names.empty(), kData,
                 "{} has no trace file (NAME-rank-0.json, ...); write them with ashlar plan "
                 "dry-run --trace",
                 place);
  ProgramBuilder builder(int(names.size()));
  Progress progress(log, "reading traces", int64_t(names.size()), "ranks");
  for (int rank = 0; rank < int(names.size()); ++rank) {
    const auto name = names.find(rank);
    ASHLAR_REQUIRE(name != names.end(), kData, "{} has {} trace files, but none of rank {}", place,
                   names.size(), rank);
    TraceReader(builder, rank, name->second).read(read_text(files, name->second, kMaxTraceBytes));
    progress.advance(1);
  }
  return builder.finish();
}

}  // namespace ashlar::sim
