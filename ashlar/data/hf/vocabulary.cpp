#include "ashlar/data/hf/vocabulary.h"

#include <algorithm>

namespace ashlar::data {

void Vocabulary::add(std::string text, int32_t id) {
  const std::string& stored = storage_.emplace_back(std::move(text));
  ids_[stored] = id;
  texts_[id] = &stored;
  end_id_ = std::max(end_id_, id + 1);
}

}  // namespace ashlar::data
