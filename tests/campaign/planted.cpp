// `ashlar` with faults that a campaign plants (faults.sh): the linker puts the functions below
// before those of the product, which has no hook of its own.
//
//   ASHLAR_SHOW_BATCHES  PREFIX: every rank writes a line for each of its steps into PREFIX.RANK,
//                        the checksum of the tokens of its first micro-batch
//   ASHLAR_PLANT         KIND:CHECKSUM:FILE: what happens in a step that begins with these tokens,
//                        on the rank that reads them.  It makes FILE, and happens again only to a
//                        poisoned sample.
//
//   nan       a gradient is no number
//   poison    the same, whenever the tokens are read
//   flip N    a bit of the N-th product for gradients of weights is wrong, N a digit
//   other_op  the rank calls an operation that no other rank calls
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ashlar/core/checksum.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/parallel/rank_model.h"

// The names of the linker's option --wrap.
#define REDUCE "_ZN6ashlar8parallel9RankModel6reduceEv"
#define STEP                                                                         \
  "_ZN6ashlar8parallel9RankModel4stepESt4spanIKNS0_10MicroBatchELm18446744073709551" \
  "615EENS_12function_refIFvlEEE"
#define PRODUCT                                                                                \
  "_ZN6ashlar7kernels22linear_backward_weightERKNS0_7ContextENS_5DTypeERKNS0_6MatrixES7_RKNS_" \
  "6TensorEb"

namespace ashlar {

using parallel::MicroBatch;
using parallel::RankModel;
using MicroBatches = std::span<const MicroBatch>;
using BatchEnded = function_ref<void(int64_t)>;

void real_step(RankModel* model, MicroBatches batches, BatchEnded ended) asm("__real_" STEP);
void real_reduce(RankModel* model) asm("__real_" REDUCE);
void real_product(const kernels::Context& ctx, DType compute, const kernels::Matrix& dy,
                  const kernels::Matrix& x, const Tensor& dw,
                  bool accumulate) asm("__real_" PRODUCT);
void planted_step(RankModel* model, MicroBatches batches, BatchEnded ended) asm("__wrap_" STEP);
void planted_reduce(RankModel* model) asm("__wrap_" REDUCE);
void planted_product(const kernels::Context& ctx, DType compute, const kernels::Matrix& dy,
                     const kernels::Matrix& x, const Tensor& dw,
                     bool accumulate) asm("__wrap_" PRODUCT);

namespace {

// The fault of the step that this rank's thread runs.
thread_local std::string planted;  // its kind; "": none
thread_local int num_products = 0;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// "KIND" of ASHLAR_PLANT if these tokens are meant, and it is still to happen.
std::string kind_for(const std::string& checksum) {
  const std::vector<std::string> parts = split(variable("ASHLAR_PLANT"), ':');
  if (parts.size() != 3 || parts[1] != checksum) return "";
  const int file = open(parts[2].c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (file >= 0) close(file);
  return file >= 0 || parts[0] == "poison" ? parts[0] : "";
}

void begin_step(const RankModel& model, MicroBatches batches) {
  planted.clear();
  num_products = 0;
  if (batches.empty() || batches[0].ids.empty() || !model.parameters()[0].gradient.data) return;
  const std::string checksum = fmt::format("{:08x}", crc32c(std::as_bytes(batches[0].ids)));
  if (const std::string prefix = variable("ASHLAR_SHOW_BATCHES"); !prefix.empty())
    if (FILE* file = std::fopen(fmt::format("{}.{}", prefix, model.groups().rank()).c_str(), "a")) {
      fmt::print(file, "{}\n", checksum);
      std::fclose(file);
    }
  planted = kind_for(checksum);
}

}  // namespace

void planted_step(RankModel* model, MicroBatches batches, BatchEnded ended) {
  begin_step(*model, batches);
  real_step(model, batches, ended);
}

void planted_reduce(RankModel* model) {
  if (planted == "other_op") model->groups().world().barrier("planted").wait();
  real_reduce(model);
  if (planted != "nan" && planted != "poison") return;
  *reinterpret_cast<float*>(model->parameters()[0].gradient.data) = std::nanf("");
}

void planted_product(const kernels::Context& ctx, DType compute, const kernels::Matrix& dy,
                     const kernels::Matrix& x, const Tensor& dw, bool accumulate) {
  real_product(ctx, compute, dy, x, dw, accumulate);
  if (planted == fmt::format("flip {}", num_products++)) dw.data[0] ^= std::byte{1};
}

}  // namespace ashlar
