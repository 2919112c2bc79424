#include "ashlar/train/run_pulse.h"

#include "ashlar/core/agent.h"
#include "ashlar/train/machine.h"

namespace ashlar::train {

void open_pulse(comm::Group& ranks, const Recipe& recipe, Log& log) {
  const PulseRank rank{ranks.rank(), ranks.size(), launch_attempt(), recipe.train.steps};
  try {
    ranks.trace().show_in(std::make_unique<PulseWriter>(recipe.train.run_dir, rank));
  } catch (const Error& error) {
    log.warn("{}; ashlar status will not show what rank {} does", error.what(), rank.rank);
  }
}

void record_pulse(FileSystem& files, const std::string& run_directory, Log& log) {
  const std::string directory = join(run_directory, "pulse");
  const std::string path = join(directory, host_name());
  try {
    const std::string text = pulse_directory(run_directory) + "\n";
    if (files.stat(path) && read_text(files, path) == text) return;
    make_own_directory(files, directory);
    write_text(files, path, text);
  } catch (const Error& error) {
    log.warn("{}; ashlar status on other machines will not name this one", error.what());
  }
}

}  // namespace ashlar::train
