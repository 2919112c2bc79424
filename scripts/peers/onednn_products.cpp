// The products of `ashlar bench products` by oneDNN, with weights in the layout that it likes best and results in the
// types that training asks for.  Experts are one product each, after each other.
//
//   g++ -O2 -std=c++20 scripts/peers/onednn_products.cpp -ldnnl -fopenmp -o onednn_products    Debian's libdnnl-dev
//   OMP_NUM_THREADS=1 taskset -c 1 ./onednn_products bf16|f32 [words of shapes to measure]
//
// The newest release needs its headers and libraries (PyPI: onednn, onednn-devel, and the runtimes intel-sycl-rt,
// intel-cmplr-lib-rt, intel-opencl-rt, tbb, tcmlib, umf) on -I, -L and LD_LIBRARY_PATH, and in OCL_ICD_FILENAMES the path
// of libintelocl.so; its threads are those that taskset leaves.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Side {
  memory::dims dims;
  Tag tag;
};

struct Call {
  std::unordered_map<int, memory> arguments;
};

// Microseconds of `groups` products dst [M, N] (+)= src [M, K] weights [K, N], sums in fp32, result of type `to`.
double measure(int64_t groups, Type type, Type to, const Side& src, const Side& weights, bool packed) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const int64_t M = src.dims[0], N = weights.dims[1];
  const memory::desc src_desc(src.dims, type, src.tag), plain_desc(weights.dims, type, weights.tag);
  const memory::desc weights_desc(weights.dims, type, packed ? Tag::any : weights.tag);
  const memory::desc dst_desc({M, N}, to, Tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc desc(engine, src_desc, weights_desc, dst_desc);
#else
  const dnnl::matmul::primitive_desc desc({src_desc, weights_desc, dst_desc}, engine);
#endif
  const dnnl::matmul product(desc);
  std::vector<Call> calls;
  for (int64_t g = 0; g < groups; ++g) {
    memory a(src_desc, engine), plain(plain_desc, engine), b(desc.weights_desc(), engine), c(dst_desc, engine);
    for (memory* m : {&a, &plain, &c}) std::memset(m->get_data_handle(), 0, m->get_desc().get_size());
    dnnl::reorder(plain, b).execute(stream, plain, b);
    stream.wait();
    calls.push_back({{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}}});
  }
  double best = 1e9;
  for (const double start = now_s(); now_s() - start < 0.1 || best == 1e9;) {
    const double begin = now_s();
    for (const Call& call : calls) product.execute(stream, call.arguments);
    stream.wait();
    best = std::min(best, now_s() - begin);
  }
  return best * 1e6;
}

bool named(int argc, char** argv, const std::string& name) {
  for (int i = 2; i < argc; ++i)
    if (name.find(argv[i]) != std::string::npos) return true;
  return argc <= 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool f32 = argc > 1 && !std::strcmp(argv[1], "f32");
  const auto type = f32 ? Type::f32 : Type::bf16;
  // y and dx: the types of the results in training.
  struct Dims {
    const char* name;
    int64_t G, T, N, K;  // T: tokens of all groups
    Type y, dx;
  };
  constexpr Type kF32 = Type::f32;
  const Dims shapes[] = {
      {"nano qkv", 1, 2048, 512, 256, kF32, kF32},       {"nano o", 1, 2048, 256, 256, kF32, type},
      {"nano gate_up", 8, 2048, 1024, 256, type, type},  {"nano down", 8, 2048, 256, 512, kF32, type},
      {"nano head", 1, 256, 8192, 256, kF32, kF32},      {"nano conv", 6, 12288, 64, 128, kF32, type},
      {"small qkv", 1, 1024, 1024, 768, kF32, kF32},     {"small o", 1, 1024, 768, 512, kF32, type},
      {"small gate_up", 16, 1024, 1536, 768, type, type}, {"small down", 16, 1024, 768, 768, kF32, type},
      {"small head", 1, 256, 32768, 768, kF32, kF32},    {"small conv", 6, 6144, 128, 256, kF32, type},
      {"llama qkv", 1, 2048, 1024, 512, kF32, kF32},     {"llama o", 1, 2048, 512, 512, kF32, type},
      {"llama gate_up", 1, 2048, 2816, 512, type, kF32}, {"llama down", 1, 2048, 512, 1408, kF32, type},
      {"llama head", 1, 256, 8192, 512, kF32, kF32},     {"moe gate_up", 8, 4096, 1408, 512, type, type},
      {"moe down", 8, 4096, 512, 704, kF32, type},       {"hybrid gate_up", 1, 2048, 2560, 512, type, kF32},
      {"hybrid down", 1, 2048, 512, 1280, kF32, type}};
  const dnnl_version_t* version = dnnl_version();
  std::printf("oneDNN %d.%d.%d %s, us and GFLOP/s of the fastest call\n", version->major, version->minor, version->patch,
              f32 ? "f32" : "bf16");
  std::printf("%-14s %3s %6s %6s %6s %18s %18s %18s\n", "shape", "G", "T", "N", "K", "forward", "backward_input",
              "backward_weight");
  for (const Dims& d : shapes) {
    if (!named(argc, argv, d.name)) continue;
    const int64_t t = d.T / d.G;
    const double us[] = {measure(d.G, type, d.y, {{t, d.K}, Tag::ab}, {{d.K, d.N}, Tag::ba}, true),
                         measure(d.G, type, d.dx, {{t, d.N}, Tag::ab}, {{d.N, d.K}, Tag::ab}, true),
                         measure(d.G, type, kF32, {{d.N, t}, Tag::ba}, {{t, d.K}, Tag::ab}, false)};
    std::printf("%-14s %3ld %6ld %6ld %6ld", d.name, long(d.G), long(d.T), long(d.N), long(d.K));
    for (const double u : us) std::printf(" %10.1f %7.0f", u, 2e-3 * double(d.T) * double(d.N) * double(d.K) / u);
    std::printf("\n");
    std::fflush(stdout);
  }
}
