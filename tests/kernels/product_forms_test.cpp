// Forms of products give the bits of the rules on every instruction set, and tables find theirs.
#include "ashlar/kernels/product_forms.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <set>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/linear.h"

namespace ashlar::kernels {
namespace {

struct FormShape {
  int64_t G, T, N, K;
  bool own_columns = false;
  DType x = DType::kF32, y = DType::kF32;
};

// The three products of a shape, with operands that stay.
class FormStage {
 public:
  FormStage(DType compute, const FormShape& s, int num_threads)
      : compute_(compute), s_(s), threads_(num_threads) {
    context_.threads = &threads_;
    context_.workspace = &workspace_;
    const int64_t columns = s.own_columns ? s.G : 1;
    w_ = {random(DType::kF32, {s.G, s.N, s.K}, "w"), {}, {}};
    const OperandLayout layout = operand_layout(context_, s.G, s.N, s.K, compute, true);
    w_.forward = zeros(layout.dtype, {layout.forward_numel});
    w_.backward = zeros(layout.dtype, {layout.backward_numel});
    pack(context_, w_);
    x_ = random(s.x, {s.T, columns * s.K}, "x");
    dy_ = random(s.y, {s.T, columns * s.N}, "dy");
    groups_ = zeros(DType::kI32, {s.G + 1});
    // Uneven: the first group has none, the last has most.
    for (int64_t g = 0; g <= s.G; ++g)
      groups_.as<int32_t>()[g] = int32_t(g == s.G ? s.T : s.T * g * g / (s.G * s.G) / 2);
  }

  // The bytes of the result, which begins with the same numbers.
  std::vector<std::byte> run(ProductPass pass, const ProductTable* table) {
    context_.products = table;
    const int64_t columns = s_.own_columns ? s_.G : 1;
    const Tensor to = pass == ProductPass::kForward ? random(s_.y, {s_.T, columns * s_.N}, "y")
                      : pass == ProductPass::kBackwardInput
                          ? random(s_.x, {s_.T, columns * s_.K}, "y")
                          : random(DType::kF32, {s_.G, s_.N, s_.K}, "y");
    const Matrix m = Matrix::of(to), x = Matrix::of(x_), dy = Matrix::of(dy_);
    if (pass == ProductPass::kForward)
      s_.own_columns ? blockdiag_linear_forward(context_, compute_, x, w_, m)
                     : grouped_linear_forward(context_, compute_, x, w_, groups_, m);
    else if (pass == ProductPass::kBackwardInput)
      s_.own_columns ? blockdiag_linear_backward_input(context_, compute_, dy, w_, m)
                     : grouped_linear_backward_input(context_, compute_, dy, w_, groups_, m);
    else
      s_.own_columns ? blockdiag_linear_backward_weight(context_, compute_, dy, x, to)
                     : grouped_linear_backward_weight(context_, compute_, dy, x, groups_, to);
    std::vector<std::byte> bytes(to.data, to.data + to.bytes());
    owned_.pop_back();
    return bytes;
  }
  ProductKey key(ProductPass pass) const {
    const DType result = pass == ProductPass::kForward         ? s_.y
                         : pass == ProductPass::kBackwardInput ? s_.x
                                                               : DType::kF32;
    return {pass, s_.own_columns, compute_,        result, int32_t(s_.G),
            s_.N, s_.K,           threads_.size(), s_.T};
  }

 private:
  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  Tensor random(DType dtype, const Shape& shape, std::string_view name) {
    const Tensor tensor = zeros(dtype, shape);
    const Rng rng(7, name);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const auto value = float(2 * rng.uniform(uint64_t(i)) - 1);
      if (dtype == DType::kBF16)
        tensor.as<bf16>()[i] = bf16(value);
      else
        tensor.as<float>()[i] = value;
    }
    return tensor;
  }

  const DType compute_;
  const FormShape s_;
  Threads threads_;
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, 32 << 20, Tag::kWorkspace};
  std::list<OwnedTensor> owned_;
  Context context_;
  Operand w_;
  Tensor x_, dy_, groups_;
};

// A few candidates of every kind, and sizes that no product can follow.
std::vector<ProductForm> forms_to_try(const ProductKey& key) {
  std::vector<ProductForm> forms;
  const std::vector<ProductForm> tasks = task_candidates(key);
  for (size_t i = 0; i < tasks.size(); i += 13) forms.push_back(tasks[i]);
  for (const ProductForm& form : order_candidates(key, {.rows = 64, .panels = 2}))
    forms.push_back(form);
  forms.push_back({.rows = 1, .panels = 1});
  forms.push_back({.rows = 1 << 30, .panels = 1 << 30});
  return forms;
}

