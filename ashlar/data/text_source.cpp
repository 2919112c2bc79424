// How it works.  There are three layers, each called by the next:
//
//   fill()       appends a chunk of unpacked bytes to buffer_ and drops those taken (before at_)
//   next_line()  cuts the next line out of buffer_ into line_ and counts lines and bytes; it fills
//                until the line ends, the file ends, or the line is too long
//   next_plain() or next_json()
//                makes documents of lines, leaves out or repairs bad ones
//
// A JSON document is a line.  A plain one between blank lines begins at the first line that is not
// blank and continues to a blank line, a form feed or the end.  A form feed may be inside a line:
// the rest of the line stays in line_ (line_pending_) and counts as the next line.  A file as one
// document is not cut into lines: read_part() takes bytes of buffer_ as they come.  Memory is
// bounded because lines, and documents that are not returned in parts, are refused once they exceed
// kMaxDocumentBytes.
#include "ashlar/data/text_source.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"

namespace ashlar::data {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f") == std::string_view::npos;
}

// Appends `text` with "\n" for every "\r\n".
void append_lines(std::string& out, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("\r\n", at), text.size());
    out.append(text, at, end - at);
    at = end < text.size() ? end + 1 : end;  // the line feed comes with what follows
  }
}

bool is_utf8_file(FileSystem& files, const std::string& path) {
  const auto bytes = open_bytes(files, path);
  std::string text;
  for (size_t kept = 0;;) {
    text.resize(kept + kChunkBytes);
    const size_t count = bytes->read({text.data() + kept, kChunkBytes});
    text.resize(kept + count);
    const size_t complete = count > 0 ? complete_utf8(text) : text.size();
    if (check_utf8(std::string_view(text).substr(0, complete)).num_invalid > 0) return false;
    if (count == 0) return true;
    text.erase(0, complete);
    kept = text.size();
  }
}

}  // namespace

void Skipped::add(const Skipped& more) {
  if (count == 0) first = more.first;
  count += more.count;
}

std::string tell_skipped(const Skipped& skipped) {
  if (skipped.count == 0) return "";
  return fmt::format("; {} bad documents were left out, the first: {}", skipped.count,
                     skipped.first);
}

int64_t check_inputs(FileSystem& files, std::span<const std::string> inputs, Log& log) {
  ASHLAR_REQUIRE(!inputs.empty(), kConfig, "no input file is given; expected at least one text");
  int64_t total_bytes = 0;
  std::set<std::string> seen;
  for (const std::string& input : inputs) {
    const auto info = files.stat(input, LinkPolicy::kFollow);
    ASHLAR_REQUIRE(info, kData, "{}: there is no such file; expected a text file", input);
    ASHLAR_REQUIRE(info->type != FileInfo::Type::kDirectory, kData,
                   "{}: it is a directory; give the text files in it", input);
    ASHLAR_REQUIRE(info->type == FileInfo::Type::kFile, kData,
                   "{}: it is not a regular file (a pipe or a device); write the text to a file",
                   input);
    std::error_code ignored;
    if (!seen.insert(std::filesystem::weakly_canonical(input, ignored).string()).second)
      log.warn("{} is given twice: its documents count twice", input);
    total_bytes += info->size_bytes;
  }
  return total_bytes;
}

TextSource::TextSource(FileSystem& files, const std::string& path, const TextOptions& options)
    : files_(files), path_(path), bytes_(open_bytes(files, path)), options_(options) {
  // The head is read before anything else, to tell what the file is.
  bool whole = false;
  while (buffer_.size() < kHeadBytes && !whole) whole = !fill();
  if (buffer_.starts_with(kByteOrderMark))
    byte_ = static_cast<int64_t>(at_ = kByteOrderMark.size());
  content_ = content_of(path, std::string_view(buffer_).substr(at_), whole, options.format);
  ASHLAR_REQUIRE(content_.refusal.empty(), kData, "{}: it is {}", path, content_.refusal);
}

int64_t TextSource::stored_done() const {
  return bytes_->stored_done();
}

std::string TextSource::place(int64_t line, int64_t byte) const {
  return fmt::format("{} line {} (byte {})", path_, line, byte);
}

bool TextSource::fill() {
  buffer_.erase(0, at_);
  at_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + kChunkBytes);
  const size_t count = bytes_->read({buffer_.data() + old, kChunkBytes});
  buffer_.resize(old + count);
  return count > 0;
}

