// The rates of one rank on the machine of a profile, and the closed times of collectives: what the
// analytic time of a step needs.
//
//   devices   a rank has its device; a collective moves over the links of its group by the laws of
//             machine/collective_laws.h, as sim/links.h does where nothing else moves
//   CPUs      ranks share the cores of their node; a collective takes the measured curve of the
//             nearest operation, T(S) = alpha + k S / B
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/machine/kernel_table.h"
#include "ashlar/machine/profile.h"

namespace ashlar::sizing {

// Ranks that communicate: how many, and on how many nodes.
struct RankSpan {
  int64_t ranks = 1, nodes = 1;
};

class MachineRates {
 public:
  // kernels: the table beside the profile, if there is one; products, attention and all other
  // kernels then have the rates of its rows.  ranks_per_node: 0: the devices of a node, or all
  // ranks on CPUs.
  // Errors   kConfig: the profile lacks a number, with the command that measures it.
  MachineRates(const machine::Profile& profile, const std::vector<machine::TimedKernel>& kernels,
               int64_t num_ranks, bool bf16, int64_t ranks_per_node = 0);

  double product_s(double flop) const { return flop / product_flop_; }
  double fp32_product_s(double flop) const { return flop / fp32_flop_; }
  double attention_s(double flop) const { return flop / attention_flop_; }
  double memory_s(double bytes) const { return bytes / memory_; }
  double kernel_s() const { return kernel_s_; }  // of a kernel without work

  // A group of `ranks` members, each `stride` ranks after the one before.
  RankSpan group(int64_t ranks, int64_t stride) const;
  // S: bytes of the whole array, as in machine/laws.h.
  double collective_s(machine::CollectiveOp op, const RankSpan& group, double S) const;
  // The same for an operation of that many bytes that moves in pieces of at most `piece` bytes.
  double collective_s(machine::CollectiveOp op, const RankSpan& group, double S,
                      double piece) const;
  double message_s(const RankSpan& pair, double bytes) const;
  // Seconds in which each rank of a node reads so many bytes; 0 if no disk was measured.
  double reading_s(double bytes) const;

  int64_t ranks_per_node() const { return ranks_per_node_; }
  int64_t num_ranks() const { return num_ranks_; }
  double device_memory() const { return device_memory_; }  // bytes for a rank; 0: unknown
  bool on_devices() const { return on_devices_; }
  // Keys of the profile on which the rates rest, assumed ones marked.
  const std::vector<std::string>& used() const { return used_; }

 private:
  struct Curve {
    machine::CollectiveOp op;
    int64_t ranks = 0;
    double alpha_s = 0, bytes_a_second = 0;  // B of T(S); 0: times do not grow
  };
  void read_rates(const machine::Profile& profile, bool bf16);
  void read_kernels(const std::vector<machine::TimedKernel>& kernels, bool bf16);
  void read_links(const machine::Profile& profile);
  void read_curves(const machine::Profile& profile);
  double value(const machine::Profile& profile, std::initializer_list<const char*> keys);
  double by_curve_s(machine::CollectiveOp op, int64_t n, double S) const;
  double by_law_s(machine::CollectiveOp op, const RankSpan& group, double S) const;

  int64_t num_ranks_ = 1, ranks_per_node_ = 1;
  bool on_devices_ = false, mesh_ = false;
  double product_flop_ = 0, fp32_flop_ = 0, attention_flop_ = 0, memory_ = 0, kernel_s_ = 0;
  double link_ = 0, link_alpha_s_ = 0, nic_ = 0, nic_alpha_s_ = 0;
  double disk_ = 0, device_memory_ = 0;
  std::vector<Curve> curves_;
  std::vector<std::string> used_;
};

}  // namespace ashlar::sizing
