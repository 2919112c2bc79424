#include "ashlar/kernels/embedding.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct EmbeddingCase {
  int64_t T, V, H;
};
constexpr EmbeddingCase kEmbeddingCases[] = {
    {1, 1, 3}, {3, 300, 8}, {17, 5, 33}, {65, 2, 16}, {200, 700, 256}};

std::vector<int32_t> some_ids(const EmbeddingCase& c) {
  std::vector<int32_t> ids;
  const Rng rng(3, "ids");
  for (int64_t t = 0; t < c.T; ++t) ids.push_back(int32_t(rng.below(uint64_t(t), uint64_t(c.V))));
  return ids;
}

struct EmbeddingLayer {
  Tensor ids, emb, scale, bias, x, dx, demb, dscale, dbias;
  EmbeddingLayer(Bench& b, const EmbeddingCase& c, const std::vector<int32_t>& id_list,
                 bool plain = false) {
    const Shape VH{c.V, c.H}, H{c.H}, TH{c.T, c.H};
    ids = b.ints(id_list), emb = b.stream("emb", VH);
    x = b.stream(TH), dx = b.stream("dx", TH);
    demb = b.stream("demb", VH);  // added to
    if (plain) return;
    scale = b.stream("scale", H, 1), bias = b.stream("bias", H);
    dscale = b.stream("dscale", H), dbias = b.stream("dbias", H);  // added to
  }
  void forward(Bench& b) {
    embedding_forward(b.context(),
                      {.ids_T = ids, .emb_VH = emb, .scale_H = scale, .bias_H = bias, .x_TH = x});
  }
  void backward(Bench& b, int32_t fixed_id = -1) {
    embedding_backward(b.context(), {.ids_T = ids,
                                     .emb_VH = emb,
                                     .scale_H = scale,
                                     .bias_H = bias,
                                     .dx_TH = dx,
                                     .demb_VH = demb,
                                     .fixed_id = fixed_id,
                                     .dscale_H = dscale,
                                     .dbias_H = dbias});
  }
};

TEST(Embedding, Formula) {
  for (const EmbeddingCase& c : kEmbeddingCases) {
    Bench b;
    const std::vector<int32_t> ids = some_ids(c);
    EmbeddingLayer l(b, c, ids);
    l.forward(b);
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t i = 0; i < c.H; ++i)
        ASSERT_DOUBLE_EQ(l.x.as<double>()[t * c.H + i],
                         (l.emb.as<double>()[ids[size_t(t)] * c.H + i] + l.bias.as<double>()[i]) *
                             l.scale.as<double>()[i]);
  }
}

TEST(Embedding, PlainRowsAreCopies) {
  for (const EmbeddingCase& c : kEmbeddingCases) {
    Bench b;
    const std::vector<int32_t> ids = some_ids(c);
    EmbeddingLayer l(b, c, ids, true);
    l.forward(b);
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t i = 0; i < c.H; ++i)
        ASSERT_EQ(l.x.as<double>()[t * c.H + i], l.emb.as<double>()[ids[size_t(t)] * c.H + i]);
  }
}

TEST(Embedding, PlainGradient) {
  Bench b;
  const EmbeddingCase c{9, 4, 3};
  EmbeddingLayer l(b, c, {2, 0, 2, 2, 3, 0, 0, 2, 2}, true);  // id 1 has no row
  fill_zero(l.demb);
  l.backward(b);
  expect_gradient("demb", l.emb, values_of(l.demb), [&] {
    l.forward(b);
    return dot(l.x, l.dx);
  });
}

// As torch.nn.Embedding(4, 3, padding_idx=2): the row of that id has no gradient, all others have
// theirs, and the affine ones see every token.
TEST(Embedding, TheRowOfAFixedIdHasNoGradient) {
  for (const bool plain : {true, false}) {
    Bench b, c;
    const EmbeddingCase size{9, 4, 3};
    const std::vector<int32_t> ids{2, 0, 2, 2, 3, 0, 0, 2, 2};
    EmbeddingLayer all(b, size, ids, plain), fixed(c, size, ids, plain);
    const std::vector<double> before = values_of(all.demb);
    all.backward(b);
    fixed.backward(c, 2);
    for (int64_t id = 0; id < size.V; ++id)
      for (int64_t i = 0; i < size.H; ++i) {
        const int64_t at = id * size.H + i;
        EXPECT_EQ(fixed.demb.as<double>()[at],
                  id == 2 ? before[size_t(at)] : all.demb.as<double>()[at])
            << id;
      }
    if (plain) continue;
    EXPECT_EQ(values_of(fixed.dscale), values_of(all.dscale));
    EXPECT_EQ(values_of(fixed.dbias), values_of(all.dbias));
  }
}

TEST(Embedding, AScaleWithoutBiasIsOurBug) {
  Bench b;
  EmbeddingLayer l(b, {3, 4, 2}, {0, 3, 1});
  l.dscale = l.dbias = {};
  EXPECT_DEATH(l.backward(b), "dscale_H");
  l.bias = {};
  EXPECT_DEATH(l.forward(b), "shape");
}

TEST(Embedding, Gradients) {
  Bench b;
  const EmbeddingCase c{9, 4, 3};
  EmbeddingLayer l(b, c, {2, 0, 2, 2, 3, 0, 0, 2, 2});  // id 1 has no row
  fill_zero(l.demb), fill_zero(l.dscale), fill_zero(l.dbias);
  const auto loss = [&] {
    l.forward(b);
    return dot(l.x, l.dx);
  };
  l.backward(b);
  expect_gradient("demb", l.emb, values_of(l.demb), loss);
  expect_gradient("dscale", l.scale, values_of(l.dscale), loss);
  expect_gradient("dbias", l.bias, values_of(l.dbias), loss);
}

TEST(Embedding, PlainPaths) {
  for (const EmbeddingCase& c : kEmbeddingCases)
    expect_paths_agree(fmt::format("plain T={} V={} H={}", c.T, c.V, c.H),
                       [&](Bench& b) -> std::vector<Output> {
                         EmbeddingLayer l(b, c, some_ids(c), true);
                         l.forward(b);
                         l.backward(b);
                         return {{"x", l.x}, {"demb", l.demb}};
                       });
}

TEST(Embedding, Paths) {
  for (const EmbeddingCase& c : kEmbeddingCases)
    expect_paths_agree(
        fmt::format("T={} V={} H={}", c.T, c.V, c.H), [&](Bench& b) -> std::vector<Output> {
          EmbeddingLayer l(b, c, some_ids(c));
          l.forward(b);
          l.backward(b);
          return {{"x", l.x}, {"demb", l.demb}, {"dscale", l.dscale}, {"dbias", l.dbias}};
        });
}

TEST(EmbeddingDeathTest, AnIdOutsideTheVocabularyAborts) {
  for (const int32_t bad : {-1, 4}) {
    Bench b;
    EmbeddingLayer l(b, {3, 4, 2}, {0, bad, 1});
    EXPECT_DEATH(l.forward(b), "id >= 0 && id < vocab_size");
    EXPECT_DEATH(l.backward(b), "id >= 0 && id < vocab_size");
  }
}

}  // namespace
}  // namespace ashlar::kernels
