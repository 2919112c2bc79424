// Files that accompany a model's weights and config.json, and stay with it on the way from a
// Hugging Face directory through checkpoints and training to an export: the files of its tokenizer
// and of generation, byte for byte; the types of its elements; whether its texts begin with a
// token.
//
// Source   docs/formats/checkpoint.md: the files lie under extra/ of a step by their own names, all
//          else in the section "hf" of its manifest.
// Errors   reading a directory: kData; a step: kCorrupt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/core/files.h"
#include "ashlar/models/source.h"
#include "ashlar/tensor/dtype.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::models {

// The types in which tensors came and are exported: one for most, others by native name.
struct ElementTypes {
  DType usual = DType::kBF16;
  std::map<std::string, DType> others = {};

  DType of(const std::string& name) const {
    const auto found = others.find(name);
    return found == others.end() ? usual : found->second;
  }
  friend bool operator==(const ElementTypes&, const ElementTypes&) = default;
};

// The type of most elements, and the tensors that have another one.
ElementTypes types_of(std::span<const LogicalTensor> tensors);

struct Companions {
  std::map<std::string, std::string> files = {};  // name -> content
  std::optional<ElementTypes> types = {};         // none: the weights came from a seed
  // In front of every document of the data that trained the model; -1: nothing. None: not known.
  std::optional<int32_t> bos_id = {};
};

// Whether a file of this name goes with a model; whether it is one of the tokenizer's.
bool goes_along(std::string_view name);
bool is_of_tokenizer(std::string_view name);

Companions companions_of(FileSystem& files, const ModelSource& source);
std::string place_of_companions(const ModelSource& source);    // their directory, for messages
Companions companions_in(const checkpoint::StepReader& step);  // by all ranks that read it together
// Names the files of a Hugging Face directory that are neither weights nor companions, for
// messages.
std::vector<std::string> left_behind(FileSystem& files, const std::string& directory);

// Adds the companions to what a step is made of.  `source` is where the model came from; "": from
// no directory.
void add_companions(const Companions& companions, const std::string& source,
                    std::vector<checkpoint::Blob>& extra,
                    std::map<std::string, std::string>& sections);

}  // namespace ashlar::models
