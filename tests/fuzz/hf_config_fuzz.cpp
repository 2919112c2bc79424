#include "ashlar/models/hf/config.h"
#include "tests/fuzz/fuzz.h"

// A config that is accepted describes a model that can be written and read again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::models;
  return expect_error_or_success([&] {
    const ModelSpec spec = parse_hf_config(as_text_of(data, size), "fuzz").model;
    const std::string written = to_hf_config(spec, DType::kBF16, HfLayout::kNative);
    ASHLAR_ASSERT(parse_hf_config(written, "fuzz").model == spec);
  });
}
