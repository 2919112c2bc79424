// Any bytes as an .idx file: an Error of kind kData, or an index whose every entry can be used.
#include <cstdint>
#include <cstdlib>

#include "ashlar/core/error.h"
#include "ashlar/data/index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  try {
    const auto bytes = std::as_bytes(std::span(data, size));
    const data::DatasetIndex index = data::parse_index(bytes, "fuzz.idx");
    int64_t sequence_tokens = 0, document_tokens = 0;
    for (int64_t i = 0; i < index.num_sequences(); ++i) sequence_tokens += index.length(i);
    for (int64_t d = 0; d < index.num_documents(); ++d) document_tokens += index.document_length(d);
    if (sequence_tokens != index.num_tokens() || document_tokens != index.num_tokens())
      std::abort();
    for (const int64_t token : {int64_t{0}, index.num_tokens() / 2, index.num_tokens() - 1}) {
      const data::TokenPosition place = index.locate(token);
      if (index.document_start(place.document) + place.offset != token) std::abort();
      if (place.offset >= index.document_length(place.document)) std::abort();
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) std::abort();
  }
  return 0;
}
