#include "ashlar/machine/kernel_table.h"

#include <charconv>
#include <span>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::machine {
namespace {

constexpr std::string_view kColumns =
    "op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\tp10_us\tmedian_us\tp90_us\tn";
constexpr size_t kNumColumns = 13;

template <typename Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

bool read_call(const std::vector<std::string>& cells, TimedKernel& call) {
  if (cells.size() != kNumColumns) return false;
  call.op = cells[0];
  call.dtype = cells[1];
  return read_number(cells[2], call.groups) && read_number(cells[3], call.rows) &&
         read_number(cells[4], call.cols) && read_number(cells[5], call.depth) &&
         read_number(cells[6], call.flop) && read_number(cells[7], call.bytes) &&
         read_number(cells[8], call.ranks) && read_number(cells[9], call.p10_us) &&
         read_number(cells[10], call.median_us) && read_number(cells[11], call.p90_us) &&
         read_number(cells[12], call.calls);
}

}  // namespace

std::vector<TimedKernel> parse_kernel_table(const std::string& text, const KernelTableFile& file,
                                            const std::string& path) {
  const uint64_t checksum = xxh3_64(std::as_bytes(std::span(text)));
  ASHLAR_REQUIRE(checksum == file.xxh3, kData,
                 "{}: not the table that the profile names: its checksum is {:016x}, the profile "
                 "expects {:016x}; measure again: ashlar bench kernels RECIPE --profile FILE",
                 printable(path), checksum, file.xxh3);
  std::vector<TimedKernel> calls;
  size_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (number == 1)
      ASHLAR_REQUIRE(line == kColumns, kData, "{}: other columns than '{}'", printable(path),
                     printable(kColumns));
    if (number == 1 || line.empty()) continue;
    ASHLAR_REQUIRE(read_call(split(line, '\t'), calls.emplace_back()), kData,
                   "{}: line {} is '{}'; expected {} columns of a kernel's call", printable(path),
                   number, printable(line), kNumColumns);
  }
  return calls;
}

}  // namespace ashlar::machine
