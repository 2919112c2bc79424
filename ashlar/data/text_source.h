// The documents of a text file, one after the other, in bounded memory.
//
//   NAME.jsonl   one JSON object a line; the document is its string member "text"; empty lines are
//                skipped, other members ignored
//   any other    plain text: documents are separated by blank lines (only spaces, tabs) or by form
//                feeds; line ends become "\n", the last one of a document is dropped
//   + .gz .dz    either of them packed with gzip (open_bytes looks at the content, this at the
//                name)
//
// Documents without a character are skipped.  A byte order mark at the start of a file is dropped.
// Anything else (content.h: packed by others, tables, JSON arrays, UTF-16, binary data) is kData.
//
// UTF-8   JSON must be UTF-8.  In plain text an invalid sequence becomes U+FFFD and is counted (old
//         corpora hold a few); more than 16 of them, if they are more than one in 1,000 bytes read,
//         is kData: such a file is no UTF-8 text.
// Bad     a document that is no JSON object with a text, or not UTF-8, is kData; with kSkip it is
//         left out and counted (plain text is then not repaired).
// Errors  kStorage from reading; kData "FILE line N (byte B): found; expected": damaged gzip, not
//         JSON, no "text", not UTF-8, a line or document above kMaxDocumentBytes.  Bytes count from
//         0 in the unpacked text, lines from 1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/core/utf8.h"
#include "ashlar/data/byte_source.h"

namespace ashlar::data {

inline constexpr int64_t kMaxDocumentBytes = 64 << 20;

struct TextDocument {
  std::string text;
  int64_t line = 0;  // where it starts
  int64_t byte = 0;
};

struct Replacements {  // invalid UTF-8 that became U+FFFD
  int64_t count = 0;
  int64_t line = 0, byte = 0;  // start of the document that held the first
};

enum class BadDocuments : uint8_t { kRefuse, kSkip };

struct Skipped {  // bad documents that were left out
  int64_t count = 0;
  std::string first;  // where the first stands and what is wrong with it
  void add(const Skipped& more);
};

// "; 3 bad documents were left out, the first: ..."; "" if none was.
std::string tell_skipped(const Skipped& skipped);

class TextSource {
 public:
  TextSource(FileSystem& files, const std::string& path, BadDocuments bad = BadDocuments::kRefuse);
  bool next(TextDocument& document);  // false: the end
  int64_t stored_done() const;        // bytes of the stored file read so far, for progress
  const Replacements& replacements() const { return replacements_; }
  const Skipped& skipped() const { return skipped_; }

 private:
  struct Line {
    std::string text;
    int64_t number = 0, byte = 0;
  };
  bool next_line();  // into line_
  bool fill();
  bool next_plain(TextDocument& document);
  bool next_json(TextDocument& document);
  bool read_plain(TextDocument& document);
  void read_json(TextDocument& document) const;  // of line_
  void repair(TextDocument& document, const Utf8Report& report);
  std::string place(int64_t line, int64_t byte) const;

  std::string path_;
  std::unique_ptr<ByteSource> bytes_;
  bool json_;
  BadDocuments bad_;
  std::string buffer_;  // unpacked bytes; [at_, size) not yet taken
  size_t at_ = 0;
  int64_t num_lines_ = 0, byte_ = 0;  // taken so far
  Line line_;
  bool line_pending_ = false;  // line_ holds what follows a form feed
  Replacements replacements_;
  Skipped skipped_;
};

}  // namespace ashlar::data
