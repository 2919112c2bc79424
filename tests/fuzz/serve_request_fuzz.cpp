#include <nlohmann/json.hpp>

#include "ashlar/serve/request.h"
#include "tests/fuzz/fuzz.h"

// A body is refused, or is a request within the limits.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::serve;
  if (size > kMaxBodyBytes) return 0;
  for (const RequestKind kind : {RequestKind::kCompletion, RequestKind::kChat})
    expect_error_or_success([&] {
      const TextRequest request = parse_request(as_text_of(data, size), kind);
      ASHLAR_ASSERT(request.num_answers >= 1 && request.num_answers <= kMaxChoices);
      ASHLAR_ASSERT(int64_t(request.prompts.size()) * request.num_answers <= kMaxChoices);
      ASHLAR_ASSERT(request.num_likely >= -1 && request.num_likely <= kMaxLikely);
      ASHLAR_ASSERT(request.stops.size() <= kMaxStops);
      ASHLAR_ASSERT((kind == RequestKind::kChat) == (request.messages != nullptr));
      ASHLAR_ASSERT((kind == RequestKind::kCompletion) == !request.prompts.empty());
    });
  return 0;
}
