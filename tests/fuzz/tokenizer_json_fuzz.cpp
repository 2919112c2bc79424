#include "ashlar/data/hf/json_tokenizer.h"
#include "tests/fuzz/fuzz.h"

// A tokenizer.json that is accepted encodes any text into ids of its vocabulary, and decodes them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  return expect_error_or_success([&] {
    const auto tokenizer = data::parse_json_tokenizer(std::string(as_text_of(data, size)), "fuzz");
    const auto ids = tokenizer->encode(" Two  words, \xc3\xa9 and <s> \xf0\x9f\x98\x80; \xff.\n");
    for (const int32_t id : ids) ASHLAR_ASSERT(0 <= id && id < tokenizer->vocab_size());
    tokenizer->decode(ids);
    tokenizer->decode(ids, true);
  });
}