bool TextSource::next_line() {
  size_t searched = at_, end;  // there is no line end between at_ and `searched`
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    searched = buffer_.size() - at_;  // fill() moves the rest to the front
    ASHLAR_REQUIRE(searched <= static_cast<size_t>(kMaxDocumentBytes), kData,
                   "{}: the line is longer than {} bytes; expected documents of at most that size "
                   "(`fold -s` breaks lines; --documents file has no limit)",
                   place(num_lines_ + 1, byte_), kMaxDocumentBytes);
    if (!fill()) break;
  }
  const bool at_end = end == std::string::npos;
  if (at_end && at_ == buffer_.size()) return false;
  if (at_end) end = buffer_.size();
  line_.text.assign(buffer_, at_, end - at_);
  line_.number = ++num_lines_;
  line_.byte = byte_;
  const size_t next = at_end ? end : end + 1;
  byte_ += static_cast<int64_t>(next - at_);
  at_ = next;
  if (line_.text.ends_with('\r')) line_.text.pop_back();
  return true;
}

bool TextSource::next(TextDocument& document) {
  return content_.json_lines ? next_json(document) : next_plain(document);
}

bool TextSource::next_plain(TextDocument& document) {
  const auto read = [&] {
    switch (options_.documents) {
      case Documents::kFile:
        return read_part(document);
      case Documents::kBlankLine:
        return read_separated(document);
      case Documents::kLine:
        return read_line(document);
    }
    return false;
  };
  while (read()) {
    const Utf8Report report = check_utf8(document.text);
    if (report.num_invalid == 0) return true;
    if (options_.bad == BadDocuments::kRefuse) {
      repair(document, report);
      return true;
    }
    skipped_.add({1, fmt::format("{}: the document there is not UTF-8",
                                 place(document.line, document.byte))});
  }
  return false;
}

bool TextSource::read_part(TextDocument& part) {
  while (!file_done_) {
    bool last = false;
    while (buffer_.size() - at_ <= static_cast<size_t>(kPartBytes) && !last) last = !fill();
    std::string_view bytes = std::string_view(buffer_).substr(at_);
    if (!last) {
      bytes = bytes.substr(0, complete_utf8(bytes.substr(0, kPartBytes)));
      if (bytes.ends_with('\r')) bytes.remove_suffix(1);  // a line feed may follow
    }
    part.text.assign(newline_held_ ? 1 : 0, '\n');
    append_lines(part.text, bytes);
    part.line = num_lines_ + 1;
    part.byte = byte_;
    num_lines_ += std::ranges::count(bytes, '\n');
    byte_ += static_cast<int64_t>(bytes.size());
    at_ += bytes.size();
    newline_held_ = !last && part.text.ends_with('\n');
    if (newline_held_ || (last && (part.text.ends_with('\n') || part.text.ends_with('\r'))))
      part.text.pop_back();
    file_done_ = last;
    if (!part_given_ && is_blank(part.text)) continue;
    part.begins = !std::exchange(part_given_, true);
    part.ends = last;
    return part.ends || !part.begins || !skip_bad_file();
  }
  return false;
}

// Returned parts cannot be taken back, so with kSkip a long file is read once beforehand.
bool TextSource::skip_bad_file() {
  if (options_.bad == BadDocuments::kRefuse || is_utf8_file(files_, path_)) return false;
  skipped_.add({1, fmt::format("{}: the file is not UTF-8", path_)});
  return file_done_ = true;
}

bool TextSource::read_line(TextDocument& document) {
  while (next_line()) {
    if (is_blank(line_.text)) continue;
    document = {line_.text, line_.number, line_.byte};
    return true;
  }
  return false;
}

bool TextSource::read_separated(TextDocument& document) {
  document.text.clear();
  bool started = false, ended = false;
  while (!ended && (line_pending_ || next_line())) {
    line_pending_ = false;
    std::string_view piece = line_.text;
    const size_t feed = piece.find('\f');
    if (feed != std::string_view::npos) piece = piece.substr(0, feed);
    if (is_blank(piece)) {
      ended = started;
    } else {
      if (started) document.text += '\n';
      if (!started) document.line = line_.number;
      if (!started) document.byte = line_.byte;
      started = true;
      document.text += piece;
      ASHLAR_REQUIRE(static_cast<int64_t>(document.text.size()) <= kMaxDocumentBytes, kData,
                     "{}: the document is longer than {} bytes; expected documents separated by "
                     "blank lines or form feeds (--documents file has no limit)",
                     place(document.line, document.byte), kMaxDocumentBytes);
    }
    if (feed == std::string_view::npos) continue;
    // A form feed before any text separates nothing.
    ended = started;
    line_.text.erase(0, feed + 1);
    line_.byte += static_cast<int64_t>(feed) + 1;
    line_pending_ = true;
  }
  return started;
}

