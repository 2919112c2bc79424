// Reads the documents of a text file one after the other, in bounded memory.
//
//   JSON lines   one JSON object a line; the document is its string member "text"; empty lines are
//                skipped, other members ignored
//   plain text   cut into documents by Documents; line ends become "\n", and a document's last line
//                end is dropped
//
// content.h tells which of the two a file is, and open_bytes() unpacks gzip, both by the content.
// Documents of spaces alone are skipped, and a byte order mark at the start of a file is dropped.
//
// Parts   A document that is a whole file may have any size and is returned in parts of kPartBytes,
//         cut between characters.  All others are returned whole.
// UTF-8   JSON must be UTF-8; an escaped half of a surrogate pair becomes U+FFFD and is counted.
//         In plain text an invalid sequence becomes U+FFFD and is counted (old corpora hold a few);
//         more than 16 of them, if they exceed one in 1,000 bytes read, are kData: such a file is
//         no UTF-8 text.
// Bad     A document that is no JSON object with a text, or has text that would become U+FFFD, is
//         kData or repaired as above; with kSkip it is left out and counted.
// Errors  kStorage from reading; kData "FILE line N (byte B): found; expected": damaged gzip, not
//         JSON, no "text", not UTF-8, a line or document above kMaxDocumentBytes that is not
//         returned in parts.  Bytes count from 0 in the unpacked text, lines from 1.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ashlar/core/log.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/byte_source.h"
#include "ashlar/data/content.h"
#include "ashlar/data/json_row.h"

namespace ashlar::data {

inline constexpr int64_t kMaxDocumentBytes = 64 << 20;
inline constexpr int64_t kPartBytes = 256 << 10;

// How plain text is cut into documents: a whole file, at blank lines (which hold only spaces and
// tabs), at form feeds, or line by line.
enum class Documents : uint8_t { kFile, kBlankLine, kLine };

enum class BadDocuments : uint8_t { kRefuse, kSkip };

struct TextOptions {
  BadDocuments bad = BadDocuments::kRefuse;
  Documents documents = Documents::kFile;
  InputFormat format = InputFormat::kDetect;
  bool whole_rows = false;  // JSON lines: a document is the line itself, as it stands
};

struct TextDocument {
  std::string text;
  int64_t line = 0;  // the line where it starts
  int64_t byte = 0;
  bool begins = true, ends = true;  // whether a part is the document's first, its last
};

struct Replacements {  // what became U+FFFD
  int64_t count = 0;
  int64_t line = 0, byte = 0;  // start of the document, or the part, that held the first
};

struct Skipped {  // bad documents that were left out
  int64_t count = 0;
  std::string first;  // the place of the first, and its fault
  void add(const Skipped& more);
};

// "; 3 bad documents were left out, the first: ..."; "" if none was.
std::string tell_skipped(const Skipped& skipped);

// The bytes of all inputs as stored.  kConfig without an input; kData if one does not exist or is
// no regular file.  Warns of a file that is given twice.
int64_t check_inputs(FileSystem& files, std::span<const std::string> inputs, Log& log);

class TextSource {
 public:
  TextSource(FileSystem& files, const std::string& path, const TextOptions& options = {});
  bool next(TextDocument& document);  // false: the end
  int64_t stored_done() const;        // bytes of the stored file read so far, for progress
  // JSON lines, and whether the content alone says so.
  const Content& content() const { return content_; }
  const Replacements& replacements() const { return replacements_; }
  const Skipped& skipped() const { return skipped_; }

 private:
  struct Line {
    std::string text;
    int64_t number = 0, byte = 0;
  };
  bool next_line();  // reads into line_
  bool fill();
  bool next_plain(TextDocument& document);
  bool next_json(TextDocument& document);
  bool read_separated(TextDocument& document);  // up to a blank line or form feed
  bool read_line(TextDocument& document);
  bool read_part(TextDocument& part);      // of the whole file
  void read_json(TextDocument& document);  // of line_
  bool skip_bad_file();
  void repair(TextDocument& document, const Utf8Report& report);
  void count_replacements(const TextDocument& document, int64_t count);
  std::string place(int64_t line, int64_t byte) const;

  FileSystem& files_;
  std::string path_;
  std::unique_ptr<ByteSource> bytes_;
  TextOptions options_;
  Content content_;
  std::string buffer_;  // unpacked bytes; [at_, size) not yet taken
  size_t at_ = 0;
  int64_t num_lines_ = 0, byte_ = 0;  // taken so far
  Line line_;
  bool line_pending_ = false;  // line_ holds what follows a form feed
  // For a file as one document: a part was returned; all were; a line end that may be the last.
  bool part_given_ = false, file_done_ = false, newline_held_ = false;
  JsonRow row_;
  Replacements replacements_;
  Skipped skipped_;
};

// Warns of what became U+FFFD in an input that was read.
void warn_of_repairs(const TextSource& source, const std::string& path, Log& log);

}  // namespace ashlar::data
