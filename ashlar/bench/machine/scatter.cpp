// The scatter factor of a run: pages that its loader reads over those of contiguous reads.
//
// The real loader makes the batches of some steps from cold files, in the run's own order; a
// callback tells it which tokens it reads.  Distinct pages are counted in each step, for a page
// that two samples share is read once; so are major page faults of this thread and bytes that the
// device read for this process, both of which include what the system reads ahead.
#include <sys/resource.h>

#include <fstream>
#include <set>
#include <string>

#include "ashlar/bench/machine/disk.h"
#include "ashlar/bench/machine/storage.h"
#include "ashlar/data/loader.h"
#include "ashlar/train/loader_options.h"

namespace ashlar::bench {
namespace {

int64_t major_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

// Bytes that devices read for this process; 0 where the kernel does not count.
int64_t device_read_bytes() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t value = 0;
  while (file >> name >> value)
    if (name == "read_bytes:") return value;
  return 0;
}

}  // namespace

double Scatter::sigma() const {
  return std::max(1.0, pages * double(kDiskPage) / bytes);
}

Scatter measure_scatter(FileSystem& files, const Recipe& recipe, int64_t steps) {
  Scatter result;
  data::Sources sources = data::open_sources(files, recipe.data, recipe.model.vocab_size);
  for (const data::Source& source : sources.train) {
    const std::string tokens = source.prefix() + ".bin";
    files.drop_cached_pages(tokens);
    result.cached = std::max(result.cached, cached_share(files, tokens));
    result.token_bytes =
        std::max(result.token_bytes, data::size_of(source.dataset->index().type()));
  }
  data::LoaderOptions options = train::loader_options(recipe, sources.train, nullptr, {});
  options.micro_batch = options.global_batch;
  std::set<std::pair<const data::IndexedDataset*, int64_t>> pages;
  int64_t num_pages = 0;
  options.on_read = [&](const data::IndexedDataset& dataset, const data::DocumentSpan& span) {
    const int64_t bytes = data::size_of(dataset.index().type());
    const int64_t last = ((span.begin + span.length) * bytes - 1) / kDiskPage;
    for (int64_t page = span.begin * bytes / kDiskPage; page <= last; ++page)
      pages.emplace(&dataset, page);
  };
  data::Loader loader(std::move(sources.train), options);
  data::Batch batch;
  const int64_t faults = major_faults(), device = device_read_bytes();
  for (int64_t step = 0; step < steps; ++step) {
    pages.clear();
    loader.next(batch);
    num_pages += int64_t(pages.size());
  }
  result.steps = steps;
  result.sequences = batch.num_rows;
  result.bytes = double(batch.num_rows * batch.length * result.token_bytes);
  result.pages = double(num_pages) / double(steps);
  result.faults = double(major_faults() - faults) / double(steps);
  result.device_bytes = double(device_read_bytes() - device) / double(steps);
  return result;
}

}  // namespace ashlar::bench
