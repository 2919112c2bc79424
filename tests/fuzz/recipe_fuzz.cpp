#include "ashlar/spec/recipe.h"
#include "tests/fuzz/fuzz.h"

// A recipe that is accepted is printed as one that reads the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  return expect_error_or_success([&] {
    const Recipe recipe = parse_recipe(std::string(as_text_of(data, size)), "fuzz", {});
    const std::string printed = to_toml(recipe);
    ASHLAR_ASSERT(differences(recipe, parse_recipe(printed, "fuzz", {})).empty());
  });
}
