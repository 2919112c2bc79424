// The needs of scripts/gpu_window.sh besides the tests.  It prints a JSON object a line.
//
//   device                 {"name":"device","text":...}; exit code 3 if there is none
//   fault NAME             runs a kernel of probes.h with this fault; good-rows, good-stages,
//                          good-blocks and good-tile have none
//   bench SHAPES SECONDS   {"name":...,"value":...,"unit":...} for the ops and sizes of a file
//                          (scripts/gpu/shapes.txt has its format)
//   once SHAPES SECONDS    runs each of these ops once, for a profiler around this program
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/cross_entropy.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/moe.h"
#include "ashlar/kernels/newton_schulz.h"
#include "ashlar/kernels/norm.h"
#include "ashlar/kernels/update.h"
#include "ashlar/tensor/host_bytes.h"
#include "tests/kernels/gpu/device_array.h"
#include "tests/kernels/gpu/probes.h"

namespace ashlar::kernels {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNoDevice = 3;
constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check(const std::string& error) {
  ASHLAR_REQUIRE(error.empty(), kDevice, "the GPU: {}", error);
}

// An op on tensors that are ready; work: what one run of it does, in the unit times seconds.
struct TimedOp {
  std::string name, unit;
  double work;
  std::function<void()> run;
};

// Where a case has its tensors: on meta, to count them, or on the GPU.
class BenchPlace {
 public:
  BenchPlace(Allocator& memory, const Context& context) : memory_(memory), context_(context) {}
  const Context& context() const { return context_; }

  Tensor zeros(DType dtype, const Shape& shape) {
    return tensors_.emplace_back(make_tensor(memory_, dtype, shape, Tag::kInput)).tensor;
  }
  // Uniform in -1 to 1, the same again every 2^20 elements.
  Tensor random(DType dtype, const Shape& shape) {
    const Tensor t = zeros(dtype, shape);
    if (context_.meta()) return t;
    constexpr int64_t kPeriod = int64_t{1} << 20;
    const Rng rng(1, "bench");
    std::vector<std::byte> bytes(size_t(std::min(kPeriod, t.numel()) * size_of(dtype)));
    for (int64_t i = 0; i < std::min(kPeriod, t.numel()); ++i) {
      const auto x = float(2 * rng.uniform(uint64_t(i)) - 1);
      dtype == kF32 ? reinterpret_cast<float*>(bytes.data())[i] = x
                    : float(reinterpret_cast<bf16*>(bytes.data())[i] = bf16(x));
    }
    for (int64_t at = 0; at < t.bytes(); at += int64_t(bytes.size()))
      copy_from_host(
          t, at, std::span(bytes).first(size_t(std::min(int64_t(bytes.size()), t.bytes() - at))));
    return t;
  }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = zeros(DType::kI32, {int64_t(values.size())});
    if (!context_.meta()) copy_from_host(t, 0, std::as_bytes(std::span(values)));
    return t;
  }
  Operand weight(const Shape& shape) {
    Operand w{.w = random(kF32, shape), .forward = {}, .backward = {}};
    const OperandLayout layout = operand_layout(context_, w.groups(), w.n(), w.k(), kBF16, true);
    if (layout.forward_numel > 0) w.forward = zeros(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel > 0) w.backward = zeros(layout.dtype, {layout.backward_numel});
    pack(context_, w);
    return w;
  }

 private:
  Allocator& memory_;
  Context context_;
  std::list<OwnedTensor> tensors_;
};

// The words of a line of the file of shapes, behind kind and name.
using Sizes = std::vector<int64_t>;
using OpsOf = std::vector<TimedOp> (*)(BenchPlace&, const std::string& name, const Sizes&);

std::vector<TimedOp> product_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t T = s.at(0), N = s.at(1), K = s.at(2);
  const Context& ctx = p.context();
  const Matrix x = Matrix::of(p.random(kBF16, {T, K})), y = Matrix::of(p.random(kBF16, {T, N}));
  const Matrix dx = Matrix::of(p.zeros(kBF16, {T, K}));
  const Tensor dw = p.zeros(kF32, {N, K});
  const Operand w = p.weight({N, K});
  const double flop = 2e-12 * double(T) * double(N) * double(K);
  return {{name + " forward", "TFLOP/s", flop, [=, &ctx] { linear_forward(ctx, kBF16, x, w, y); }},
          {name + " backward_input", "TFLOP/s", flop,
           [=, &ctx] { linear_backward_input(ctx, kBF16, y, w, dx); }},
          {name + " backward_weight", "TFLOP/s", flop,
           [=, &ctx] { linear_backward_weight(ctx, kBF16, y, x, dw, false); }}};
}

