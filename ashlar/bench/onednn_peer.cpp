// How it works.  The C interface of oneDNN 3 is declared here as far as it is used: opaque
// pointers, numbers of enumerations, and functions that dlsym finds.  A product is a matmul
// primitive [M, K'] x [K', N'].  Weights of the model have the layout `any`: oneDNN then says which
// layout it wants, and a reorder primitive brings them there.
#include "ashlar/bench/onednn_peer.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::bench {
namespace {

using Handle = void*;
using Status = int;  // 0: success
constexpr int kCpu = 1, kInOrder = 1, kBf16 = 2, kF32 = 3, kAnyLayout = 1, kQueryWeights = 131;
constexpr int kSource = 1, kDestination = 17, kWeights = 33;  // arguments of a primitive
const Handle kAllocate = reinterpret_cast<Handle>(~uintptr_t{0});

struct Version {
  int major, minor, patch;
};
struct Argument {
  int number;
  Handle memory;
};
struct Rows {  // of a matrix, by strides
  int64_t dims[12], strides[12];
};
Rows plain(int64_t rows, int64_t cols) {
  return {{rows, cols}, {cols, 1}};
}
Rows transposed(int64_t rows, int64_t cols) {  // in memory [cols, rows]
  return {{rows, cols}, {1, rows}};
}

void check(Status status, const char* function) {
  ASHLAR_REQUIRE(status == 0, kDevice, "{} of the peer library failed with status {}", function,
                 status);
}

}  // namespace

struct OneDnnPeer::Library {
  explicit Library(const std::string& path) : path(path) {
    // Stays loaded: its threads outlive every object here.
    object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASHLAR_REQUIRE(object, kConfig, "--peer is {}, which cannot be loaded: {}", path, dlerror());
    const auto version = function<const Version*()>("dnnl_version")();
    name = fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
    ASHLAR_REQUIRE(version->major >= 3, kConfig,
                   "--peer is {}, which is {}; expected version 3 or newer", path, name);
    check(function<Status(Handle*, int, size_t)>("dnnl_engine_create")(&engine, kCpu, 0),
          "dnnl_engine_create");
    check(function<Status(Handle*, Handle, unsigned)>("dnnl_stream_create")(&stream, engine,
                                                                            kInOrder),
          "dnnl_stream_create");
  }

  template <typename Signature>
  Signature* function(const char* symbol) const {
    void* found = dlsym(object, symbol);
    ASHLAR_REQUIRE(found, kConfig, "--peer is {}, which has no {}; expected a library of oneDNN",
                   path, symbol);
    return reinterpret_cast<Signature*>(found);
  }
  // Calls a function that makes or changes something.
  template <typename... Args>
  void call(const char* symbol, Args... args) const {
    check(function<Status(Args...)>(symbol)(args...), symbol);
  }

  std::string path, name;
  Handle object = nullptr, engine = nullptr, stream = nullptr;
};

namespace {

// The objects that oneDNN makes for one product, freed in the reverse order.
template <typename Library>
class Objects {
 public:
  explicit Objects(const Library& library) : library_(library) {}
  ~Objects() {
    for (auto object = made_.rbegin(); object != made_.rend(); ++object)
      library_.call(object->destroy, object->handle);
  }

  Handle rows(const Rows& rows, int type) {
    return make("dnnl_memory_desc_create_with_strides", "dnnl_memory_desc_destroy", 2,
                &rows.dims[0], type, &rows.strides[0]);
  }
  Handle any_layout(const Rows& rows, int type) {
    return make("dnnl_memory_desc_create_with_tag", "dnnl_memory_desc_destroy", 2, &rows.dims[0],
                type, kAnyLayout);
  }
  Handle memory(Handle layout) {  // of small numbers
    const Handle memory =
        make("dnnl_memory_create", "dnnl_memory_destroy", layout, library_.engine, kAllocate);
    Handle data = nullptr;
    library_.call("dnnl_memory_get_data_handle", memory, &data);
    const size_t size =
        library_.template function<size_t(Handle)>("dnnl_memory_desc_get_size")(layout);
    std::fill_n(static_cast<uint8_t*>(data), size, uint8_t{0x3c});
    return memory;
  }
  Handle matmul(Handle source, Handle weights, Handle result) {
    return make("dnnl_matmul_primitive_desc_create", "dnnl_primitive_desc_destroy", library_.engine,
                source, weights, Handle{nullptr}, result, Handle{nullptr});
  }
  Handle reorder(Handle from, Handle to) {
    return make("dnnl_reorder_primitive_desc_create", "dnnl_primitive_desc_destroy", from,
                library_.engine, to, library_.engine, Handle{nullptr});
  }
  Handle primitive(Handle desc) {
    return make("dnnl_primitive_create", "dnnl_primitive_destroy", desc);
  }

