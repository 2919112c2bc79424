// How it works.  Nothing is copied: an Index holds three pointers into the bytes of the file, to
// lengths, offsets and documents, and every accessor loads one number.  parse_index checks in the
// order in which each step makes the next one safe:
//
//   header      magic, version, type; both counts up to 2^56, so that sizes computed from them fit
//   file size   exactly that of the counts, so that every entry of the arrays lies in the file
//   lengths     each offset is the sum of the lengths before it: sequences lie without gaps
//   documents   they rise from 0 to the number of sequences
//
// After that document_start() never decreases, from 0 to num_tokens(), as the binary search of
// locate() requires.  Documents may be empty.
#include "ashlar/data/index.h"

#include <bit>
#include <cstring>
#include <limits>

#include "ashlar/core/error.h"

namespace ashlar::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is read in place");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kIndexVersion = 1;
constexpr uint64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;
constexpr uint64_t kHeaderBytes = 34;
// Largest S and D: the file size that they give, 34 + 13 S + 8 D, stays below 2^63.
constexpr uint64_t kMaxCount = uint64_t{1} << 56;

// The arrays are not aligned: 34 bytes of header lie before them.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void store(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

bool is_known(uint8_t code) {
  return (code >= 1 && code <= 5) || code == 8;
}

std::string printable_bytes(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) out += fmt::format("{:02x}", std::to_integer<int>(b));
  return out;
}

}  // namespace

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  ASHLAR_ASSERT(false);
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kI16:
      return "i16";
    case TokenType::kU16:
      return "u16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
  }
  ASHLAR_ASSERT(false);
}

TokenType token_type_for(int64_t vocab_size) {
  constexpr int64_t kMegatronLimit = 65'500;
  return vocab_size < kMegatronLimit ? TokenType::kU16 : TokenType::kI32;
}

int64_t DatasetIndex::length(int64_t sequence) const {
  return load<int32_t>(lengths_ + 4 * sequence);
}

int64_t DatasetIndex::offset(int64_t sequence) const {
  return load<int64_t>(offsets_ + 8 * sequence);
}

int64_t DatasetIndex::first_sequence(int64_t document) const {
  return load<int64_t>(documents_ + 8 * document);
}

int64_t DatasetIndex::document_start(int64_t document) const {
  const int64_t sequence = first_sequence(document);
  // There is no offset for the end of the last sequence.
  return sequence == num_sequences_ ? num_tokens_ : offset(sequence) / size_of(type_);
}

int64_t DatasetIndex::document_length(int64_t document) const {
  return document_start(document + 1) - document_start(document);
}

TokenPosition DatasetIndex::locate(int64_t token) const {
  // document_start(low) <= token < document_start(high).  The answer is the last document that does
  // not begin behind the token, so never an empty one.
  int64_t low = 0, high = num_documents_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= token ? low : high) = middle;
  }
  return {low, token - document_start(low)};
}

void DatasetIndex::check_lengths(const std::string& file) {
  const int64_t size_bytes = size_of(type_);
  // In bytes.  2^56 sequences of 2^34 bytes would overflow, so that each sum is checked.
  int64_t expected = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    ASHLAR_REQUIRE(length(i) >= 0, kData, "{}: lengths[{}] is {}; expected 0 or more", file, i,
                   length(i));
    ASHLAR_REQUIRE(offset(i) == expected, kData,
                   "{}: offsets[{}] is {}; expected {}, the bytes of all sequences before it ({} "
                   "tokens are {} bytes each)",
                   file, i, offset(i), expected, name_of(type_), size_bytes);
    const int64_t bytes = length(i) * size_bytes;
    ASHLAR_REQUIRE(expected <= std::numeric_limits<int64_t>::max() - bytes, kData,
                   "{}: lengths[{}] is {}; the sum of all lengths is above 2^63 bytes", file, i,
                   length(i));
    expected += bytes;
  }
  num_tokens_ = expected / size_bytes;
  ASHLAR_REQUIRE(num_tokens_ > 0, kData,
                 "{}: the {} sequences hold 0 tokens; expected at least one token", file,
                 num_sequences_);
}