std::vector<TimedOp> grouped_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t E = s.at(0), rows = s.at(1), N = s.at(2), K = s.at(3), T = E * rows;
  const Context& ctx = p.context();
  const Matrix x = Matrix::of(p.random(kBF16, {T, K})), y = Matrix::of(p.random(kBF16, {T, N}));
  const Matrix dx = Matrix::of(p.zeros(kBF16, {T, K}));
  const Tensor dw = p.zeros(kF32, {E, N, K});
  const Operand w = p.weight({E, N, K});
  std::vector<int32_t> ends = {0};  // ragged: between half and one and a half of `rows`
  for (int64_t e = 1; e < E; ++e)
    ends.push_back(int32_t(e * rows + (e % 2 ? rows / 4 : -rows / 4)));
  ends.push_back(int32_t(T));
  const Tensor row_of_group = p.ints(ends);
  const double flop = 2e-12 * double(T) * double(N) * double(K);
  return {{name + " forward", "TFLOP/s", flop,
           [=, &ctx] { grouped_linear_forward(ctx, kBF16, x, w, row_of_group, y); }},
          {name + " backward_input", "TFLOP/s", flop,
           [=, &ctx] { grouped_linear_backward_input(ctx, kBF16, y, w, row_of_group, dx); }},
          {name + " backward_weight", "TFLOP/s", flop, [=, &ctx] {
             grouped_linear_backward_weight(ctx, kBF16, y, x, row_of_group, dw, false);
           }}};
}

std::vector<TimedOp> attention_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t documents = s.at(0), length = s.at(1), N = s.at(2), K = s.at(3), D = s.at(4),
                T = documents * length, window = s.size() > 5 ? s.at(5) : 0;
  const Context& ctx = p.context();
  const Sequence sequence = Sequence::rows(documents, length);
  const Attention call{
      .shape =
          {.N = N, .K = K, .D = D, .V = D, .window = window, .scale = 1 / std::sqrt(double(D))},
      .q = p.random(kBF16, {T, N * D}),
      .k = p.random(kBF16, {T, K * D}),
      .v = p.random(kBF16, {T, K * D}),
      .out = p.zeros(kBF16, {T, N * D}),
      .lse_TN = p.zeros(kF32, {T, N})};
  const AttentionGradients gradients{.dout = p.random(kBF16, {T, N * D}),
                                     .dq = p.zeros(kF32, {T, N * D}),
                                     .dk = p.zeros(kF32, {T, K * D}),
                                     .dv = p.zeros(kF32, {T, K * D})};
  const double pairs =
      1e-12 * double(visible_pairs(sequence, sequence.segments(), window)) * double(D * N);
  return {{name + " forward", "TFLOP/s", 4 * pairs,
           [=, &ctx] { attention_forward(ctx, sequence, sequence.segments(), call); }},
          {name + " backward", "TFLOP/s", 10 * pairs,
           [=, &ctx] { attention_backward(ctx, sequence, sequence.segments(), call, gradients); }}};
}

std::vector<TimedOp> rms_norm_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t T = s.at(0), H = s.at(1);
  const Context& ctx = p.context();
  const Tensor h = p.random(kBF16, {T, H}), w = p.random(kF32, {H}), y = p.zeros(kBF16, {T, H}),
               rstd = p.zeros(kF32, {T}), dh = p.zeros(kBF16, {T, H}), dw = p.zeros(kF32, {H});
  const double bytes = 2e-9 * double(T) * double(H);
  return {{name + " forward", "GB/s", 2 * bytes,
           [=, &ctx] { rms_norm_forward(ctx, 1e-5, h, w, y, rstd); }},
          {name + " backward", "GB/s", 3 * bytes, [=, &ctx] {
             rms_norm_backward(
                 ctx, {.dy_TH = y, .h_TH = h, .w_H = w, .rstd_T = rstd, .dh_TH = dh, .dw_H = dw});
           }}};
}

std::vector<TimedOp> swiglu_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t T = s.at(0), F = s.at(1);
  const Context& ctx = p.context();
  const Tensor gate_up = p.random(kBF16, {T, 2 * F}), act = p.zeros(kBF16, {T, F}),
               dact = p.random(kBF16, {T, F}), dgate_up = p.zeros(kBF16, {T, 2 * F});
  const double bytes = 2e-9 * double(T) * double(F);
  return {{name + " forward", "GB/s", 3 * bytes,
           [=, &ctx] { swiglu_forward(ctx, Tensor(), gate_up, act); }},
          {name + " backward", "GB/s", 5 * bytes,
           [=, &ctx] { swiglu_backward(ctx, Tensor(), dact, gate_up, dgate_up); }}};
}

