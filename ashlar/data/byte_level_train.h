// Learns a tokenizer.json from text: byte-level BPE, in the form of Qwen's models without a
// normalizer.
//
// Texts are cut into words by Qwen's expression, on all threads.  The words are counted, and
// learn_bpe() makes merges of their counts.  Vocabulary and merges are those that the trainer of
// the tokenizers library 0.23 learns from the same documents, given the same special tokens and all
// bytes.  Every text survives encode and decode.
//
// Ids     0 pad, 1 eos, 2 bos, 3 unk, which no text needs; 256 bytes in the order of their
//         characters; the learned tokens.
// Limits  A document of several parts is cut at borders of words, or, if 256 KiB hold none, where
//         the part ends.  A longer word than 4 KiB, of bytes as characters, is cut into parts of
//         this size, since every merge reads whole words; the library learns from it uncut.
// Memory  about 100 bytes for each different word, on each thread, and what learn_bpe() takes.
// Errors  kConfig: a vocabulary that is too small, or too large for the text, with the largest
//         possible size; kData, kStorage from the input.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/core/threads.h"
#include "ashlar/data/text_source.h"

namespace ashlar::data {

// The result does not depend on the number of threads.
std::string train_byte_level(FileSystem& files, std::span<const std::string> inputs,
                             int64_t vocab_size, const TextOptions& text, Threads& threads,
                             Log& log);

}  // namespace ashlar::data
