#include "ashlar/data/prepare.h"

#include <algorithm>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/data/indexed.h"

namespace ashlar::data {
namespace {

// A batch of documents is tokenized together when it holds so much text, or so many documents.
constexpr size_t kBatchBytes = 2 << 20;
constexpr size_t kBatchDocuments = 4096;
constexpr int64_t kGrain = 16;  // documents a task

std::string tokenizer_path(const std::string& prefix) {
  return prefix + ".tokenizer.model";
}

int64_t check(FileSystem& files, std::span<const std::string> inputs) {
  ASHLAR_REQUIRE(!inputs.empty(), kConfig, "no input file is given; expected at least one text");
  int64_t total_bytes = 0;
  for (const std::string& input : inputs) {
    const auto info = files.stat(input, Links::kFollow);
    ASHLAR_REQUIRE(info, kData, "{}: there is no such file; expected a text file", input);
    ASHLAR_REQUIRE(info->type == FileInfo::Type::kFile, kData,
                   "{}: it is not a regular file (a directory or a device); expected a text "
                   "file",
                   input);
    total_bytes += info->size_bytes;
  }
  return total_bytes;
}

// Tokenizes documents in batches and hands them on in the order they came.
class Tokenization {
 public:
  Tokenization(const Tokenizer& tokenizer, int32_t bos_id, Threads& threads, IndexedWriter& writer)
      : tokenizer_(tokenizer), bos_id_(bos_id), threads_(threads), writer_(writer) {}

  void add(std::string text) {
    text_bytes_ += text.size();
    texts_.push_back(std::move(text));
    if (text_bytes_ >= kBatchBytes || texts_.size() >= kBatchDocuments) flush();
  }

  void flush() {
    ids_.resize(texts_.size());
    // In any order on the threads, each document into its own place.
    parallel_for(threads_, static_cast<int64_t>(texts_.size()), kGrain,
                 [&](int64_t begin, int64_t end) {
                   for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
                     ids_[i] = tokenizer_.encode(texts_[i]);
                 });
    for (std::vector<int32_t>& ids : ids_) {
      if (bos_id_ >= 0) ids.insert(ids.begin(), bos_id_);
      ids.push_back(tokenizer_.eos_id());
      writer_.add(ids);
    }
    texts_.clear();
    text_bytes_ = 0;
  }

