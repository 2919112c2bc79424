#include "ashlar/data/prepare.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/indexed.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/text_marks.h"

namespace ashlar::data {
namespace {

// A batch of documents is tokenized once it holds this much text, or this many documents.
constexpr size_t kBatchBytes = 8 << 20;
constexpr size_t kBatchDocuments = 4096;
constexpr int64_t kTaskBytes = 64 << 10;
// The parts in which a long document is encoded; longer ones take more time per byte.
constexpr size_t kEncodedBytes = 32 << 10;

std::string tokenizer_path(const std::string& prefix) {
  return prefix + ".tokenizer.model";
}

// Tokenizes documents in batches and hands them on in the order they came.
class Tokenization {
 public:
  // rows: encodes the documents, which are rows of JSON; null: they are texts.
  Tokenization(const Tokenizer& tokenizer, const RowEncoder* rows, const PrepareOptions& options,
               Threads& threads, IndexedWriter& writer)
      : tokenizer_(tokenizer), rows_(rows), options_(options), threads_(threads), writer_(writer) {}

  const Skipped& bad_rows() const { return bad_rows_; }
  const Skipped& unlearned_rows() const { return unlearned_rows_; }

  void add(TextDocument document, const std::string& path) {
    if (rows_)
      return push({std::move(document.text), false, true,
                   fmt::format("{} line {} (byte {})", path, document.line, document.byte)});
    if (document.begins && document.ends) return push_whole(std::move(document.text));
    if (document.begins) goes_on_ = false;
    carry_ += document.text;
    size_t done = 0;
    while (carry_.size() - done > kEncodedBytes) {
      const std::string_view rest = std::string_view(carry_).substr(done);
      const size_t size = part_of(rest.substr(0, complete_utf8(rest.substr(0, kEncodedBytes))));
      push({carry_.substr(done, size), std::exchange(goes_on_, true), false});
      done += size;
    }
    carry_.erase(0, done);
    if (document.ends) push({std::exchange(carry_, ""), goes_on_, true});
  }

  void flush() {
    if (rows_)
      flush_rows();
    else
      flush_texts();
    texts_.clear();
    text_bytes_ = 0;
  }

 private:
  struct Text {
    std::string text;
    bool goes_on, ends;  // with the document before it; its document
    std::string where = {};
  };

  // Runs body(i) for every text, in any order on the threads.
  void for_each_text(function_ref<void(size_t)> body) {
    const auto count = static_cast<int64_t>(texts_.size());
    const int64_t grain =
        std::max<int64_t>(1, count * kTaskBytes / std::max<int64_t>(1, int64_t(text_bytes_)));
    parallel_for(threads_, count, grain, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
    });
  }

  void flush_texts() {
    ids_.resize(texts_.size());
    for_each_text([&](size_t i) {
      ids_[i] = texts_[i].goes_on ? tokenizer_.encode_more(texts_[i].text)
                                  : tokenizer_.encode(texts_[i].text);
    });
    const int32_t bos[] = {options_.bos_id}, eos[] = {tokenizer_.eos_id()};
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (options_.bos_id >= 0 && !texts_[i].goes_on) writer_.append(bos);
      writer_.append(ids_[i]);
      if (!texts_[i].ends) continue;
      writer_.append(eos);
      writer_.end_document();
    }
  }

  void flush_rows() {
    std::vector<EncodedRow> rows(texts_.size());
    std::vector<std::string> faults(texts_.size());
    for_each_text([&](size_t i) {
      try {
        rows[i] = rows_->encode(texts_[i].text, texts_[i].where);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kData) throw;
        faults[i] = error.what();
      }
    });
    const int32_t bos[] = {options_.bos_id};
    constexpr uint8_t kNotLearned[] = {0};
    for (size_t i = 0; i < rows.size(); ++i) {
      ASHLAR_REQUIRE(faults[i].empty() || options_.text.bad == BadDocuments::kSkip, kData,
                     "{} (--skip-bad leaves such rows out)", faults[i]);
      const bool learns = std::ranges::count(rows[i].learned, 1) > 0;
      if (!faults[i].empty())
        bad_rows_.add({1, faults[i]});
      else if (!learns)
        unlearned_rows_.add({1, texts_[i].where});
      if (!learns) continue;
      if (options_.bos_id >= 0) writer_.append(bos, kNotLearned);
      writer_.append(rows[i].ids, rows[i].learned);
      writer_.end_document();
    }
  }

  // A long document is cut where that does not change its ids, for several threads.
  void push_whole(std::string text) {
    bool goes_on = false;
    std::string_view rest = text;
    while (rest.size() > 2 * kEncodedBytes) {
      const size_t most = complete_utf8(rest.substr(0, kEncodedBytes));
      const size_t size = tokenizer_.independent_part(rest.substr(0, most));
      if (size == 0) break;
      push({std::string(rest.substr(0, size)), std::exchange(goes_on, true), false});
      rest.remove_prefix(size);
    }
    if (goes_on) text.erase(0, text.size() - rest.size());
    push({std::move(text), goes_on, true});
  }

  void push(Text text) {
    text_bytes_ += text.text.size();
    texts_.push_back(std::move(text));
    if (text_bytes_ >= kBatchBytes || texts_.size() >= kBatchDocuments) flush();
  }

  const Tokenizer& tokenizer_;
  const RowEncoder* rows_;
  const PrepareOptions& options_;
  Threads& threads_;
  IndexedWriter& writer_;
  std::vector<Text> texts_;
  std::vector<std::vector<int32_t>> ids_;
  size_t text_bytes_ = 0;
  // For a document in parts: the text not encoded yet, and whether some of it was.
  std::string carry_;
  bool goes_on_ = false;
  Skipped bad_rows_, unlearned_rows_;
};