std::vector<TimedOp> cross_entropy_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t T = s.at(0), V = s.at(1);
  const Context& ctx = p.context();
  std::vector<int32_t> targets;
  for (int64_t t = 0; t < T; ++t) targets.push_back(int32_t(t * 7919 % V));
  const CrossEntropy call{.logits_tV = p.random(kF32, {T, V}),
                          .targets_t = p.ints(targets),
                          .loss_t = p.zeros(kF32, {T}),
                          .dlogits_tV = p.zeros(kBF16, {T, V})};
  return {{name, "GB/s", 6e-9 * double(T) * double(V), [=, &ctx] { cross_entropy(ctx, call); }}};
}

std::vector<TimedOp> adamw_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t n = s.at(0);
  const Context& ctx = p.context();
  const AdamW call{
      .step = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .step = 10},
      .g = p.random(kF32, {n}),
      .w = p.random(kF32, {n}),
      .m = p.zeros(kF32, {n}),
      .v = p.zeros(kF32, {n})};
  return {{name, "GB/s", 28e-9 * double(n), [=, &ctx] { adamw(ctx, call); }}};
}

std::vector<TimedOp> newton_schulz_ops(BenchPlace& p, const std::string& name, const Sizes& s) {
  const int64_t G = s.at(0), M = s.at(1), N = s.at(2), m = std::min(M, N), n = std::max(M, N);
  const Context& ctx = p.context();
  const Tensor x = p.random(kF32, {G, M, N});
  const double flop = 5e-12 * double(G) * double(m * m) * double(4 * n + 2 * m);
  return {{name, "TFLOP/s", flop, [=, &ctx] { orthogonalize(ctx, kBF16, x); }}};
}

const std::map<std::string, OpsOf> kBenches = {
    {"product", product_ops},     {"grouped", grouped_ops},
    {"attention", attention_ops}, {"rms_norm", rms_norm_ops},
    {"swiglu", swiglu_ops},       {"cross_entropy", cross_entropy_ops},
    {"adamw", adamw_ops},         {"newton_schulz", newton_schulz_ops}};

// Seconds of a run: the median of five groups of runs, each of 10 ms or one run.
double seconds_of(const std::function<void()>& op) {
  const auto group = [&](int runs) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < runs; ++i) op();
    check(device::wait());
    return seconds_since(begin) / runs;
  };
  group(2);
  const int runs = std::clamp(int(10e-3 / group(1)), 1, 100);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) seconds.push_back(group(runs));
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

using UseOfOp = void (*)(const TimedOp&);

void time_op(const TimedOp& op) {
  fmt::print("{{\"name\":\"{}\",\"value\":{:.5g},\"unit\":\"{}\"}}\n", op.name,
             op.work / seconds_of(op.run), op.unit);
  std::fflush(stdout);
}

void run_once(const TimedOp& op) {
  op.run();
  check(device::wait());
}

void bench_case(const DeviceSpec& spec, OpsOf ops_of, const std::string& name, const Sizes& sizes,
                UseOfOp use) {
  Threads threads(1);
  Context context;
  context.ops = &gpu::kOps;
  context.spec = &spec;
  context.threads = &threads;
  Allocator counted(Device::kMeta, INT64_MAX, kGpuAlign);
  Arena counted_workspace(Device::kMeta);
  context.device = Device::kMeta;
  context.workspace = &counted_workspace;
  {
    BenchPlace on_meta(counted, context);
    for (const TimedOp& op : ops_of(on_meta, name, sizes)) op.run();
  }
  const int64_t workspace_bytes = counted_workspace.peak_bytes();
  gpu::Reservation memory(counted.counts().total.peak_bytes + workspace_bytes + kGpuAlign);
  Allocator allocator(memory);
  Arena workspace(allocator, workspace_bytes, Tag::kWorkspace);
  context.device = Device::kGpu;
  context.workspace = &workspace;
  BenchPlace place(allocator, context);
  for (const TimedOp& op : ops_of(place, name, sizes)) use(op);
}

