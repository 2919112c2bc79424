// A hash by which ranks on several machines notice that one path leads to different models there.
//
//   a step                     its COMMIT, which has the digests of manifest and index, and through
//                              these the checksum of every chunk of weights
//   a Hugging Face directory   config.json and the index whole, and for each safetensors file its
//                              name, its header and a sample of its bytes (core/file_sample.h)
#pragma once

#include <cstdint>

#include "ashlar/models/source.h"

namespace ashlar::models {

uint64_t model_fingerprint(FileSystem& files, const ModelSource& source);

}  // namespace ashlar::models
