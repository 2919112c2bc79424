#include "ashlar/tensor/dtype.h"

namespace ashlar {
namespace {

struct Row {
  int64_t size;
  std::string_view name;
};
constexpr Row kRows[] = {{8, "F64"},  {4, "F32"}, {2, "BF16"}, {2, "F16"}, {8, "I64"},
                         {4, "I32"},  {2, "I16"}, {2, "U16"},  {1, "U8"},  {1, "I8"},
                         {1, "BOOL"}, {4, "U32"}, {8, "U64"}};

}  // namespace

int64_t size_of(DType dtype) {
  return kRows[int(dtype)].size;
}
std::string_view name_of(DType dtype) {
  return kRows[int(dtype)].name;
}

}  // namespace ashlar
