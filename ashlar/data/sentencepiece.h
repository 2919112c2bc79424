// Tokenizers of the sentencepiece library: reads models and trains new ones.
//
// Source  Kudo and Richardson 2018, arXiv 1808.06226; BPE: Sennrich et al. 2016; unigram: Kudo
//         2018.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/text_source.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

// Opens a serialized model.  kData if it is not one, or lacks an end-of-sequence or unknown piece.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string model, const std::string& what);

struct TokenizerTraining {
  enum class Kind : uint8_t { kBpe, kUnigram };
  Kind kind = Kind::kBpe;
  int64_t vocab_size = 8192;  // all ids: 4 special ones, 256 bytes, then the learned pieces
  double character_coverage = 0.9995;  // rarer characters are spelled in bytes
  int64_t max_lines = 200'000;         // larger inputs are sampled evenly, to bound time and memory
  TextOptions text = {};
};

// The most bytes of text without spaces, in runs longer than a line may be, that training reads,
// since each takes about 110 bytes of memory.  Of more it reads an even sample, and the log says
// so.
inline constexpr int64_t kMaxUnspacedBytes = 8 << 20;

// Learns a model from text files (text_source.h) and returns its bytes.  Texts survive encode and
// decode unchanged: there is no normalisation, text without a piece (line ends too) is spelled in
// bytes, and digits are separate.  Special ids: 0 pad, 1 eos, 2 bos, 3 unk.  The result depends on
// the input and the settings only, not on the machine.
//
// Errors  kConfig: a vocabulary that is too small for the characters or too large for the text,
//         with the nearest legal size if the library gives it; kData, kStorage from the input.
std::string train_sentencepiece(FileSystem& files, std::span<const std::string> inputs,
                                const TokenizerTraining& training, Log& log);

}  // namespace ashlar::data
