#include "ashlar/sizing/mfu.h"

#include "ashlar/sizing/model.h"

namespace ashlar::sizing {

double training_flop(const ModelSpec& model, int64_t sequence_length, Mfu convention) {
  if (convention == Mfu::kExactCausal) return model_flop(model, sequence_length).training;
  const double N =
      double(model_parameters(model).active) + double(model.vocab_size * model.hidden_size);
  double widths = 0;  // of queries, in all blocks
  for (const BlockSpec& block : model.blocks) {
    if (const auto* attention = std::get_if<AttentionSpec>(&block.mixer))
      widths += double(attention->q_dim());
    if (const auto* cca = std::get_if<CcaSpec>(&block.mixer)) widths += double(cca->q_dim());
  }
  const double factor = convention == Mfu::k6N6Lds ? 6 : convention == Mfu::k6N12Lds ? 12 : 0;
  return 6 * N + factor * widths * double(sequence_length);
}

}  // namespace ashlar::sizing