void TextSource::count_replacements(const TextDocument& document, int64_t count) {
  if (count == 0) return;
  if (replacements_.count == 0) {
    replacements_.line = document.line;
    replacements_.byte = document.byte;
  }
  replacements_.count += count;
}

void TextSource::repair(TextDocument& document, const Utf8Report& report) {
  count_replacements(document, report.num_invalid);
  const auto bad =
      static_cast<unsigned char>(document.text[static_cast<size_t>(report.first_invalid)]);
  ASHLAR_REQUIRE(replacements_.count <= 16 || replacements_.count * 1000 <= byte_, kData,
                 "{}: byte 0x{:02x} of the document there is not UTF-8, and {} of {} bytes so far "
                 "are like it; expected UTF-8 text (iconv converts other encodings)",
                 place(document.line, document.byte), bad, replacements_.count, byte_);
  document.text = replace_invalid_utf8(document.text);
}

bool TextSource::next_json(TextDocument& document) {
  while (next_line()) {
    if (is_blank(line_.text)) continue;
    try {
      read_json(document);
    } catch (const Error& error) {
      ASHLAR_REQUIRE(
          options_.bad == BadDocuments::kSkip, kData, "{} (--skip-bad leaves such documents out{})",
          error.what(),
          content_.by_content ? "; --input-format text reads the lines as they are" : "");
      skipped_.add({1, error.what()});
      continue;
    }
    if (!document.text.empty()) return true;
  }
  return false;
}

void TextSource::read_json(TextDocument& document) {
  document.line = line_.number;
  document.byte = line_.byte;
  if (options_.whole_rows) return document.text.swap(line_.text);
  const std::string where = place(line_.number, line_.byte);
  std::string_view line = line_.text;
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  const auto shown = [&](size_t at) {
    if (at >= line.size()) return std::string("the end of the line");
    const auto byte = static_cast<unsigned char>(line[at]);
    return byte > ' ' && byte < 0x7F ? std::string(1, line[at]) : fmt::format("0x{:02x}", byte);
  };
  const Utf8Report utf8 = check_utf8(line);
  ASHLAR_REQUIRE(utf8.num_invalid == 0, kData, "{}: not valid JSON at byte {}: {} is not UTF-8",
                 where, utf8.first_invalid + 1, shown(static_cast<size_t>(utf8.first_invalid)));
  read_json_row(line, kTextMember, row_);
  ASHLAR_REQUIRE(row_.kind != JsonKind::kAbsent, kData,
                 "{}: not valid JSON at byte {}: {} stands there; expected {}", where,
                 row_.error_at + 1, shown(row_.error_at), row_.expected);
  ASHLAR_REQUIRE(row_.kind == JsonKind::kObject, kData,
                 "{}: JSON that is {} stands there; expected an object with a \"text\" member",
                 where, name_of(row_.kind));
  ASHLAR_REQUIRE(row_.member != JsonKind::kAbsent, kData,
                 "{}: the object has no member \"text\"{}; expected {{\"text\": \"...\"}}", where,
                 members_of(line));
  ASHLAR_REQUIRE(row_.member == JsonKind::kString, kData, "{}: \"text\" is {}; expected a string",
                 where, name_of(row_.member));
  ASHLAR_REQUIRE(row_.num_replaced == 0 || options_.bad == BadDocuments::kRefuse, kData,
                 "{}: \"text\" holds an escaped half of a surrogate pair, which is no character",
                 where);
  document.text.swap(row_.text);
  count_replacements(document, row_.num_replaced);
}

void warn_of_repairs(const TextSource& source, const std::string& path, Log& log) {
  const Replacements& bad = source.replacements();
  if (bad.count > 0)
    log.warn("{}: {} {} became U+FFFD; the first is in the document at line {} (byte {})", path,
             bad.count,
             source.content().json_lines ? "halves of surrogate pairs"
                                         : "byte sequences are not UTF-8 and",
             bad.line, bad.byte);
}

}  // namespace ashlar::data
