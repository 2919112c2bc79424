#include "ashlar/eval/whole_texts.h"

#include "ashlar/kernels/copy.h"

namespace ashlar::eval {

WholeTexts::WholeTexts(Allocator& allocator, nn::Model& model, int64_t num_tokens)
    : model_(model),
      num_tokens_(num_tokens),
      arena_(arena_for(allocator, Tag::kWorkspace, [&](Arena& arena) { lay_out(arena); })),
      saved_(lay_out(arena_)),
      ids_(make_tensor(allocator, DType::kI32, {num_tokens}, Tag::kInput)) {}

nn::Saved WholeTexts::lay_out(Arena& arena) const {
  return nn::Saved::make(arena, model_.weights(), model_.types(), num_tokens_, 0,
                         nn::Keep::kNothing);
}

const nn::Saved& WholeTexts::run(const kernels::Context& ctx, std::span<const int32_t> ids,
                                 const kernels::Sequence& sequence) {
  if (!ctx.meta()) upload(ctx, ids, ids_.tensor);
  forward(ctx, model_.call(exchange_.exchanges(), sequence, ids_.tensor), saved_);
  return saved_;
}

}  // namespace ashlar::eval
