#include <nlohmann/json.hpp>

#include "ashlar/core/utf8.h"
#include "ashlar/data/chat_template.h"
#include "tests/fuzz/fuzz.h"

// A template renders to UTF-8, with spans in order inside of the text, or is refused.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  static const Ordered messages = Ordered::parse(
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " H\u00e9?\n"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
           "arguments": {"x": 1, "y": [1.5, null, true]}}}]}])");
  static const Ordered tools = Ordered::parse(R"([{"function": {"name": "f"}}])");
  static const Ordered variables = Ordered::parse(R"({"bos_token": "<s>", "eos_token": "</s>"})");
  return expect_error_or_success([&] {
    const data::ChatTemplate chat_template(as_text_of(data, size), "fuzz");
    const data::RenderedChat chat =
        chat_template.render(messages, {.tools = &tools, .variables = &variables});
    ASHLAR_ASSERT(check_utf8(chat.text).num_invalid == 0);
    size_t end = 0;
    for (const auto& [from, to] : chat.generated) {
      ASHLAR_ASSERT(end <= from && from <= to && to <= chat.text.size());
      end = to;
    }
  });
}
