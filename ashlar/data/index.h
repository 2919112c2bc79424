// The .idx file of a Megatron indexed dataset, parsed in place from untrusted bytes.
//
//   9 bytes "MMIDIDX\0\0"; u64 version = 1; u8 type; u64 S; u64 D; i32 lengths[S]; i64 offsets[S];
//   i64 documents[D]; optional i8 modes[S].  Little-endian, unaligned.  docs/formats/dataset.md.
//
// offsets are bytes in the .bin file; documents[d] is the first sequence of document d, and the
// last entry is S, so there are D - 1 documents.  Tokens count from 0 over the whole .bin file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ashlar::data {

enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);  // "u16"
// The narrowest type that Megatron uses for a vocabulary: u16 below 65,500 ids, else i32.
TokenType token_type_for(int64_t vocab_size);

// A token by its document and its place there.
struct TokenPosition {
  int64_t document;
  int64_t offset;  // in tokens, from the document's start
  friend bool operator==(const TokenPosition&, const TokenPosition&) = default;
};

// A view of the bytes that it was parsed from, which must outlive it.  Every entry has been
// checked.
class DatasetIndex {
 public:
  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t length(int64_t sequence) const;  // tokens
  // The first token of a document; document == num_documents() gives num_tokens().
  int64_t document_start(int64_t document) const;
  int64_t document_length(int64_t document) const;
  // Requires token < num_tokens(); a binary search over the documents.
  TokenPosition locate(int64_t token) const;

 private:
  friend DatasetIndex parse_index(std::span<const std::byte> bytes, const std::string& file);
  void check_lengths(const std::string& file);
  void check_documents(const std::string& file) const;
  int64_t offset(int64_t sequence) const;
  int64_t first_sequence(int64_t document) const;

  TokenType type_ = TokenType::kU16;
  int64_t num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* documents_ = nullptr;
};

// kData, with the file, the field, its value and what was expected, for anything else: a file that
// is cut or too long, an unknown type, counts that overflow or do not fit the size of the file,
// negative lengths, gaps between sequences, documents out of order, no token at all.  Cost: one
// pass over the file.
DatasetIndex parse_index(std::span<const std::byte> bytes, const std::string& file);

// The longest sequence, since lengths have 32 bits; longer documents are several sequences.
inline constexpr int64_t kMaxSequenceTokens = 1 << 30;

// The bytes of an .idx file.  `continued`: the numbers, ascending, of the sequences that continue
// the document of the sequence before; every other sequence begins one.
std::string format_index(TokenType type, std::span<const int32_t> lengths,
                         std::span<const int64_t> continued = {});

}  // namespace ashlar::data
