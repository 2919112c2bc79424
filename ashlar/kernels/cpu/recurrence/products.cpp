#include "ashlar/kernels/cpu/recurrence/products.h"

#include "ashlar/core/error.h"

namespace ashlar::kernels::cpu {

using gemm::Engine;

Products<double>::Operand Products<double>::operand(const Matrix& m) {
  ASHLAR_ASSERT(m.dtype == DType::kF64);
  return {reinterpret_cast<const double*>(m.data), m.rows, m.cols, m.stride, 1};
}

Products<double>::Operand Products<double>::transposed(const Matrix& m) {
  const Operand o = operand(m);
  return {o.data, o.cols, o.rows, 1, o.row_stride};
}

void Products<double>::multiply(const Left& a, const Right& b, double* c, int64_t stride,
                                bool accumulate, Skip skip) const {
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t first = skip == Skip::kBelowA ? i : 0,
                  end = skip == Skip::kAboveA ? std::min(i + 1, a.cols) : a.cols;
    for (int64_t j = 0; j < (skip == Skip::kAboveC ? i + 1 : b.cols); ++j) {
      double sum = accumulate ? c[i * stride + j] : 0;
      for (int64_t k = first; k < end; ++k)
        sum += a.data[i * a.row_stride + k * a.col_stride] *
               b.data[k * b.row_stride + j * b.col_stride];
      c[i * stride + j] = sum;
    }
  }
}

int64_t Products<float>::slot_bytes(const Engine* engine, int64_t largest) {
  const int64_t size = padded(largest);
  return size * size * size_of(engine->element);
}

Products<float>::Left Products<float>::left(Slot slot, const Matrix& m) const {
  const int64_t size = size_of(e_.element), row_bytes = e_.padded(m.cols) * size;
  const gemm::Source source{m.data, m.dtype, m.stride};
  if (m.dtype == e_.element && !e_.round && e_.padded(m.cols) == m.cols)
    return {{m.data, m.stride * size, e_.unit * size}, m.rows, m.cols, m.rows, 0};
  e_.pack_rows(source, m.rows, m.cols, e_.round, memory(slot), row_bytes);
  return {{memory(slot), row_bytes, e_.unit * size}, m.rows, m.cols, m.rows, 0};
}

// Rows of the transpose: made by the engine, or read from panels of m, whose columns they are.
Products<float>::Left Products<float>::left_transposed(Slot slot, const Matrix& m) const {
  const int64_t size = size_of(e_.element), row_bytes = e_.padded(m.rows) * size;
  const gemm::Source source{m.data, m.dtype, m.stride};
  std::byte* to = memory(slot);
  if (!e_.pack_rows_transposed) {
    const Right panels = right(slot, m);
    return {{panels.panels, e_.unit * size, e_.width * e_.unit * size},
            m.cols,
            m.rows,
            e_.width,
            e_.panel_bytes(m.rows)};
  }
  for (int64_t c = 0; c < m.cols; c += e_.width)
    e_.pack_rows_transposed(source.at(0, c), m.rows, std::min(e_.width, m.cols - c),
                            to + c * row_bytes, row_bytes);
  return {{to, row_bytes, e_.unit * size}, m.cols, m.rows, m.cols, 0};
}

Products<float>::Right Products<float>::right(Slot slot, const Matrix& m) const {
  const gemm::Source source{m.data, m.dtype, m.stride};
  std::byte* to = memory(slot);
  for (int64_t c = 0; c < m.cols; c += e_.width, to += e_.panel_bytes(m.rows))
    e_.pack_panel(source.at(0, c), m.rows, std::min(e_.width, m.cols - c), e_.round, to);
  return {memory(slot), m.rows, m.cols};
}

Products<float>::Right Products<float>::right_transposed(Slot slot, const Matrix& m) const {
  const gemm::Source source{m.data, m.dtype, m.stride};
  std::byte* to = memory(slot);
  for (int64_t c = 0; c < m.rows; c += e_.width, to += e_.panel_bytes(m.cols))
    e_.pack_panel_transposed(source.at(c, 0), m.cols, std::min(e_.width, m.rows - c), e_.round, to);
  return {memory(slot), m.cols, m.rows};
}

// Rows are cut into equal tiles, as few as there can be.
void Products<float>::multiply(const Left& a, const Right& b, float* c, int64_t stride,
                               bool accumulate, Skip skip) const {
  ASHLAR_ASSERT(a.num_k == b.num_k);
  const int64_t padded_k = e_.padded(a.num_k), k_bytes = e_.width * size_of(e_.element),
                panel_bytes = padded_k * k_bytes;
  for (int64_t first = 0; first < a.count; first += a.group) {
    const int64_t rows = std::min(a.group, a.count - first);
    const int64_t step = e_.whole_tiles ? e_.max_rows : ceil_div(rows, ceil_div(rows, e_.max_rows));
    const std::byte* from = a.rows.data + first / a.group * a.group_bytes;
    for (int64_t r = 0; r < rows; r += step) {
      const int64_t count = std::min(step, rows - r), row = first + r, end_row = row + count;
      const int64_t k = skip == Skip::kBelowA ? row / e_.k_pad * e_.k_pad : 0,
                    k_end =
                        skip == Skip::kAboveA ? std::min(padded_k, e_.padded(end_row)) : padded_k,
                    columns = skip == Skip::kAboveC ? std::min(b.cols, end_row) : b.cols;
      const gemm::Left left{from + r * a.rows.row_bytes + k / e_.unit * a.rows.step_bytes,
                            a.rows.row_bytes, a.rows.step_bytes};
      const std::byte* panel = b.panels + k * k_bytes;
      for (int64_t n = 0; n < columns; n += e_.width, panel += panel_bytes)
        e_.tile(count, k_end - k, left, panel, c + row * stride + n, stride, accumulate);
    }
  }
}

}  // namespace ashlar::kernels::cpu