 private:
  struct Made {
    const char* destroy;
    Handle handle;
  };
  template <typename... Args>
  Handle make(const char* create, const char* destroy, Args... args) {
    Handle handle = nullptr;
    library_.call(create, &handle, args...);
    made_.push_back({destroy, handle});
    return handle;
  }

  const Library& library_;
  std::vector<Made> made_;
};

struct Operands {
  Rows source, weights;
};
// The operands of a group of `rows` tokens.
Operands operands_of(Direction direction, int64_t rows, int64_t N, int64_t K) {
  switch (direction) {
    case Direction::kForward:
      return {plain(rows, K), transposed(K, N)};
    case Direction::kBackwardInput:
      return {plain(rows, N), plain(N, K)};
    case Direction::kBackwardWeight:
      break;
  }
  return {transposed(N, rows), plain(rows, K)};
}

}  // namespace

OneDnnPeer::OneDnnPeer(const std::string& path, int num_threads) {
  setenv("OMP_NUM_THREADS", std::to_string(num_threads).c_str(), 0);
  library_ = std::make_unique<Library>(path);
  name_ = library_->name;
}

OneDnnPeer::~OneDnnPeer() = default;

KernelTime OneDnnPeer::time(const PeerProduct& p, int64_t G, int64_t T, int64_t N, int64_t K,
                            double seconds) const {
  const Library& library = *library_;
  Objects<Library> objects(library);
  const auto run = [&](Handle primitive, const std::vector<Argument>& arguments) {
    library.call("dnnl_primitive_execute", primitive, library.stream, int(arguments.size()),
                 arguments.data());
  };
  const auto wait = [&] { library.call("dnnl_stream_wait", library.stream); };

  const auto type_of = [](DType dtype) { return dtype == DType::kBF16 ? kBf16 : kF32; };
  const int type = type_of(p.compute);
  const auto [source_rows, weight_rows] = operands_of(p.direction, T / G, N, K);
  const bool of_weights = p.direction == Direction::kBackwardWeight;
  const Handle source = objects.rows(source_rows, type), unpacked = objects.rows(weight_rows, type),
               result =
                   objects.rows(plain(source_rows.dims[0], weight_rows.dims[1]), type_of(p.result));
  const Handle desc =
      objects.matmul(source, of_weights ? unpacked : objects.any_layout(weight_rows, type), result);
  const Handle product = objects.primitive(desc);
  const Handle packed =  // belongs to desc
      library.function<Handle(Handle, int, int)>("dnnl_primitive_desc_query_md")(desc,
                                                                                 kQueryWeights, 0);
  const Handle pack = objects.primitive(objects.reorder(unpacked, packed));

  std::vector<std::vector<Argument>> groups;
  for (int64_t g = 0; g < G; ++g) {
    const Handle weights = objects.memory(packed);
    run(pack, {{kSource, objects.memory(unpacked)}, {kDestination, weights}});
    groups.push_back({{kSource, objects.memory(source)},
                      {kWeights, weights},
                      {kDestination, objects.memory(result)}});
  }
  wait();
  return time_kernel(2.0 * double(T) * double(N) * double(K), seconds, [&] {
    for (const std::vector<Argument>& arguments : groups) run(product, arguments);
    wait();
  });
}

}  // namespace ashlar::bench
