// Turns text files into a prepared dataset, and describes prepared datasets.
//
//   PREFIX.bin, PREFIX.idx    tokens (indexed.h); every document ends with the tokenizer's eos, and
//                             begins with bos_id if it is given
//   PREFIX.mask               for chats and completions: which tokens are learned (indexed.h)
//   PREFIX.json               sidecar.h
//   PREFIX.tokenizer.model    the tokenizer, so that the dataset needs nothing else
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/core/output.h"
#include "ashlar/core/threads.h"
#include "ashlar/data/index.h"
#include "ashlar/data/row_encoder.h"
#include "ashlar/data/sidecar.h"
#include "ashlar/data/text_source.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

struct DatasetInfo {
  std::string prefix;
  int64_t documents = 0, sequences = 0, tokens = 0;
  int64_t shortest_document = 0, longest_document = 0;  // tokens
  int64_t bin_bytes = 0;
  TokenType token_type = TokenType::kU16;
  uint64_t fingerprint = 0;
  std::optional<Sidecar> sidecar;  // absent: a foreign dataset
  // The decoded beginning of the first document; "" if there is no tokenizer beside the dataset.
  std::string beginning;
};

struct PrepareOptions {
  TextOptions text = {};
  RowOptions rows = {};  // a format other than kText: the inputs are JSON lines
  Existing existing = Existing::kRefuseUnlessForced;  // the files of an earlier dataset
  int32_t bos_id = -1;                                // begins every document; -1: none
};

// Reads the inputs in the order given, tokenizes on all threads and writes in order: the bytes
// written do not depend on the number of threads.  The log gets a progress line and warnings: of
// repaired text, bad documents that were left out, files read as JSON lines by their content,
// inputs without a document, chats with nothing to learn, which are left out, and those of
// text_marks.h.  Memory: some megabytes, and 4 bytes per document of any length.
//
// Errors  kConfig: no input; one of the names cannot be written (core/output.h: inputs, the
//         tokenizer's file and those of text_files.h beside it are never replaced).  kData: those
//         of text_source.h and row_encoder.h, an input that does not exist, no text at all.
//         kStorage.  After an error, none of the files exists that did not exist before.
DatasetInfo prepare(FileSystem& files, std::span<const std::string> inputs,
                    const Tokenizer& tokenizer, const std::string& prefix, Threads& threads,
                    Log& log, const PrepareOptions& options = {});

// Errors of IndexedDataset.
DatasetInfo inspect_dataset(FileSystem& files, const std::string& prefix);

// The tokenizer that PREFIX was prepared with.  kData if its file is missing or is another
// tokenizer.
std::unique_ptr<Tokenizer> tokenizer_of_dataset(FileSystem& files, const std::string& prefix);

}  // namespace ashlar::data
