// How it works.  Three layers, each asked by the next:
//
//   fill()       appends a chunk of unpacked bytes to buffer_ and drops what was taken (before at_)
//   next_line()  cuts the next line out of buffer_ into line_ and counts lines and bytes; it fills
//                until the line ends, the file ends, or the line is too long
//   next_plain() or next_json()
//                makes documents of lines, leaves out or repairs bad ones
//
// A JSON document is a line.  A plain one begins at the first line that is not blank and goes on to
// a blank line, a form feed or the end.  A form feed may stand within a line: what follows it stays
// in line_ (line_pending_) and counts as the next line.  Memory is bounded because a line and a
// document are refused as soon as they pass kMaxDocumentBytes.
#include "ashlar/data/text_source.h"

#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/content.h"

namespace ashlar::data {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
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

TextSource::TextSource(FileSystem& files, const std::string& path, BadDocuments bad)
    : path_(path), bytes_(open_bytes(files, path)), json_(is_json_lines(path)), bad_(bad) {
  // The head is read before anything else, to tell what is no text.
  while (buffer_.size() < kHeadBytes && fill()) {
  }
  if (buffer_.starts_with(kByteOrderMark))
    byte_ = static_cast<int64_t>(at_ = kByteOrderMark.size());
  const std::string other = not_text(path, std::string_view(buffer_).substr(at_, kHeadBytes));
  ASHLAR_REQUIRE(other.empty(), kData, "{}: it is {}", path, other);
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
  size_t searched = at_, end;  // no line end stands between at_ and `searched`
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    searched = buffer_.size() - at_;  // fill() moves the rest to the front
    ASHLAR_REQUIRE(searched <= static_cast<size_t>(kMaxDocumentBytes), kData,
                   "{}: the line is longer than {} bytes; expected documents of at most that size "
                   "(`fold -s` breaks lines, blank lines separate documents)",
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
  return json_ ? next_json(document) : next_plain(document);
}

bool TextSource::next_plain(TextDocument& document) {
  while (read_plain(document)) {
    const Utf8Report report = check_utf8(document.text);
    if (report.num_invalid == 0) return true;
    if (bad_ == BadDocuments::kRefuse) {
      repair(document, report);
      return true;
    }
    skipped_.add({1, fmt::format("{}: the document there is not UTF-8",
                                 place(document.line, document.byte))});
  }
  return false;
}

bool TextSource::read_plain(TextDocument& document) {
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
                     "blank lines or form feeds",
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

void TextSource::repair(TextDocument& document, const Utf8Report& report) {
  if (replacements_.count == 0) {
    replacements_.line = document.line;
    replacements_.byte = document.byte;
  }
  replacements_.count += report.num_invalid;
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
      ASHLAR_REQUIRE(bad_ == BadDocuments::kSkip, kData,
                     "{} (--skip-bad leaves such documents out)", error.what());
      skipped_.add({1, error.what()});
      continue;
    }
    if (!document.text.empty()) return true;
  }
  return false;
}

void TextSource::read_json(TextDocument& document) const {
  const std::string where = place(line_.number, line_.byte);
  const Json object = parse_json(line_.text, where, ErrorKind::kData);
  ASHLAR_REQUIRE(object.is_object(), kData,
                 "{}: a JSON {} stands there; expected an object with a \"text\" member", where,
                 object.type_name());
  const auto text = object.find("text");
  ASHLAR_REQUIRE(text != object.end(), kData,
                 "{}: the object has no member \"text\" ({} other members); expected {{\"text\": "
                 "\"...\"}}",
                 where, object.size());
  ASHLAR_REQUIRE(text->is_string(), kData, "{}: \"text\" is a {}; expected a string", where,
                 text->type_name());
  document.text = text->get_ref<const std::string&>();
  document.line = line_.number;
  document.byte = line_.byte;
}

}  // namespace ashlar::data
