// Turns rows of JSON into ids and a mask of those that are to be learned.
//
// Text is cut where the mask changes, and each part is encoded by itself, as a model meets it that
// is given the prompt and continues.  Names of special tokens in it become their ids.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

// The content of a row of the input.
enum class RowFormat : uint8_t { kText, kChat, kCompletion };

struct RowOptions {
  RowFormat format = RowFormat::kText;
  std::string chat_template = {};  // a file or a directory; "": the directory of the tokenizer
  bool train_on_input = false;     // learns the prompts, too
};

struct EncodedRow {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;  // 1: the id is a target
};

class RowEncoder {
 public:
  // Requires a format other than kText.  kData: those of chat_files.h and chat_text.h.
  RowEncoder(FileSystem& files, const Tokenizer& tokenizer, const RowOptions& options);
  ~RowEncoder();

  int64_t num_ids() const;
  // Whether a template wrote the date of today.
  bool asked_for_time() const { return asked_for_time_; }
  // The row ends with the tokenizer's eos.  After a completion it is learned; if it is added to a
  // chat, whose template does not end with it, it is not.  Threads: may be called from several at
  // once.  Errors: kData, beginning with `where`.
  EncodedRow encode(std::string_view line, const std::string& where) const;

 private:
  struct Chats;
  void append(std::string_view text, bool learned, EncodedRow& row) const;
  void append_chat(const Ordered& chat, EncodedRow& row) const;

  const Tokenizer& tokenizer_;
  const RowOptions options_;
  std::unique_ptr<const Chats> chats_;
  mutable std::atomic<bool> asked_for_time_ = false;
};

}  // namespace ashlar::data
