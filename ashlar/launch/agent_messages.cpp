#include "ashlar/launch/agent_messages.h"

#include <algorithm>

#include "ashlar/control/wire.h"
#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

using control::WireReader;
using control::WireWriter;

// A count of things that take at least one byte each.
size_t get_count(WireReader& in) {
  const auto count = in.get<uint32_t>();
  ASHLAR_REQUIRE(count <= in.rest().size(), kComm, "a message announces {} parts in {} bytes",
                 count, in.rest().size());
  return count;
}

void put_operation(WireWriter& out, const PulseOperation& operation) {
  out.put(operation.order);
  out.put(int32_t(operation.group));
  out.put(int32_t(operation.lane));
  out.put(operation.number);
  out.put(operation.bytes);
  out.put_text(operation.op);
  out.put_text(operation.label);
  out.put(operation.queued_ns);
  out.put(operation.started_ns);
}

PulseOperation get_operation(WireReader& in, size_t num_groups) {
  PulseOperation operation;
  operation.order = in.get<int64_t>();
  operation.group = in.get<int32_t>();
  operation.lane = in.get<int32_t>();
  operation.number = in.get<int64_t>();
  operation.bytes = in.get<int64_t>();
  operation.op = in.get_text();
  operation.label = in.get_text();
  operation.queued_ns = in.get<int64_t>();
  operation.started_ns = in.get<int64_t>();
  ASHLAR_REQUIRE(operation.group >= 0 && size_t(operation.group) < num_groups, kComm,
                 "an operation is in group {} of {}", operation.group, num_groups);
  return operation;
}

void put_page(WireWriter& out, const PulsePage& page) {
  out.put(int32_t(page.rank));
  out.put(int32_t(page.num_ranks));
  for (const int64_t number :
       {page.process, page.attempt, page.step, page.steps_here, page.num_steps, page.changed_ns,
        page.operated_ns, page.done, page.total, page.waits_for, page.waiting_ns})
    out.put(number);
  out.put(uint8_t(page.place));
  out.put(int32_t(page.block));
  out.put(int32_t(page.micro_batch));
  out.put(uint32_t(page.groups.size()));
  for (const PulseGroup& group : page.groups) {
    out.put(group.id);
    out.put_text(group.name);
    out.put(group.size);
    out.put(group.posted);
  }
  const auto pending = std::ranges::count_if(page.operations, &PulseOperation::pending);
  auto left = uint32_t(std::min<int64_t>(pending, kMaxOperations));
  out.put(left);
  for (const PulseOperation& operation : page.operations)
    if (operation.pending() && left > 0) {
      put_operation(out, operation);
      --left;
    }
}

PulsePage get_page(WireReader& in) {
  PulsePage page;
  page.rank = in.get<int32_t>();
  page.num_ranks = in.get<int32_t>();
  for (int64_t* number : {&page.process, &page.attempt, &page.step, &page.steps_here,
                          &page.num_steps, &page.changed_ns, &page.operated_ns, &page.done,
                          &page.total, &page.waits_for, &page.waiting_ns})
    *number = in.get<int64_t>();
  const auto place = in.get<uint8_t>();
  ASHLAR_REQUIRE(place < kNumPulsePlaces, kComm, "a page has place {}", place);
  page.place = PulsePlace(place);
  page.block = in.get<int32_t>();
  page.micro_batch = in.get<int32_t>();
  for (size_t left = get_count(in); left > 0; --left) {
    PulseGroup group;
    group.id = in.get<uint64_t>();
    group.name = in.get_text();
    group.size = in.get<int64_t>();
    group.posted = in.get<int64_t>();
    page.groups.push_back(std::move(group));
  }
  for (size_t left = get_count(in); left > 0; --left)
    page.operations.push_back(get_operation(in, page.groups.size()));
  return page;
}

}  // namespace

std::vector<std::byte> to_bytes(const AgentReport& report) {
  WireWriter out;
  out.put_text(report.node);
  out.put(uint8_t(report.asked_to_stop));
  out.put(report.fenced);
  out.put(uint32_t(report.ranks.size()));
  for (const AgentReport::Rank& rank : report.ranks) {
    out.put(int32_t(rank.rank));
    out.put(rank.attempt);
    out.put(uint8_t(rank.state));
    out.put_text(rank.trouble);
    out.put(uint8_t(rank.killed));
  }
  out.put(report.bytes);
  out.put(report.memory_kills);
  out.put(report.now_ns);
  out.put(report.check.number);
  out.put(uint8_t(report.check.passed));
  out.put_text(report.check.evidence);
  out.put(report.check.product_rate);
  out.put(report.check.memory_rate);
  out.put(uint8_t(report.check.sure));
  out.put(uint32_t(report.pages.size()));
  for (const auto& [rank, page] : report.pages) put_page(out, page);
  return out.take();
}

AgentReport parse_report(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  AgentReport report;
  report.node = in.get_text();
  report.asked_to_stop = in.get<uint8_t>() != 0;
  report.fenced = in.get<int64_t>();
  for (size_t left = get_count(in); left > 0; --left) {
    AgentReport::Rank rank;
    rank.rank = in.get<int32_t>();
    rank.attempt = in.get<int64_t>();
    rank.state = char(in.get<uint8_t>());
    rank.trouble = in.get_text();
    rank.killed = in.get<uint8_t>() != 0;
    report.ranks.push_back(std::move(rank));
  }
  report.bytes = in.get<int64_t>();
  report.memory_kills = in.get<int64_t>();
  report.now_ns = in.get<int64_t>();
  report.check.number = in.get<int64_t>();
  report.check.passed = in.get<uint8_t>() != 0;
  report.check.evidence = in.get_text();
  report.check.product_rate = in.get<double>();
  report.check.memory_rate = in.get<double>();
  report.check.sure = in.get<uint8_t>() != 0;
  for (size_t left = get_count(in); left > 0; --left) {
    PulsePage page = get_page(in);
    report.pages.emplace(page.rank, std::move(page));
  }
  in.end();
  return report;
}

std::vector<std::byte> to_bytes(const AgentOrder& order) {
  WireWriter out;
  out.put(order.fence);
  out.put(order.stop);
  out.put(int32_t(order.place));
  out.put(int32_t(order.num_recent));
  out.put(order.check.number);
  out.put(uint8_t(order.check.thorough));
  out.put(uint8_t(order.over));
  out.put(int32_t(order.exit_code));
  return out.take();
}

AgentOrder parse_order(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  AgentOrder order;
  order.fence = in.get<int64_t>();
  order.stop = in.get<int64_t>();
  order.place = in.get<int32_t>();
  order.num_recent = in.get<int32_t>();
  order.check.number = in.get<int64_t>();
  order.check.thorough = in.get<uint8_t>() != 0;
  order.over = in.get<uint8_t>() != 0;
  order.exit_code = in.get<int32_t>();
  in.end();
  return order;
}

}  // namespace ashlar::launch
