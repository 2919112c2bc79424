#include "ashlar/models/step_model.h"
#include "tests/fuzz/fuzz.h"

// The model of a step, from model.json or from config.json alone, as the first byte says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  if (size == 0) return 0;
  const std::string text(as_text_of(data + 1, size - 1));
  return expect_error_or_success([&] {
    const ModelSpec model = data[0] % 2 ? models::parse_step_model(text, {}, "fuzz")
                                        : models::parse_step_model("{}", text, "fuzz");
    ASHLAR_ASSERT(parse_model_spec(to_json(model), "fuzz") == model);
  });
}
