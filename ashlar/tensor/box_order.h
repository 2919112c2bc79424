// The positions of a box's elements in its tensor.  Both are row-major, so element i of the box
// comes before element i + 1 in the tensor too, with or without others between them.
#pragma once

#include <cstdint>

#include "ashlar/core/function_ref.h"
#include "ashlar/tensor/shape.h"

namespace ashlar {

// The index in the tensor of element i of the box.
int64_t index_in_tensor(const Shape& tensor, const Box& box, int64_t i);

// The number of elements of the box whose index in the tensor is below `index`.
int64_t elements_before(const Shape& tensor, const Box& box, int64_t index);

// Elements [begin, end) of the box as runs that are contiguous in the tensor: body(index in the
// tensor, length), in order.
void for_each_run(const Shape& tensor, const Box& box, int64_t begin, int64_t end,
                  function_ref<void(int64_t index, int64_t length)> body);

}  // namespace ashlar
