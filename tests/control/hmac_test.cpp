// SHA-256 and HMAC against the published examples.
#include "ashlar/control/hmac.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace ashlar::control {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", int(byte));
  return text;
}

std::string sha256(std::string_view text, size_t piece) {
  Sha256 hash;
  for (size_t at = 0; at < text.size(); at += piece)
    hash.add(std::as_bytes(std::span(text.substr(at, piece))));
  return hex(hash.finish());
}

std::string hmac(std::string_view key, std::string_view data) {
  return hex(Hmac(std::as_bytes(std::span(key)))(data));
}

// FIPS 180-4's examples (csrc.nist.gov, SHA256.pdf), and lengths around the end of a block by
// Python's hashlib.
TEST(Sha256, OfPublishedExamples) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
      {std::string(55, 'a'), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
      {std::string(56, 'a'), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
      {std::string(63, 'a'), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
      {std::string(64, 'a'), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
      {std::string(65, 'a'), "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
      {std::string(119, 'a'), "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
      {std::string(120, 'a'), "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"}};
  for (const auto& [text, expected] : cases)
    for (const size_t piece : {size_t(7), size_t(64), size_t(1'000'000)})
      EXPECT_EQ(sha256(text, piece), expected) << text.size() << " in pieces of " << piece;
}

// RFC 4231, test cases 1 to 4, 6 and 7.
TEST(Hmac, OfPublishedExamples) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14"
                 "\x15\x16\x17\x18\x19",
                 std::string(50, '\xcd')),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hmac(std::string(131, '\xaa'),
                 "This is a test using a larger than block-size key and a larger than block-size "
                 "data. The key needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, TakesItsMessageInParts) {
  const Hmac key(std::as_bytes(std::span("Jefe", 4)));
  EXPECT_EQ(key(std::string_view("what do ya "), std::string_view("want for nothing?")),
            key(std::string_view("what do ya want for nothing?")));
}

TEST(EqualSecrets, ComparesEveryByte) {
  std::array<std::byte, 32> a{}, b{};
  EXPECT_TRUE(equal_secrets(a, b));
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] ^= std::byte(1);
    EXPECT_FALSE(equal_secrets(a, b));
    b[i] ^= std::byte(1);
  }
  EXPECT_FALSE(equal_secrets(a, std::span(b).first(31)));
}

}  // namespace
}  // namespace ashlar::control
