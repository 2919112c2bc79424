#include "ashlar/train/trainer_state.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::train;
  return expect_error_or_success([&] {
    const std::string text(as_text_of(data, size));
    const std::string once = to_json(parse_trainer_state(text, "fuzz"));
    ASHLAR_ASSERT(to_json(parse_trainer_state(once, "fuzz")) == once);
  });
}
