#include <fmt/core.h>

#include <string>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/core/checksum.h"
#include "tests/fuzz/fuzz.h"

// The input as it is, and as the body of a line whose checksum is right.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::checkpoint;
  const std::string text(as_text_of(data, size));
  const std::string sealed = fmt::format("{},\"crc32c\":\"{:08x}\"}}\n", text, crc32c(text));
  for (const std::string& line : {text, sealed})
    expect_error_or_success([&] {
      const std::string once = build_commit(parse_commit(line, "fuzz"));
      ASHLAR_ASSERT(build_commit(parse_commit(once, "fuzz")) == once);
    });
  return 0;
}
