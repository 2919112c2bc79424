#include "ashlar/train/product_table.h"

#include <fmt/format.h>

#include <array>

#include "ashlar/core/checksum.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/isa.h"

namespace ashlar::train {
namespace {

using kernels::ProductEntry;
using machine::ProductChoice;

constexpr std::string_view kRemedy = "ashlar bench products RECIPE --tune --profile";
constexpr std::array<std::string_view, 3> kOrders = {"rule", "rows-first", "panels-first"},
                                          kCopies = {"rule", "always", "never"};

template <typename T>
T value_of(const std::array<std::string_view, 3>& words, const std::string& word) {
  const auto found = std::find(words.begin(), words.end(), word);
  ASHLAR_ASSERT(found != words.end());  // the file was parsed
  return T(found - words.begin());
}

DType product_dtype(const std::string& name) {
  return name == name_of(DType::kBF16) ? DType::kBF16 : DType::kF32;
}

}  // namespace

ProductChoice choice_of(const ProductEntry& entry) {
  const kernels::ProductKey& key = entry.key;
  ProductChoice c;
  c.op = key.op();
  c.dtype = name_of(key.compute);
  c.result = name_of(key.result);
  c.groups = key.groups;
  c.rows = key.rows;
  c.cols = key.cols;
  c.depth = key.depth;
  c.threads = key.threads;
  c.task_rows = entry.form.rows;
  c.task_panels = entry.form.panels;
  c.order = kOrders[size_t(entry.form.order)];
  c.copies = kCopies[size_t(entry.form.copies)];
  return c;
}

ProductEntry entry_of(const ProductChoice& c, const std::string& source) {
  ProductEntry entry;
  ASHLAR_REQUIRE(kernels::set_op(c.op, entry.key), kConfig, "{}: there is no product {}", source,
                 printable(c.op));
  entry.key.compute = product_dtype(c.dtype);
  entry.key.result = product_dtype(c.result);
  entry.key.groups = int32_t(c.groups);
  entry.key.rows = c.rows;
  entry.key.cols = c.cols;
  entry.key.depth = c.depth;
  entry.key.threads = int32_t(c.threads);
  entry.form = {int32_t(c.task_rows), int32_t(c.task_panels),
                value_of<kernels::TaskOrder>(kOrders, c.order),
                value_of<kernels::RowCopies>(kCopies, c.copies)};
  return entry;
}

std::vector<ProductChoice> read_product_choices(FileSystem& files, const machine::Profile& profile,
                                                const std::string& path) {
  ASHLAR_REQUIRE(profile.products, kConfig, "{} has no table of products; measure one: {} {}", path,
                 kRemedy, path);
  const auto cpu = profile.identity.find("cpu");
  const std::string theirs = cpu == profile.identity.end() ? "unknown" : cpu->second;
  ASHLAR_REQUIRE(theirs == processor_name(), kConfig,
                 "{} is the profile of another machine: cpu is {}, here {}; name a profile of this "
                 "one, or none",
                 path, printable(theirs), printable(processor_name()));
  const std::string_view isa = name_of(kernels::isa());
  ASHLAR_REQUIRE(profile.products->isa == isa, kConfig,
                 "{}: its table of products is for the kernels of {}, but this run's are {}; "
                 "measure it again: {} {}",
                 path, printable(profile.products->isa), isa, kRemedy, path);
  ASHLAR_REQUIRE(profile.products->forms == kernels::kProductFormsVersion, kConfig,
                 "{}: its table of products has forms of version {}, this program's kernels of "
                 "version {}; measure it again: {} {}",
                 path, profile.products->forms, kernels::kProductFormsVersion, kRemedy, path);
  const std::string table = machine::path_beside(path, profile.products->file),
                    text = read_text(files, table);
  ASHLAR_REQUIRE(xxh3_64(std::as_bytes(std::span(text))) == profile.products->xxh3, kCorrupt,
                 "{}: its checksum is not the one in {}; measure it again: {} {}", table, path,
                 kRemedy, path);
  return machine::parse_product_choices(text, table);
}

std::unique_ptr<kernels::ProductTable> read_product_table(FileSystem& files,
                                                          const std::string& path) {
  if (path.empty()) return nullptr;
  const machine::Profile profile = machine::parse_profile(read_text(files, path), path);
  std::vector<ProductEntry> entries;
  for (const ProductChoice& choice : read_product_choices(files, profile, path))
    entries.push_back(entry_of(choice, path));
  return std::make_unique<kernels::ProductTable>(std::move(entries));
}

std::string describe(const kernels::ProductTable& table, const std::string& path) {
  const size_t count = table.entries().size();
  const kernels::ProductTable::Counts calls = table.counts();
  return fmt::format(
      "{} has {} form{} of products: {} of {} calls took one, {} of these that of other rows; {} "
      "followed the rules",
      path, count, count == 1 ? "" : "s", calls.exact + calls.near,
      calls.exact + calls.near + calls.missed, calls.near, calls.missed);
}

}  // namespace ashlar::train
