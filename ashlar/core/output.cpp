#include "ashlar/core/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

constexpr std::string_view kTemporaryEnd = ".tmp";

void check_input(FileSystem& files, const std::string& name,
                 const std::vector<std::string>& inputs) {
  const auto same = std::ranges::find_if(
      inputs, [&](const std::string& input) { return is_same_file(files, name, input); });
  ASHLAR_REQUIRE(same == inputs.end(), kConfig,
                 "the output {} is the input {}, which would be lost; choose another name", name,
                 *same);
}

void check_existing(FileSystem& files, const std::vector<std::string>& names, Existing existing) {
  std::vector<std::string> there;
  for (const std::string& name : names) {
    const auto info = files.stat(name);
    if (!info) continue;
    there.push_back(name);
    ASHLAR_REQUIRE(existing != Existing::kReplace || info->type == FileInfo::Type::kFile ||
                       info->type == FileInfo::Type::kLink,
                   kConfig, "{} exists already and is no regular file; choose another name", name);
  }
  if (there.empty() || existing == Existing::kReplace) return;
  const bool one = there.size() == 1;
  const std::string_view it = one ? "it" : "them";
  ASHLAR_FAIL(kConfig, "{} {} already; choose another name, {}", fmt::join(there, ", "),
              one ? "exists" : "exist",
              existing == Existing::kRefuse
                  ? fmt::format("or remove {} first", it)
                  : fmt::format("remove {} or replace {} with --force", it, it));
}

std::string without_slashes(std::string name) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  return name;
}

// Whether both would be the same entry of one directory, which need not exist.
bool is_same_name(FileSystem& files, const std::string& a, const std::string& b) {
  const auto one = std::filesystem::path(a).lexically_normal();
  const auto other = std::filesystem::path(b).lexically_normal();
  return one == other ||
         (one.filename() == other.filename() && is_same_file(files, parent_of(a), parent_of(b)));
}

// NAME.PROCESS.tmp, or NAME.PROCESS-1.tmp, -2, ... if that is in use.
std::string free_temporary(FileSystem& files, const std::string& name) {
  std::string path = fmt::format("{}.{}{}", name, getpid(), kTemporaryEnd);
  for (int n = 1; files.stat(path); ++n)
    path = fmt::format("{}.{}-{}{}", name, getpid(), n, kTemporaryEnd);
  return path;
}

// A destructor can do nothing about a disk that refuses even this.
void try_to(const auto& body) noexcept {
  try {
    body();
  } catch (const std::exception&) {
  }
}

}  // namespace

bool is_same_file(FileSystem& files, const std::string& a, const std::string& b) {
  if (!files.stat(a, LinkPolicy::kFollow) || !files.stat(b, LinkPolicy::kFollow)) return false;
  const std::filesystem::path one(a), other(b);
  if (one.lexically_normal() == other.lexically_normal()) return true;
  // Compares device and inode.  Files in memory have neither, and one name each.
  std::error_code ignored;
  return std::filesystem::equivalent(one, other, ignored);
}

NewDirectories::~NewDirectories() {
  // Another process may have put something there; remove() then refuses.
  for (auto path = made_.rbegin(); path != made_.rend(); ++path)
    try_to([&] { files_.remove(*path); });
}

void NewDirectories::make(const std::string& path) {
  std::vector<std::string> missing;
  for (std::string at = path; at != "." && !files_.stat(at, LinkPolicy::kFollow);
       at = parent_of(at))
    missing.push_back(at);
  made_.insert(made_.end(), missing.rbegin(), missing.rend());
  make_durable_directories(files_, path);
}

Outputs::Outputs(FileSystem& files, const std::vector<std::string>& names,
                 const std::vector<std::string>& inputs, Existing existing)
    : files_(files), existing_(existing), directories_(files) {
  std::vector<std::string> given;
  for (const std::string& name : names)
    if (!name.empty()) given.push_back(without_slashes(name));
  for (const std::string& name : given) {
    ASHLAR_REQUIRE(
        std::ranges::count_if(
            given, [&](const std::string& other) { return is_same_name(files, name, other); }) == 1,
        kConfig, "two outputs are both {}; choose two names", name);
    check_input(files, name, inputs);
    outputs_.push_back({name, "", false});
  }
  check_existing(files, given, existing);
}

Outputs::~Outputs() {
  if (done_) return;
  for (auto output = outputs_.rbegin(); output != outputs_.rend(); ++output) {
    if (output->published) try_to([&] { files_.remove_all(output->name); });
    if (!output->temporary.empty()) try_to([&] { files_.remove_all(output->temporary); });
  }
}

Outputs::Output& Outputs::claim(const std::string& name) {
  const auto output = std::ranges::find(outputs_, without_slashes(name), &Output::name);
  ASHLAR_ASSERT(output != outputs_.end() && output->temporary.empty() && !output->published);
  directories_.make(parent_of(output->name));
  return *output;
}

std::unique_ptr<File> Outputs::create(const std::string& name) {
  Output& output = claim(name);
  const std::string temporary = free_temporary(files_, output.name);
  auto file = files_.create(temporary);
  output.temporary = temporary;
  return file;
}

std::string Outputs::make_directory(const std::string& name) {
  Output& output = claim(name);
  const std::string temporary = free_temporary(files_, output.name);
  files_.make_directories(temporary);
  return output.temporary = temporary;
}

void Outputs::write(const std::string& name, std::string_view content) {
  const auto file = create(name);
  file->write_at(std::as_bytes(std::span(content)), 0);
  file->sync();
  file->close();
}

void Outputs::publish() {
  const bool replace = existing_ == Existing::kReplace;
  if (replace && outputs_.size() > 1 && files_.stat(outputs_.back().name))
    files_.remove(outputs_.back().name);
  for (Output& output : outputs_) {
    ASHLAR_ASSERT(!output.temporary.empty());
    if (replace)
      files_.replace(output.temporary, output.name);
    else
      files_.rename_new(output.temporary, output.name);
    output.temporary.clear();
    output.published = true;
  }
  for (const Output& output : outputs_) files_.sync_directory(parent_of(output.name));
  directories_.keep();
  done_ = true;
}

std::vector<std::string> Outputs::left_behind() const {
  std::vector<std::string> found;
  for (const Output& output : outputs_) {
    const std::string parent = parent_of(output.name);
    const size_t name_at = output.name.rfind('/') + 1;
    const std::string begin = output.name.substr(name_at) + ".";
    if (!files_.stat(parent, LinkPolicy::kFollow)) continue;
    for (const std::string& name : files_.list(parent)) {
      if (name.size() <= begin.size() + kTemporaryEnd.size() || !name.starts_with(begin) ||
          !name.ends_with(kTemporaryEnd))
        continue;
      const std::string number =
          name.substr(begin.size(), name.size() - begin.size() - kTemporaryEnd.size());
      if (number.find_first_not_of("0123456789-") == number.npos)
        found.push_back(output.name.substr(0, name_at) + name);
    }
  }
  return found;
}

}  // namespace ashlar
