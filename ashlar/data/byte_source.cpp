#include "ashlar/data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::data {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

class PlainBytes : public ByteSource {
 public:
  explicit PlainBytes(std::unique_ptr<File> file) : file_(std::move(file)), size_(file_->size()) {}

  size_t read(std::span<char> out) override {
    const auto count = std::min<int64_t>(static_cast<int64_t>(out.size()), size_ - done_);
    file_->read_at(std::as_writable_bytes(out.first(static_cast<size_t>(count))), done_);
    done_ += count;
    return static_cast<size_t>(count);
  }
  int64_t stored_done() const override { return done_; }

 private:
  std::unique_ptr<File> file_;
  int64_t size_, done_ = 0;
};

class GzipBytes : public ByteSource {
 public:
  GzipBytes(std::unique_ptr<File> file, std::string path)
      : input_(std::move(file)), path_(std::move(path)), buffer_(kBufferBytes) {
    constexpr int kGzipOnly = 16;
    ASHLAR_REQUIRE(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, kMemory,
                   "{}: zlib could not allocate its window", path_);
  }
  ~GzipBytes() override { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size() && step()) {
    }
    return out.size() - stream_.avail_out;
  }
  int64_t stored_done() const override { return input_.stored_done() - stream_.avail_in; }

 private:
  bool step() {  // false: the end of the file, at the end of a member
    if (stream_.avail_in == 0) {
      stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_in = static_cast<uInt>(input_.read(buffer_));
    }
    if (stream_.avail_in == 0) {
      ASHLAR_REQUIRE(between_members_, kData,
                     "{}: the gzip stream breaks off at byte {}, the end of the file; expected its "
                     "end mark (the file is cut: copy it again)",
                     path_, stored_done());
      return false;
    }
    if (between_members_) skip_padding();
    if (stream_.avail_in == 0) return true;  // nothing but padding: look for more
    between_members_ = false;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    ASHLAR_REQUIRE(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, kData,
                   "{}: the gzip stream is damaged near byte {} ({}); expected what gzip wrote",
                   path_, stored_done(), stream_.msg ? stream_.msg : "zlib gives no reason");
    if (status == Z_STREAM_END) {
      between_members_ = true;
      ASHLAR_ASSERT(inflateReset(&stream_) == Z_OK);
    }
    return true;
  }

  void skip_padding() {
    while (stream_.avail_in > 0 && *stream_.next_in == 0) {
      ++stream_.next_in;
      --stream_.avail_in;
    }
  }

  PlainBytes input_;
  std::string path_;
  std::vector<char> buffer_;
  z_stream stream_{};
  bool between_members_ = false;
};

}  // namespace

namespace {

bool is_packed_by_name(std::string_view path) {
  const std::string_view end = path.substr(path.size() - std::min<size_t>(3, path.size()));
  return end.size() == 3 && end[0] == '.' &&
         (end[1] == 'g' || end[1] == 'G' || end[1] == 'd' || end[1] == 'D') &&
         (end[2] == 'z' || end[2] == 'Z');
}

}  // namespace

std::unique_ptr<ByteSource> open_bytes(FileSystem& files, const std::string& path) {
  std::unique_ptr<File> file = files.open(path);
  unsigned char magic[2] = {};
  if (file->size() >= 2) file->read_at(std::as_writable_bytes(std::span(magic)), 0);
  if (magic[0] == 0x1F && magic[1] == 0x8B)
    return std::make_unique<GzipBytes>(std::move(file), path);
  ASHLAR_REQUIRE(!is_packed_by_name(path), kData,
                 "{}: byte 0 is 0x{:02x}{:02x}, not gzip's 0x1f8b; expected a gzip file (rename it "
                 "if it is plain text)",
                 path, magic[0], magic[1]);
  return std::make_unique<PlainBytes>(std::move(file));
}

}  // namespace ashlar::data
