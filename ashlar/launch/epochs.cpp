#include "ashlar/launch/epochs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <random>

#include "ashlar/control/address.h"
#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr std::string_view kEpochPrefix = "epoch-";
using Token = std::array<std::byte, kTokenBytes>;

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// Makes the token unless it is there: written whole under another name first.
void make_token(const std::string& path) {
  std::random_device random;
  Token token{};
  for (std::byte& byte : token) byte = std::byte(random());
  const std::string aside = fmt::format("{}.{}.{:08x}", path, getpid(), random());
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write(fd, token.data(), token.size()) == ssize_t(token.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  // Linking fails where another process was faster: then the token is that one's.
  [[maybe_unused]] const int ignored = written ? link(aside.c_str(), path.c_str()) : 0;
  if (fd >= 0) unlink(aside.c_str());
  ASHLAR_REQUIRE(written, kStorage, "{}: {}", aside, strerror(error));
}

Token read_token(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) make_token(path);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  ASHLAR_REQUIRE(fd >= 0, kStorage, "{}: open: {}", path, strerror(errno));
  struct stat info {};
  Token token{};
  const bool whole =
      fstat(fd, &info) == 0 && read(fd, token.data(), token.size()) == ssize_t(kTokenBytes);
  close(fd);
  ASHLAR_REQUIRE(whole && info.st_uid == geteuid() && (info.st_mode & 077) == 0, kLaunch,
                 "{} is not a token of {} bytes that its owner alone can read; remove it, and the "
                 "next launch makes another",
                 path, kTokenBytes);
  return token;
}

}  // namespace

std::string EpochFiles::path(int64_t epoch, const char* name) const {
  return fmt::format("{}/{}{}/{}", directory_, kEpochPrefix, epoch, name);
}

std::optional<std::string> EpochFiles::text_of(int64_t epoch, const char* name) {
  const std::string file = path(epoch, name);
  if (!files_.stat(file)) return std::nullopt;
  return read_text(files_, file, control::kMaxAddressText, LinkPolicy::kRefuse);
}

int64_t EpochFiles::newest() {
  int64_t newest = 0;
  for (const std::string& name : files_.list(directory_))
    if (name.starts_with(kEpochPrefix))
      newest = std::max(newest, number_in(name.substr(kEpochPrefix.size())).value_or(0));
  return newest;
}

// False: the file is there already.
bool EpochFiles::make(const std::string& file, const std::string& text) {
  files_.make_directories(parent_of(file));
  try {
    const auto made = files_.create(file);
    made->write_at(std::as_bytes(std::span(text)), 0);
    made->close();
    return true;
  } catch (const Error&) {
    if (files_.stat(file)) return false;
    throw;
  }
}

bool EpochFiles::claim(int64_t epoch, const std::string& job) {
  return make(path(epoch, "leader"), job);
}

int64_t EpochFiles::last_ended() {
  int64_t epoch = newest();
  while (epoch > 0 && !end_of(epoch)) --epoch;
  return epoch;
}

int EpochFiles::number_of(const std::string& machine) {
  for (int number = 1;; ++number) {
    const std::string file = fmt::format("{}/nodes/{}", directory_, number);
    if (!files_.stat(file) && make(file, machine)) return number;
    if (read_text(files_, file) == machine) return number;
  }
}

void EpochFiles::publish(int64_t epoch, const std::string& address) {
  write_text(files_, path(epoch, "address"), address);
}

// The text has one length, so that it is written in place; closing it shows it to other machines.
void EpochFiles::beat(int64_t epoch) {
  const auto file = files_.append(path(epoch, "beat"));
  const std::string text = fmt::format("{:020}\n", ++beat_);
  file->write_at(std::as_bytes(std::span(text)), 0);
  file->close();
}

void EpochFiles::end(int64_t epoch, int exit_code) {
  write_text(files_, path(epoch, "end"), fmt::format("{}\n", exit_code));
}

std::optional<std::string> EpochFiles::address_of(int64_t epoch) {
  return text_of(epoch, "address");
}

std::string EpochFiles::job_of(int64_t epoch) {
  return text_of(epoch, "leader").value_or("");
}

std::string EpochFiles::beat_of(int64_t epoch) {
  return text_of(epoch, "beat").value_or("");
}

std::optional<int> EpochFiles::end_of(int64_t epoch) {
  const std::optional<std::string> text = text_of(epoch, "end");
  const std::optional<int64_t> code = text ? number_in(*text) : std::nullopt;
  return code ? std::optional(int(*code)) : std::nullopt;
}

control::Digest EpochFiles::from_token(std::string_view label) const {
  return control::Hmac(read_token(join(directory_, "token")))(label);
}

control::Epoch EpochFiles::key_of(int64_t epoch, const std::string& job) {
  const control::Digest digest =
      from_token(fmt::format("ashlar launch, epoch {} of job {}", epoch, job));
  control::Epoch key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = uint8_t(digest[i]);
  return key;
}

std::string EpochFiles::agent_socket() {
  constexpr size_t kNamedBytes = 8;
  std::string name = "@ashlar-agent-";
  const control::Digest digest = from_token("ashlar launch, socket of agents");
  for (size_t i = 0; i < kNamedBytes; ++i) name += fmt::format("{:02x}", uint8_t(digest[i]));
  return name;
}

bool Candidacy::may_lead(const View& view, double now) {
  if (view.epoch != epoch_ || view.beat != beat_) {
    seen_life_ = view.epoch == epoch_ && !beat_.empty();
    epoch_ = view.epoch;
    beat_ = view.beat;
    stands_since_ = now;
  }
  if (view.epoch == 0 || view.ended) return true;
  const double patience_s = kStood_s + kPerPlace_s * std::min(view.place, kMostPlaces) +
                            (resigned_ ? kAfterResigning_s : 0);
  return now - view.heard_s >= kUnheard_s && now - stands_since_ >= patience_s;
}

}  // namespace ashlar::launch
