#include "ashlar/checkpoint/writers/timing.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::checkpoint;
  return expect_error_or_success([&] {
    const Timing timing = parse_timing(as_text_of(data, size), "fuzz");
    find_outliers(timing.ranks);
    const std::string once = build_timing(timing);
    ASHLAR_ASSERT(build_timing(parse_timing(once, "fuzz")) == once);
  });
}