TEST(ProductForms, EveryFormGivesTheBitsOfTheRules) {
  const DType b = DType::kBF16, f = DType::kF32;
  const FormShape shapes[] = {
      {1, 150, 200, 96, false, f, f}, {1, 150, 200, 96, false, b, b},
      {1, 90, 70, 1100, false, b, b},  // sums in parts
      {1, 40, 1100, 70, false, b, f},  // the same backward
      {4, 200, 96, 64, false, b, f},  {3, 70, 64, 96, true, b, f},
      {1, 600, 64, 64, false, b, f},  // many tokens
  };
  for (const Isa isa : supported_isas()) {
    select_isa(isa);
    for (const DType compute : {f, b})
      for (const FormShape& shape : shapes) {
        FormStage stage(compute, shape, 2);
        for (const ProductPass pass :
             {ProductPass::kForward, ProductPass::kBackwardInput, ProductPass::kBackwardWeight}) {
          const ProductKey key = stage.key(pass);
          const std::vector<std::byte> rules = stage.run(pass, nullptr);
          for (const ProductForm& form : forms_to_try(key)) {
            const ProductTable table({{key, form}});
            ASSERT_EQ(stage.run(pass, &table), rules)
                << name_of(isa) << " " << key.op() << " " << name_of(compute) << " T " << shape.T
                << " N " << shape.N << " K " << shape.K << ": " << form.text();
            ASSERT_EQ(table.counts().exact, 1);
          }
        }
      }
  }
  select_isa(supported_isas().back());
}

ProductKey rows_of_key(int64_t rows) {
  return {ProductPass::kForward, false, DType::kBF16, DType::kF32, 1, 512, 256, 2, rows};
}

TEST(ProductForms, TablesFindTheKeyThenTheNearestRows) {
  const ProductTable table({{rows_of_key(1024), {.rows = 128}},
                            {rows_of_key(256), {.rows = 32}},
                            {rows_of_key(512), {.rows = 64}}});
  const auto rows = [&](const ProductKey& key) {
    const ProductForm* form = table.find(key);
    return form ? form->rows : -1;
  };
  EXPECT_EQ(rows(rows_of_key(512)), 64);
  EXPECT_EQ(rows(rows_of_key(600)), 64);
  EXPECT_EQ(rows(rows_of_key(900)), 128);
  EXPECT_EQ(rows(rows_of_key(2048)), 128);
  EXPECT_EQ(rows(rows_of_key(128)), 32);
  EXPECT_EQ(rows(rows_of_key(2049)), -1);
  EXPECT_EQ(rows(rows_of_key(127)), -1);
  for (auto change : {+[](ProductKey& k) { k.pass = ProductPass::kBackwardInput; },
                      +[](ProductKey& k) { k.own_columns = true; },
                      +[](ProductKey& k) { k.compute = DType::kF32; },
                      +[](ProductKey& k) { k.result = DType::kBF16; },
                      +[](ProductKey& k) { ++k.groups; }, +[](ProductKey& k) { ++k.cols; },
                      +[](ProductKey& k) { --k.depth; }, +[](ProductKey& k) { ++k.threads; }}) {
    ProductKey other = rows_of_key(512);
    change(other);
    EXPECT_EQ(rows(other), -1);
  }
  EXPECT_EQ(table.counts().exact, 1);
  EXPECT_EQ(table.counts().near, 4);
  EXPECT_EQ(table.counts().missed, 10);
  EXPECT_EQ(ProductTable({}).find(rows_of_key(1)), nullptr);
}

TEST(ProductForms, NamesReadBack) {
  for (const std::string op :
       {"linear_forward", "grouped_linear_backward_input", "blockdiag_linear_backward_weight"}) {
    ProductKey key;
    key.groups = op.starts_with("linear") ? 1 : 4;
    ASSERT_TRUE(set_op(op, key)) << op;
    EXPECT_EQ(key.op(), op);
  }
  ProductKey key;
  EXPECT_FALSE(set_op("linear_sideways", key));
  EXPECT_FALSE(set_op("attention_forward", key));
  EXPECT_EQ(ProductForm{}.text(), "rules");
  EXPECT_EQ((ProductForm{256, 8, TaskOrder::kRowsFirst, RowCopies::kNever}.text()),
            "rows 256 panels 8 rows-first in-place");
}

TEST(ProductForms, CandidatesAreDistinctAndNoneIsTheRules) {
  for (const int64_t rows : {1, 64, 4096}) {
    std::set<ProductForm> seen;
    const ProductKey key = rows_of_key(rows);
    for (const ProductForm& form : task_candidates(key)) {
      EXPECT_TRUE(seen.insert(form).second) << form.text();
      EXPECT_NE(form, ProductForm{});
    }
    for (const ProductForm& form : order_candidates(key, {.rows = 64}))
      EXPECT_TRUE(form.order != TaskOrder::kByRule || form.copies != RowCopies::kByRule);
  }
}

}  // namespace
}  // namespace ashlar::kernels