// An op that does not run, because GPUs lack it or the card has no room, is a record.
void bench(const std::string& path, double seconds, UseOfOp use) {
  const Clock::time_point begin = Clock::now();
  const DeviceSpec spec = gpu::find_gpu();
  std::ifstream file(path);
  ASHLAR_REQUIRE(file.good(), kConfig, "{} cannot be read", path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind >> name;
    const auto found = kBenches.find(kind);
    if (found == kBenches.end()) continue;
    Sizes sizes;
    for (int64_t size = 0; words >> size;) sizes.push_back(size);
    try {
      ASHLAR_REQUIRE(seconds_since(begin) <= seconds, kDevice, "no time left");
      bench_case(spec, found->second, name, sizes, use);
    } catch (const Error& error) {
      fmt::print("{{\"name\":\"{}\",\"text\":\"{}\"}}\n", name, error.what());
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels

namespace ashlar::device {
namespace {

std::string run_rows(Fault fault) {
  constexpr int kRows = 3, kWidth = 131;
  const DeviceArray<float> in(steps_of_256(kRows * kWidth, 1)), out(kRows * kWidth);
  return scale_rows({in.data(), out.data(), kRows, kWidth, fault});
}

std::string run_stages(Fault fault) {
  constexpr int kRows = 5, kWidth = 256;
  const DeviceArray<float> in(steps_of_256(kRows * kWidth, 2)), out(kWidth);
  return stage_rows({in.data(), out.data(), kRows, kWidth, fault});
}

std::string run_blocks(Fault fault) {
  constexpr int kSize = 256;
  const DeviceArray<float> in(steps_of_256(kSize, 3)), partials(kSize / 64), out(1);
  return sum_blocks({in.data(), partials.data(), out.data(), kSize, fault});
}

std::string run_tile(Fault fault) {
  const DeviceArray<uint16_t> a(bf16_bits(steps_of_256(512, 4))),
      b(bf16_bits(steps_of_256(512, 5)));
  const DeviceArray<float> out(1024);
  return multiply_tile({a.data(), b.data(), out.data(), fault});
}

struct PlantedFault {
  const char* name;
  Fault fault;
  std::string (*run)(Fault);
};
// Faults of faults_test.cpp that a sanitizer can be expected to find.
constexpr PlantedFault kFaults[] = {
    {"good-rows", Fault::kNone, run_rows},
    {"good-stages", Fault::kNone, run_stages},
    {"good-blocks", Fault::kNone, run_blocks},
    {"good-tile", Fault::kNone, run_tile},
    {"kNoBarrierInSum", Fault::kNoBarrierInSum, run_rows},
    {"kNoBarrierBeforeReuse", Fault::kNoBarrierBeforeReuse, run_rows},
    {"kBarrierInBranch", Fault::kBarrierInBranch, run_rows},
    {"kHalfOfLanes", Fault::kHalfOfLanes, run_rows},
    {"kSharedOverrun", Fault::kSharedOverrun, run_rows},
    {"kWritesPastEnd", Fault::kWritesPastEnd, run_rows},
    {"kReadsPastEnd", Fault::kReadsPastEnd, run_rows},
    {"kMisalignedVector", Fault::kMisalignedVector, run_rows},
    {"kNoBarrierAfterWait", Fault::kNoBarrierAfterWait, run_stages},
    {"kStageOverwritten", Fault::kStageOverwritten, run_stages},
};

// Runs a kernel; whether the fault is found is the sanitizer's to tell.
int run_fault(std::string_view name) {
  for (const PlantedFault& planted : kFaults) {
    if (planted.name != name) continue;
    const std::string error = planted.run(planted.fault);
    fmt::print("{{\"name\":\"{}\",\"text\":\"{}\"}}\n", name, error.empty() ? "ran" : error);
    return 0;
  }
  throw Error(ErrorKind::kConfig, fmt::format("no fault is named {}", name));
}

int run_tool(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 1 ? arguments[1] : "";
  ASHLAR_REQUIRE((command == "device" && arguments.size() == 2) ||
                     (command == "fault" && arguments.size() == 3) ||
                     ((command == "bench" || command == "once") && arguments.size() == 4),
                 kConfig, "expected device, fault NAME, or bench or once SHAPES SECONDS");
  if (const std::string reason = missing(); !reason.empty()) {
    fmt::print("{{\"name\":\"device\",\"text\":\"{}\"}}\n", reason);
    return kernels::kNoDevice;
  }
  if (command == "fault") return run_fault(arguments[2]);
  if (command == "bench" || command == "once")
    kernels::bench(arguments[2], std::stod(arguments[3]),
                   command == "bench" ? kernels::time_op : kernels::run_once);
  else
    fmt::print("{{\"name\":\"device\",\"text\":\"{}\"}}\n", description());
  return 0;
}

}  // namespace
}  // namespace ashlar::device

int main(int argc, char** argv) {
  try {
    return ashlar::device::run_tool({argv, size_t(argc)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