// Notable inputs, reported in one line for all of a kind.
class Surprises {
 public:
  void look_at(const TextSource& source, const std::string& path, int64_t documents) {
    if (source.content().by_content) add(by_content_, path);
    if (documents == 0 && source.skipped().count == 0) add(empty_, path);
  }
  void tell(Log& log) const {
    if (by_content_.count > 0)
      log.info("{} read as JSON lines, by {} content", named(by_content_),
               by_content_.count == 1 ? "its" : "their");
    if (empty_.count > 0) log.warn("{} without a document", named(empty_));
  }

 private:
  struct Files {
    int64_t count = 0;
    std::string first;
  };
  static void add(Files& files, const std::string& path) {
    if (files.count++ == 0) files.first = path;
  }
  static std::string named(const Files& files) {
    if (files.count == 1) return files.first + " is";
    return fmt::format("{} inputs ({} and others) are", format_thousands(files.count), files.first);
  }
  Files by_content_, empty_;
};

std::vector<Sidecar::Input> write_tokens(FileSystem& files, std::span<const std::string> inputs,
                                         const Tokenizer& tokenizer, int64_t total_bytes,
                                         IndexedWriter& writer, Threads& threads, Log& log,
                                         const RowEncoder* rows, const PrepareOptions& options) {
  Progress progress(log, "tokenizing", total_bytes, "B");
  Tokenization tokenization(tokenizer, rows, options, threads, writer);
  std::vector<Sidecar::Input> read;
  Skipped skipped;
  Surprises surprises;
  TextMarks marks(tokenizer.kind() == "sentencepiece", tokenizer.reads_added_tokens());
  int64_t bytes_before = 0;  // of the inputs that are read already
  for (const std::string& path : inputs) {
    TextSource source(files, path, options.text);
    TextDocument document;
    Sidecar::Input input{path, files.stat(path, LinkPolicy::kFollow)->size_bytes, 0};
    while (source.next(document)) {
      input.documents += document.begins;
      if (!rows) marks.look_at(document, !source.content().json_lines, path);
      tokenization.add(std::move(document), path);
      progress.set(bytes_before + source.stored_done());
    }
    warn_of_repairs(source, path, log);
    surprises.look_at(source, path, input.documents);
    skipped.add(source.skipped());
    bytes_before += input.bytes;
    read.push_back(std::move(input));
  }
  tokenization.flush();
  skipped.add(tokenization.bad_rows());
  ASHLAR_REQUIRE(writer.num_documents() > 0, kData,
                 "{}{}: no document in it; expected text that is not blank{}", inputs.front(),
                 inputs.size() > 1 ? " and the other inputs" : "", tell_skipped(skipped));
  if (const Skipped& none = tokenization.unlearned_rows(); none.count > 0)
    log.warn("{} rows without anything to learn were left out, the first: {}", none.count,
             none.first);
  if (skipped.count > 0)
    log.warn("{} documents are tokenized{}", writer.num_documents(), tell_skipped(skipped));
  surprises.tell(log);
  for (const std::string& line : marks.told()) log.warn("{}", line);
  return read;
}

Outputs outputs_of(FileSystem& files, std::span<const std::string> inputs,
                   const Tokenizer& tokenizer, const std::string& prefix,
                   const PrepareOptions& options, Masked masked) {
  std::vector<std::string> read(inputs.begin(), inputs.end());
  read.push_back(tokenizer.name());  // its path, if it has one
  if (files.stat(tokenizer.name(), LinkPolicy::kFollow))
    for (const auto& [name, path] : text_file_paths(tokenizer)) read.push_back(path);
  if (masked == Masked::kYes && !options.rows.chat_template.empty())
    read.push_back(options.rows.chat_template);
  return Outputs(files,
                 {tokenizer_path(prefix), prefix + ".json",
                  masked == Masked::kYes ? prefix + ".mask" : "", prefix + ".bin", prefix + ".idx"},
                 read, options.existing);
}

