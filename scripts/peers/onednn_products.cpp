// The dense products of `ashlar bench products` by oneDNN (libdnnl-dev), with weights in the layout that it likes best.
//
//   g++ -O2 -std=c++20 scripts/peers/onednn_products.cpp -ldnnl -fopenmp -o onednn_products
//   OMP_NUM_THREADS=1 ./onednn_products bf16|f32
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

using dnnl::memory;
using Tag = memory::format_tag;

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Side {
  memory::dims dims;
  Tag tag;
};

// GFLOP/s of dst [M, N] (+)= src [M, K] weights [K, N], sums in fp32.
double measure(memory::data_type type, const Side& src, const Side& weights, bool packed,
               bool accumulate) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const int64_t M = src.dims[0], K = src.dims[1], N = weights.dims[1];
  const memory::desc src_desc(src.dims, type, src.tag), plain_desc(weights.dims, type, weights.tag);
  const memory::desc weights_desc(weights.dims, type, packed ? Tag::any : weights.tag);
  const memory::desc dst_desc({M, N}, memory::data_type::f32, Tag::ab);
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
  const dnnl::matmul::primitive_desc desc({src_desc, weights_desc, dst_desc}, attributes, engine);
  const dnnl::matmul product(desc);
  memory a(src_desc, engine), plain(plain_desc, engine), b(desc.weights_desc(), engine),
      c(dst_desc, engine);
  for (memory* m : {&a, &plain, &c}) std::memset(m->get_data_handle(), 0, m->get_desc().get_size());
  dnnl::reorder(plain, b).execute(stream, plain, b);
  stream.wait();
  double best = 1e9;
  for (const double start = now_s(); now_s() - start < 0.3;) {
    const double begin = now_s();
    product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
    best = std::min(best, now_s() - begin);
  }
  return 2e-9 * double(M) * double(N) * double(K) / best;
}

}  // namespace

int main(int argc, char** argv) {
  const bool f32 = argc > 1 && !std::strcmp(argv[1], "f32");
  const auto type = f32 ? memory::data_type::f32 : memory::data_type::bf16;
  struct Dims {
    const char* name;
    int64_t T, N, K;
  };
  const Dims shapes[] = {{"nano qkv", 2048, 512, 256},     {"nano o", 2048, 256, 256},
                         {"nano gate_up", 256, 1024, 256}, {"nano down", 256, 256, 512},
                         {"nano head", 512, 8192, 256},    {"small gate_up", 64, 1536, 768},
                         {"small down", 64, 768, 768},     {"small head", 512, 32768, 768}};
  std::printf("%-14s %6s %6s %6s %9s %15s %16s\n", "GFLOP/s", "T", "N", "K", "forward",
              "backward_input", "backward_weight");
  for (const Dims& d : shapes)
    std::printf("%-14s %6ld %6ld %6ld %9.0f %15.0f %16.0f\n", d.name, long(d.T), long(d.N),
                long(d.K), measure(type, {{d.T, d.K}, Tag::ab}, {{d.K, d.N}, Tag::ba}, true, false),
                measure(type, {{d.T, d.N}, Tag::ab}, {{d.N, d.K}, Tag::ab}, true, false),
                measure(type, {{d.N, d.T}, Tag::ba}, {{d.T, d.K}, Tag::ab}, false, true));
}
