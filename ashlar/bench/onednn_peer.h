// The products of `bench products` by oneDNN, from a library that is given by its path: nothing of
// this program is linked against it.
//
// Weights   in the layout that oneDNN likes best, made once, as ours are; both operands of a
//           gradient of weights as they are, since both are activations.
// Groups    one primitive, run once for each group.
// Threads   oneDNN's own: OMP_NUM_THREADS is set to ours before the library is loaded, unless it is
//           set already.  A library with another kind of threads takes the CPUs of the process.
// Errors    kConfig for a file that cannot be loaded, is no oneDNN, or is older than version 3,
//           whose interface is another.
#pragma once

#include <memory>
#include <string>

#include "ashlar/bench/kernel_times.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::bench {

enum class Direction : uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct PeerProduct {
  DType compute, result;
  Direction direction;
};

class OneDnnPeer {
 public:
  OneDnnPeer(const std::string& path, int num_threads);
  ~OneDnnPeer();
  const std::string& name() const { return name_; }  // "oneDNN 3.13.0"
  // y = x W^T, dx = dy W or dw = dy^T x with G groups of T / G rows each.
  KernelTime time(const PeerProduct&, int64_t G, int64_t T, int64_t N, int64_t K,
                  double seconds) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  std::string name_;
};

}  // namespace ashlar::bench