DatasetInfo describe(const IndexedDataset& dataset) {
  const DatasetIndex& index = dataset.index();
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

// The first tokens as text, without those that were added beside the tokenizer.
std::string beginning_of(FileSystem& files, const IndexedDataset& dataset) {
  constexpr int64_t kMostTokens = 40;
  if (!dataset.sidecar() || !files.stat(tokenizer_path(dataset.prefix()), LinkPolicy::kFollow))
    return "";
  const auto tokenizer = tokenizer_of_dataset(files, dataset.prefix());
  const int64_t length = dataset.index().document_length(0);
  std::vector<int32_t> ids(static_cast<size_t>(std::min(length, kMostTokens)));
  dataset.read(0, dataset.sidecar()->vocab_size, ids, "its tokenizer");
  std::erase_if(ids, [&](int32_t id) { return id >= tokenizer->vocab_size(); });
  return tokenizer->decode(ids);
}

}  // namespace

DatasetInfo prepare(FileSystem& files, std::span<const std::string> inputs,
                    const Tokenizer& tokenizer, const std::string& prefix, Threads& threads,
                    Log& log, const PrepareOptions& options) {
  ASHLAR_REQUIRE(tokenizer.eos_id() >= 0, kData,
                 "{}: no token of it ends a text (eos_token of tokenizer_config.json), but every "
                 "document of a dataset ends with one",
                 tokenizer.name());
  const Masked masked = options.rows.format == RowFormat::kText ? Masked::kNo : Masked::kYes;
  Outputs outputs = outputs_of(files, inputs, tokenizer, prefix, options, masked);
  const int64_t total_bytes = check_inputs(files, inputs, log);
  for (const std::string& left : outputs.left_behind())
    log.warn("{} was left by a run that was killed, or another one is writing it", left);
  std::unique_ptr<RowEncoder> rows;
  if (masked == Masked::kYes) rows = std::make_unique<RowEncoder>(files, tokenizer, options.rows);
  // An added token that begins texts may have an id above those of the model, as in chats.
  const int64_t num_ids = std::max(
      {tokenizer.vocab_size(), int64_t(options.bos_id) + 1, rows ? rows->num_ids() : int64_t{0}});
  IndexedWriter writer(outputs, prefix, token_type_for(num_ids), masked);
  Sidecar sidecar;
  sidecar.inputs = write_tokens(files, inputs, tokenizer, total_bytes, writer, threads, log,
                                rows.get(), options);
  writer.seal();
  if (rows && rows->asked_for_time())
    log.info("the chat template wrote the date of today into chats");
  sidecar.tokenizer_kind = tokenizer.kind();
  sidecar.tokenizer_fingerprint = tokenizer.fingerprint();
  sidecar.vocab_size = num_ids;
  sidecar.eos_id = tokenizer.eos_id();
  sidecar.bos_id = options.bos_id;
  sidecar.documents = writer.num_documents();
  sidecar.tokens = writer.num_tokens();
  sidecar.token_type = name_of(token_type_for(num_ids));
  sidecar.bin_crc32c = writer.bin_crc32c();
  sidecar.mask = writer.mask();
  outputs.write(tokenizer_path(prefix), tokenizer.bytes());
  outputs.write(prefix + ".json", format_sidecar(sidecar));
  outputs.publish();
  return inspect_dataset(files, prefix);
}

DatasetInfo inspect_dataset(FileSystem& files, const std::string& prefix) {
  const IndexedDataset dataset(files, prefix);
  DatasetInfo info = describe(dataset);
  info.beginning = beginning_of(files, dataset);
  return info;
}

std::unique_ptr<Tokenizer> tokenizer_of_dataset(FileSystem& files, const std::string& prefix) {
  const std::string path = tokenizer_path(prefix);
  ASHLAR_REQUIRE(files.stat(path, LinkPolicy::kFollow), kData,
                 "{}: there is no such file; expected the tokenizer that {} was prepared with (or "
                 "name one in data.tokenizer)",
                 path, prefix);
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(files, path);
  if (const std::string json = prefix + ".json"; files.stat(json, LinkPolicy::kFollow)) {
    const Sidecar sidecar = load_sidecar(files, json);
    ASHLAR_REQUIRE(tokenizer->fingerprint() == sidecar.tokenizer_fingerprint, kData,
                   "{}: the tokenizer's fingerprint is {:016x}; expected {:016x}, which {} was "
                   "prepared with",
                   path, tokenizer->fingerprint(), sidecar.tokenizer_fingerprint, prefix);
  }
  return tokenizer;
}

}  // namespace ashlar::data
