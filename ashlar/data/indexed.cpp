#include "ashlar/data/indexed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"

namespace ashlar::data {
namespace {

constexpr size_t kWriteBufferBytes = 1 << 20;

template <typename Function>
void with_type(TokenType type, Function function) {
  switch (type) {
    case TokenType::kU8:
      return function(uint8_t{});
    case TokenType::kI8:
      return function(int8_t{});
    case TokenType::kI16:
      return function(int16_t{});
    case TokenType::kU16:
      return function(uint16_t{});
    case TokenType::kI32:
      return function(int32_t{});
    case TokenType::kI64:
      return function(int64_t{});
  }
}

// Describes tokens without an index, by their first bytes.
std::string_view kind_of_tokens(FileSystem& files, const std::string& path) {
  constexpr uint32_t kLlmC[] = {20240520, 20240801};  // GPT-2's ids, Llama 3's
  constexpr std::string_view kNumPy = "\x93NUMPY";
  const auto file = files.open(path);
  std::array<std::byte, 8> head{};
  file->read_at(std::span(head).first(static_cast<size_t>(std::min<int64_t>(8, file->size()))), 0);
  uint32_t magic;
  std::memcpy(&magic, head.data(), sizeof magic);
  if (std::ranges::count(kLlmC, magic) > 0) return "a token file of llm.c";
  if (std::memcmp(head.data(), kNumPy.data(), kNumPy.size()) == 0) return "a NumPy array";
  return path.ends_with(".bin") ? "a file of token ids alone, as nanoGPT writes" : "a file";
}

int64_t size_of_file(FileSystem& files, const std::string& path, const std::string& prefix) {
  const auto info = files.stat(path, LinkPolicy::kFollow);
  ASHLAR_REQUIRE(
      info, kData,
      "{}: there is no such file, so {} is not a prepared dataset; expected the --out of "
      "`ashlar data prepare`{}",
      path, prefix, path.ends_with(".idx") ? why_no_index(files, prefix) : "");
  ASHLAR_REQUIRE(info->size_bytes > 0, kData, "{}: the file is empty; expected a prepared dataset",
                 path);
  return info->size_bytes;
}

}  // namespace

std::string why_no_index(FileSystem& files, const std::string& prefix) {
  for (const std::string_view ending : {".idx", ".bin", ".json", ".tokenizer.model"}) {
    const std::string shorter =
        prefix.substr(0, prefix.size() - std::min(prefix.size(), ending.size()));
    if (prefix.ends_with(ending) && files.stat(shorter + ".idx", LinkPolicy::kFollow))
      return fmt::format("; there is {}.idx: give {} without {}", shorter, shorter, ending);
  }
  for (const std::string& path : {prefix, prefix + ".bin"})
    if (const auto info = files.stat(path, LinkPolicy::kFollow);
        info && info->type == FileInfo::Type::kFile)
      return fmt::format(
          "; {} is {}: prepare the text it was made of, or write an index beside ids "
          "(docs/formats/dataset.md)",
          path, kind_of_tokens(files, path));
  return "";
}

IndexedWriter::IndexedWriter(Outputs& outputs, const std::string& prefix, TokenType type,
                             Masked masked)
    : outputs_(outputs), prefix_(prefix), type_(type), bin_(outputs.create(prefix + ".bin")) {
  buffer_.reserve(kWriteBufferBytes);
  if (masked == Masked::kNo) return;
  mask_file_ = outputs.create(prefix + ".mask");
  mask_.emplace();
}

void IndexedWriter::append(std::span<const int32_t> tokens) {
  ASHLAR_ASSERT(!mask_);
  append_tokens(tokens);
}

void IndexedWriter::append(std::span<const int32_t> tokens, std::span<const uint8_t> learned) {
  ASHLAR_ASSERT(mask_ && tokens.size() == learned.size());
  for (size_t i = 0; i < learned.size(); ++i) {
    const int64_t bit = (num_tokens_ + static_cast<int64_t>(i)) % 8;
    if (bit == 0 && mask_buffer_.size() >= kWriteBufferBytes) flush_mask();
    if (bit == 0) mask_buffer_.push_back(std::byte{0});
    if (learned[i] == 0) continue;
    mask_buffer_.back() |= std::byte{1} << bit;
    ++mask_->learned;
  }
  append_tokens(tokens);
}

void IndexedWriter::append_tokens(std::span<const int32_t> tokens) {
  with_type(type_, [&]<typename T>(T) {
    for (const int32_t token : tokens) {
      ASHLAR_ASSERT(token >= 0 && static_cast<uint64_t>(token) <= std::numeric_limits<T>::max());
      const T value = static_cast<T>(token);
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      buffer_.insert(buffer_.end(), bytes, bytes + sizeof value);
    }
  });
  for (auto left = static_cast<int64_t>(tokens.size()); left > 0;) {
    if (sequence_tokens_ == kMaxSequenceTokens) {
      end_sequence();
      continued_.push_back(static_cast<int64_t>(lengths_.size()));
    }
    const int64_t count = std::min(left, kMaxSequenceTokens - sequence_tokens_);
    sequence_tokens_ += count;
    left -= count;
  }
  document_tokens_ += static_cast<int64_t>(tokens.size());
  num_tokens_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kWriteBufferBytes) flush();
}

void IndexedWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(std::exchange(sequence_tokens_, 0)));
}

void IndexedWriter::end_document() {
  end_sequence();
  ++num_documents_;
  longest_ = std::max(longest_, std::exchange(document_tokens_, 0));
}

void IndexedWriter::add(std::span<const int32_t> tokens) {
  append(tokens);
  end_document();
}

void IndexedWriter::flush() {
  bin_->write_at(buffer_, written_bytes_);
  crc_ = crc32c(buffer_, crc_);
  written_bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

// Requires that the last byte is full, or that nothing follows.
void IndexedWriter::flush_mask() {
  mask_file_->write_at(mask_buffer_, mask_written_bytes_);
  mask_->crc32c = crc32c(mask_buffer_, mask_->crc32c);
  mask_written_bytes_ += static_cast<int64_t>(mask_buffer_.size());
  mask_buffer_.clear();
}

void IndexedWriter::seal() {
  flush();
  bin_->sync();
  bin_->close();
  if (mask_) {
    flush_mask();
    mask_file_->sync();
    mask_file_->close();
  }
  outputs_.write(prefix_ + ".idx", format_index(type_, lengths_, continued_));
}

IndexedDataset::IndexedDataset(FileSystem& files, const std::string& prefix) : prefix_(prefix) {
  const std::string idx = prefix + ".idx", bin = prefix + ".bin";
  size_of_file(files, idx, prefix);
  idx_ = files.map(idx);
  index_ = parse_index(idx_->bytes(), idx);
  const int64_t bin_bytes = size_of_file(files, bin, prefix);
  const int64_t expected = index_.num_tokens() * size_of(index_.type());
  ASHLAR_REQUIRE(bin_bytes == expected, kData,
                 "{}: the file has {} bytes; expected {} for the {} {} tokens of {}", bin,
                 bin_bytes, expected, index_.num_tokens(), name_of(index_.type()), idx);
  bin_ = files.map(bin);
  fingerprint_ = xxh3_64(idx_->bytes());
  if (const std::string path = prefix + ".json"; files.stat(path, LinkPolicy::kFollow)) {
    sidecar_ = load_sidecar(files, path);
    ASHLAR_REQUIRE(
        sidecar_->documents == index_.num_documents() && sidecar_->tokens == index_.num_tokens() &&
            sidecar_->token_type == name_of(index_.type()),
        kData,
        "{}: it tells of {} documents and {} {} tokens; expected the {} documents and {} "
        "{} tokens of {}",
        path, sidecar_->documents, sidecar_->tokens, sidecar_->token_type, index_.num_documents(),
        index_.num_tokens(), name_of(index_.type()), idx);
    fingerprint_ = splitmix64(fingerprint_ ^ sidecar_->tokenizer_fingerprint);
    fingerprint_ = splitmix64(fingerprint_ ^ sidecar_->bin_crc32c);
    if (sidecar_->mask) map_mask(files);
  }
}

void IndexedDataset::map_mask(FileSystem& files) {
  const std::string path = prefix_ + ".mask";
  const int64_t bytes = size_of_file(files, path, prefix_);
  ASHLAR_REQUIRE(
      bytes == mask_bytes(index_.num_tokens()), kData,
      "{}: the file has {} bytes; expected {}, a bit for each of the {} tokens of {}.idx", path,
      bytes, mask_bytes(index_.num_tokens()), index_.num_tokens(), prefix_);
  mask_ = files.map(path);
  fingerprint_ = splitmix64(fingerprint_ ^ sidecar_->mask->crc32c);
}

bool IndexedDataset::is_learned(int64_t token) const {
  ASHLAR_ASSERT(token >= 0 && token < index_.num_tokens());
  if (!mask_) return true;
  const std::byte eight = mask_->bytes()[static_cast<size_t>(token / 8)];
  return (eight >> (token % 8) & std::byte{1}) != std::byte{0};
}

void IndexedDataset::read(int64_t begin, int64_t vocab_size, std::span<int32_t> out,
                          std::string_view model) const {
  const auto count = static_cast<int64_t>(out.size());
  ASHLAR_ASSERT(begin >= 0 && begin <= index_.num_tokens() - count);
  with_type(index_.type(), [&]<typename T>(T) {
    const std::byte* tokens = bin_->bytes().data() + begin * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      T token;
      std::memcpy(&token, tokens + i * static_cast<int64_t>(sizeof(T)), sizeof token);
      const int64_t id = token;
      ASHLAR_REQUIRE(
          id >= 0 && id < vocab_size, kData,
          "{}.bin: token {} is {}; expected ids from 0 to {} (the vocabulary of {} has {})",
          prefix_, begin + i, id, vocab_size - 1, model, vocab_size);
      out[static_cast<size_t>(i)] = static_cast<int32_t>(id);
    }
  });
}

}  // namespace ashlar::data
