// a kernel includes the language alone
#include <algorithm>

#include "ashlar/kernels/gpu/gpu.h"
