// Programs from traces: of ranks in this process, or from the files of a directory
// (docs/formats/trace.md).
#pragma once

#include <string>
#include <string_view>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/sim/program_builder.h"

namespace ashlar::sim {

// Adds what one rank recorded, as one step.
void add_trace(ProgramBuilder& builder, int rank, const Trace& trace);

// Reads NAME-rank-R.json of every rank R from DIRECTORY, or from DIRECTORY/trace if that exists.
// Errors   kData: files of several recordings, a rank without one, a file of another format or
//          damaged; kStorage.
RankPrograms read_traces(FileSystem& files, const std::string& directory, Log& log);

// The files' texts, by rank; `names` for messages.
RankPrograms parse_traces(std::span<const std::string> texts, std::span<const std::string> names);

}  // namespace ashlar::sim
