// The products of the emulator: by the CPU's products in fp32, which hold operands in bf16 exactly,
// on copies in memory of the host.
#include <vector>

#include "ashlar/kernels/cpu/gemm/drive.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/device.h"

namespace ashlar::kernels::gpu::blas {
namespace {

using cpu::gemm::Engine;

float element(const Stack& s, int64_t i) {
  return s.dtype == DType::kF32 ? reinterpret_cast<const float*>(s.data)[i]
                                : float(reinterpret_cast<const bf16*>(s.data)[i]);
}

Stack matrix_of(const Stack& s, int64_t number) {
  return {s.data + number * s.stack_stride * size_of(s.dtype), s.dtype, s.stride, 0};
}

// A matrix of the device, copied.
class HostMatrix {
 public:
  HostMatrix(const Stack& device, int64_t rows, int64_t cols)
      : device_(device),
        bytes_(size_t(((rows - 1) * device.stride + cols) * size_of(device.dtype))) {
    check_launch(device::copy_bytes(bytes_.data(), device_.data, bytes_.size()));
  }
  Stack stack() { return {bytes_.data(), device_.dtype, device_.stride, 0}; }
  void copy_back() { check_launch(device::copy_bytes(device_.data, bytes_.data(), bytes_.size())); }

 private:
  const Stack device_;
  std::vector<std::byte> bytes_;
};

// Memory of the host during one product.
class HostProduct {
 public:
  HostProduct(const Context& ctx, const Product& p)
      : p_(p),
        host_{.threads = ctx.threads},
        left_(make_tensor(memory_, DType::kF32, {p.rows, p.depth}, Tag::kWorkspace)),
        panels_(make_tensor(memory_, DType::kU8,
                            {engine_.num_panels(p.cols) * engine_.panel_bytes(p.depth)},
                            Tag::kWorkspace)),
        sums_(make_tensor(memory_, DType::kF32, {p.rows, p.cols}, Tag::kWorkspace)) {}

  void run(int64_t number) const {
    HostMatrix a = copy_of(p_.a, number, p_.rows, p_.depth, p_.transposes_a);
    HostMatrix b = copy_of(p_.b, number, p_.depth, p_.cols, p_.transposes_b);
    fill_left(a.stack());
    fill_panels(b.stack());
    cpu::gemm::multiply(host_, engine_, {.count = 1, .own_rows = false}, p_.cols, p_.depth,
                        kernels::Matrix::of(left_.tensor), panels_.tensor.data,
                        kernels::Matrix::of(sums_.tensor), false);
    HostMatrix d = copy_of(p_.d, number, p_.rows, p_.cols, false);
    if (p_.beta == 0) {
      store({}, d.stack());
    } else {
      HostMatrix c = copy_of(p_.c, number, p_.rows, p_.cols, false);
      store(c.stack(), d.stack());
    }
    d.copy_back();
  }

 private:
  static HostMatrix copy_of(const Stack& s, int64_t number, int64_t rows, int64_t cols,
                            bool transposed) {
    return {matrix_of(s, number), transposed ? cols : rows, transposed ? rows : cols};
  }

  void fill_left(const Stack& a) const {
    const int64_t row_step = p_.transposes_a ? 1 : a.stride, step = p_.transposes_a ? a.stride : 1;
    host_.threads->run(p_.rows, [&](int64_t row, int) {
      float* to = left_.tensor.as<float>() + row * p_.depth;
      for (int64_t k = 0; k < p_.depth; ++k) to[k] = element(a, row * row_step + k * step);
    });
  }

  void fill_panels(const Stack& b) const {
    const cpu::gemm::Source source{b.data, b.dtype, b.stride};
    host_.threads->run(engine_.num_panels(p_.cols), [&](int64_t panel, int) {
      const int64_t col = panel * engine_.width, cols = std::min(engine_.width, p_.cols - col);
      std::byte* to = panels_.tensor.data + panel * engine_.panel_bytes(p_.depth);
      if (p_.transposes_b)
        engine_.pack_panel_transposed(source.at(col, 0), p_.depth, cols, false, to);
      else
        engine_.pack_panel(source.at(0, col), p_.depth, cols, false, to);
    });
  }

  // d = alpha sums + beta c; c without data is not read.
  void store(const Stack& c, const Stack& d) const {
    host_.threads->run(p_.rows, [&](int64_t row, int) {
      const float* sums = sums_.tensor.as<float>() + row * p_.cols;
      for (int64_t col = 0; col < p_.cols; ++col) {
        float value = p_.alpha * sums[col];
        if (c.data) value += p_.beta * element(c, row * c.stride + col);
        const int64_t i = row * d.stride + col;
        if (d.dtype == DType::kF32)
          reinterpret_cast<float*>(d.data)[i] = value;
        else
          reinterpret_cast<bf16*>(d.data)[i] = bf16(value);
      }
    });
  }

  const Product& p_;
  const Engine& engine_ = cpu::gemm::f32_engine(false);
  Context host_;
  Allocator memory_{Device::kCpu};
  OwnedTensor left_, panels_, sums_;
};

void multiply_on_host(const Context& ctx, const Product& p, const Tensor&) {
  check_launch(device::wait());  // for copies that are queued
  const HostProduct product(ctx, p);
  for (int64_t i = 0; i < p.count; ++i) product.run(i);
}

}  // namespace

const Table kReference = {
    .multiply = multiply_on_host,
    .description = [] { return std::string("the CPU's products"); },
};

}  // namespace ashlar::kernels::gpu::blas