 private:
  const Tokenizer& tokenizer_;
  int32_t bos_id_;  // -1: none
  Threads& threads_;
  IndexedWriter& writer_;
  std::vector<std::string> texts_;
  std::vector<std::vector<int32_t>> ids_;
  size_t text_bytes_ = 0;
};

void warn_of_repairs(const TextSource& source, const std::string& path, Log& log) {
  const Replacements& bad = source.replacements();
  if (bad.count > 0)
    log.warn(
        "{}: {} byte sequences are not UTF-8 and became U+FFFD; the first is in the document at "
        "line {} (byte {})",
        path, bad.count, bad.line, bad.byte);
}

std::vector<Sidecar::Input> write_tokens(FileSystem& files, std::span<const std::string> inputs,
                                         const Tokenizer& tokenizer, int64_t total_bytes,
                                         IndexedWriter& writer, Threads& threads, Log& log,
                                         BadDocuments bad, int32_t bos_id) {
  Progress progress(log, "tokenizing", total_bytes, "B");
  Tokenization tokenization(tokenizer, bos_id, threads, writer);
  std::vector<Sidecar::Input> read;
  Skipped skipped;
  int64_t bytes_before = 0;  // of the inputs that are read already
  for (const std::string& path : inputs) {
    TextSource source(files, path, bad);
    TextDocument document;
    Sidecar::Input input{path, files.stat(path, Links::kFollow)->size_bytes, 0};
    while (source.next(document)) {
      ++input.documents;
      tokenization.add(std::move(document.text));
      progress.set(bytes_before + source.stored_done());
    }
    warn_of_repairs(source, path, log);
    skipped.add(source.skipped());
    bytes_before += input.bytes;
    read.push_back(std::move(input));
  }
  tokenization.flush();
  ASHLAR_REQUIRE(writer.num_documents() > 0, kData,
                 "{}{}: no document in it; expected text that is not blank{}", inputs.front(),
                 inputs.size() > 1 ? " and the other inputs" : "", tell_skipped(skipped));
  if (skipped.count > 0)
    log.warn("{} documents are tokenized{}", writer.num_documents(), tell_skipped(skipped));
  return read;
}

Outputs outputs_of(FileSystem& files, std::span<const std::string> inputs,
                   const Tokenizer& tokenizer, const std::string& prefix, Existing existing) {
  std::vector<std::string> read(inputs.begin(), inputs.end());
  read.push_back(tokenizer.name());  // its path, if it has one
  return Outputs(files,
                 {tokenizer_path(prefix), prefix + ".json", prefix + ".bin", prefix + ".idx"}, read,
                 existing);
}

DatasetInfo describe(const IndexedDataset& dataset) {
  const Index& index = dataset.index();
  DatasetInfo info;
  info.prefix = dataset.prefix();
  info.documents = index.num_documents();
  info.sequences = index.num_sequences();
  info.tokens = index.num_tokens();
  info.token_type = index.type();
  info.bin_bytes = info.tokens * size_of(info.token_type);
  info.fingerprint = dataset.fingerprint();
  info.sidecar = dataset.sidecar();
  info.shortest_document = info.tokens;
  for (int64_t d = 0; d < info.documents; ++d) {
    info.shortest_document = std::min(info.shortest_document, index.document_length(d));
    info.longest_document = std::max(info.longest_document, index.document_length(d));
  }
  return info;
}

}  // namespace

DatasetInfo prepare(FileSystem& files, std::span<const std::string> inputs,
                    const Tokenizer& tokenizer, const std::string& prefix, Threads& threads,
                    Log& log, const PrepareOptions& options) {
  Outputs outputs = outputs_of(files, inputs, tokenizer, prefix, options.existing);
  const int64_t total_bytes = check(files, inputs);
  for (const std::string& left : outputs.left_behind())
    log.warn("{} was left by a run that was killed, or another one is writing it", left);
  // An added token that begins texts may have an id above those of the model.
  const int64_t num_ids = std::max<int64_t>(tokenizer.vocab_size(), int64_t(options.bos_id) + 1);
  IndexedWriter writer(outputs, prefix, token_type_for(num_ids));
  Sidecar sidecar;
  sidecar.inputs = write_tokens(files, inputs, tokenizer, total_bytes, writer, threads, log,
                                options.bad, options.bos_id);
  writer.seal();
  sidecar.tokenizer_kind = tokenizer.kind();
  sidecar.tokenizer_fingerprint = tokenizer.fingerprint();
  sidecar.vocab_size = num_ids;
  sidecar.eos_id = tokenizer.eos_id();
  sidecar.bos_id = options.bos_id;
  sidecar.documents = writer.num_documents();
  sidecar.tokens = writer.num_tokens();
  sidecar.token_type = name_of(token_type_for(num_ids));
  sidecar.bin_crc32c = writer.bin_crc32c();
  outputs.write(tokenizer_path(prefix), tokenizer.bytes());
  outputs.write(prefix + ".json", format_sidecar(sidecar));
  outputs.publish();
  return inspect_dataset(files, prefix);
}

DatasetInfo inspect_dataset(FileSystem& files, const std::string& prefix) {
  return describe(IndexedDataset(files, prefix));
}

std::unique_ptr<Tokenizer> tokenizer_of_dataset(FileSystem& files, const std::string& prefix) {
  const std::string path = tokenizer_path(prefix);
  ASHLAR_REQUIRE(files.stat(path, Links::kFollow), kData,
                 "{}: there is no such file; expected the tokenizer that {} was prepared with (or "
                 "name one in data.tokenizer)",
                 path, prefix);
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(files, path);
  if (const std::string json = prefix + ".json"; files.stat(json, Links::kFollow)) {
    const Sidecar sidecar = load_sidecar(files, json);
    ASHLAR_REQUIRE(tokenizer->fingerprint() == sidecar.tokenizer_fingerprint, kData,
                   "{}: the tokenizer's fingerprint is {:016x}; expected {:016x}, which {} was "
                   "prepared with",
                   path, tokenizer->fingerprint(), sidecar.tokenizer_fingerprint, prefix);
  }
  return tokenizer;
}

}  // namespace ashlar::data
