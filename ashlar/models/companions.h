// The companions of a model: files and facts that accompany its weights and config.json from a
// Hugging Face directory through checkpoints and training to an export.  They are the files of its
// tokenizer and of generation, byte for byte, the types of its elements, and whether its texts
// begin with a token.
//
// Source   docs/formats/checkpoint.md: the files lie under extra/ of a step by their own names, the
//          facts in the section "hf" of its manifest.
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

// The types in which tensors came and are exported: one for most, and exceptions by native name.
struct ElementTypes {
  DType usual = DType::kBF16;
  std::map<std::string, DType> others = {};

  DType of(const std::string& name) const {
    const auto found = others.find(name);
    return found == others.end() ? usual : found->second;
  }
  friend bool operator==(const ElementTypes&, const ElementTypes&) = default;
};

// The type of most elements, and the tensors that have another.
ElementTypes types_of(std::span<const LogicalTensor> tensors);

struct Companions {
  std::map<std::string, std::string> files = {};  // name -> content
  std::optional<ElementTypes> types = {};         // none: the weights came from a seed
  // The token before every document of the data that trained the model; -1: none.  nullopt:
  // unknown.
  std::optional<int32_t> bos_id = {};
};

// Whether a file of this name accompanies a model; whether it belongs to the tokenizer.
bool goes_along(std::string_view name);
bool is_of_tokenizer(std::string_view name);

Companions companions_of(FileSystem& files, const ModelSource& source);
std::string place_of_companions(const ModelSource& source);    // their directory, for messages
Companions companions_in(const checkpoint::StepReader& step);  // by all ranks that read it together
// The names of files in a Hugging Face directory that are neither weights nor companions, for
// messages.
std::vector<std::string> left_behind(FileSystem& files, const std::string& directory);

// Adds the companions to the parts of a step.  `source` is the directory that the model came from;
// "": none.
void add_companions(const Companions& companions, const std::string& source,
                    std::vector<checkpoint::Blob>& extra,
                    std::map<std::string, std::string>& sections);

}  // namespace ashlar::models
