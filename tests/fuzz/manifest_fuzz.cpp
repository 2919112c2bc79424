#include "ashlar/checkpoint/format/manifest.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::checkpoint;
  return expect_error_or_success([&] {
    const std::string once = build_manifest(parse_manifest(as_text_of(data, size), "fuzz"));
    ASHLAR_ASSERT(build_manifest(parse_manifest(once, "fuzz")) == once);
  });
}