void DatasetIndex::check_documents(const std::string& file) const {
  ASHLAR_REQUIRE(first_sequence(0) == 0, kData, "{}: documents[0] is {}; expected 0", file,
                 first_sequence(0));
  for (int64_t d = 1; d <= num_documents_; ++d)
    ASHLAR_REQUIRE(
        first_sequence(d) >= first_sequence(d - 1) && first_sequence(d) <= num_sequences_, kData,
        "{}: documents[{}] is {}; expected {} (the entry before it) to {}", file, d,
        first_sequence(d), first_sequence(d - 1), num_sequences_);
  ASHLAR_REQUIRE(first_sequence(num_documents_) == num_sequences_, kData,
                 "{}: documents[{}], the last, is {}; expected {}, the number of sequences", file,
                 num_documents_, first_sequence(num_documents_), num_sequences_);
}

DatasetIndex parse_index(std::span<const std::byte> bytes, const std::string& file) {
  const uint64_t size = bytes.size();
  ASHLAR_REQUIRE(size >= kHeaderBytes, kData,
                 "{}: the file has {} bytes; expected at least the {} of the header", file, size,
                 kHeaderBytes);
  constexpr std::string_view kOldMagic("TNTIDX\0\0", 8);
  ASHLAR_REQUIRE(std::memcmp(bytes.data(), kOldMagic.data(), kOldMagic.size()) != 0, kData,
                 "{}: it is an index of Megatron's old cached or lazy datasets (TNTIDX); expected "
                 "\"MMIDIDX\": prepare the text again, with --dataset-impl mmap there or with "
                 "`ashlar data prepare`",
                 file);
  ASHLAR_REQUIRE(std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0, kData,
                 "{}: bytes 0 to 8 are {}; expected {} (\"MMIDIDX\", a Megatron index)", file,
                 printable_bytes(bytes.first(kMagic.size())),
                 printable_bytes(std::as_bytes(std::span(kMagic))));
  const auto version = load<uint64_t>(bytes.data() + kVersionAt);
  ASHLAR_REQUIRE(version == kIndexVersion, kData, "{}: version (byte {}) is {}; expected {}", file,
                 kVersionAt, version, kIndexVersion);
  const auto code = load<uint8_t>(bytes.data() + kTypeAt);
  ASHLAR_REQUIRE(is_known(code), kData,
                 "{}: token type (byte {}) is {}; expected 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 "
                 "(i64) or 8 (u16)",
                 file, kTypeAt, code);
  const auto sequences = load<uint64_t>(bytes.data() + kSequencesAt);
  const auto documents = load<uint64_t>(bytes.data() + kDocumentsAt);
  ASHLAR_REQUIRE(sequences >= 1 && sequences <= kMaxCount, kData,
                 "{}: sequence count (byte {}) is {}; expected 1 to 2^56", file, kSequencesAt,
                 sequences);
  ASHLAR_REQUIRE(documents >= 2 && documents <= kMaxCount, kData,
                 "{}: document index count (byte {}) is {}; expected 2 (one document) to 2^56",
                 file, kDocumentsAt, documents);
  const uint64_t plain = kHeaderBytes + 12 * sequences + 8 * documents;  // without modes
  ASHLAR_REQUIRE(size == plain || size == plain + sequences, kData,
                 "{}: the file has {} bytes; expected {} for its {} sequences and {} document "
                 "entries (or {} with modes): it is cut or damaged",
                 file, size, plain, sequences, documents, plain + sequences);

  DatasetIndex index;
  index.type_ = static_cast<TokenType>(code);
  index.num_sequences_ = static_cast<int64_t>(sequences);
  index.num_documents_ = static_cast<int64_t>(documents) - 1;
  index.lengths_ = bytes.data() + kHeaderBytes;
  index.offsets_ = index.lengths_ + 4 * sequences;
  index.documents_ = index.offsets_ + 8 * sequences;
  index.check_lengths(file);
  index.check_documents(file);
  return index;
}

std::string format_index(TokenType type, std::span<const int32_t> lengths,
                         std::span<const int64_t> continued) {
  const uint64_t count = lengths.size();
  std::string out;
  out.reserve(kHeaderBytes + 20 * count + 8);
  out.append(kMagic);
  store(out, kIndexVersion);
  store(out, static_cast<uint8_t>(type));
  store(out, count);
  store(out, count - continued.size() + 1);
  for (const int32_t length : lengths) store(out, length);
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    store(out, offset);
    offset += length * size_of(type);
  }
  for (uint64_t s = 0, skipped = 0; s <= count; ++s) {
    const bool goes_on =
        skipped < continued.size() && continued[skipped] == static_cast<int64_t>(s);
    if (goes_on)
      ++skipped;
    else
      store(out, static_cast<int64_t>(s));
  }
  return out;
}

}  // namespace ashlar::data
