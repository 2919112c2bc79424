#include "ashlar/checkpoint/format/safetensors.h"
#include "tests/fuzz/fuzz.h"

// An accepted file tiles the data and can be laid out again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::checkpoint;
  return expect_error_or_success([&] {
    const auto header =
        parse_safetensors(as_bytes_of(data, size), int64_t(size), "fuzz", ErrorKind::kData);
    int64_t end = 0;
    std::vector<TensorSpec> specs;
    for (const TensorEntry& entry : header.entries) {
      ASHLAR_ASSERT(entry.begin == end && checked_bytes(entry.shape, entry.dtype) == entry.bytes());
      end = entry.end;
      specs.push_back({entry.name, entry.dtype, entry.shape});
    }
    ASHLAR_ASSERT(header.data_begin + end == int64_t(size));
    const auto plan = plan_safetensors(specs, header.metadata, HeaderStyle::kAligned);
    const auto head =
        as_bytes_of(reinterpret_cast<const uint8_t*>(plan.header.data()), plan.header.size());
    const auto again = parse_safetensors(head, plan.file_bytes, "fuzz", ErrorKind::kData);
    ASHLAR_ASSERT(again.entries.size() == specs.size() && again.metadata == header.metadata);
  });
}
