// How it works.  The pieces of a StateWriter are made once: they point to the memory of weights and
// optimizer state, or, for tensors that change before the next update (copy_balancing), to copies
// that request() refreshes.
//   restore loads strictly: the step must hold exactly the tensors that ranks ask for.  A rank asks
// for the boxes that it keeps, for all loader arrays, and for an empty box of every tensor that
// only other ranks keep, so that it checks names, types and shapes of the whole state.
#include "ashlar/train/state.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ashlar/core/json.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/models/step_model.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::train {
namespace {

constexpr const char* kTrainerFile = "trainer.json";

Piece loader_piece(const std::string& name, std::vector<int64_t>& values) {
  const Tensor tensor = tensor_over(std::span(values));
  return {{name, DType::kI64, tensor.shape, Role::kLoader}, Box::whole(tensor.shape), tensor};
}

// "" if the manifest names none.
std::string isa_in(const checkpoint::Manifest& manifest) {
  const auto section = manifest.sections.find("trainer");
  if (section == manifest.sections.end()) return "";
  const auto trainer = nlohmann::json::parse(section->second);  // parse_manifest saw an object
  const auto isa = trainer.find("isa");
  return isa != trainer.end() && isa->is_string() ? isa->get<std::string>() : "";
}

}  // namespace

StateWriter::StateWriter(const Trainer& trainer, models::Companions companions, std::string isa)
    : trainer_(trainer),
      companions_(std::move(companions)),
      isa_(std::move(isa)),
      model_(trainer.model().pieces(true)),
      optim_(trainer.optimizer_pieces(true)) {
  copy_balancing();
  if (trainer.model().groups().rank() == 0) whole_ = trainer.whole_state();
}

void StateWriter::copy_balancing() {
  if (trainer_.context().meta()) return;
  std::set<std::string> moments;
  for (const Piece& piece : trainer_.balancer().pieces()) moments.insert(piece.logical.name);
  const auto divert = [&](Piece& piece) {
    if (piece.data.device == Device::kGpu) {
      const std::optional<Tensor> copy = trainer_.balancer().copy_of(piece.data);
      if (!copy) return;  // only an update changes it
      kept_.push_back({piece.data, *copy});
      piece.data = *copy;
      return;
    }
    copies_.push_back({piece.data, std::vector<std::byte>(size_t(piece.data.bytes()))});
    piece.data = {copies_.back().bytes.data(), piece.data.dtype, Device::kCpu, piece.data.shape};
  };
  for (Piece& piece : model_)
    if (piece.logical.role == Role::kBuffer) divert(piece);
  for (Piece& piece : optim_)
    if (moments.contains(piece.logical.name)) divert(piece);
}

checkpoint::SaveRequest StateWriter::request(const RunCounters& counters, const HealthState& health,
                                             const data::LoaderState& loader) {
  const Recipe& recipe = trainer_.recipe();
  for (Copy& copy : copies_) copy_to_host(copy.live, 0, copy.bytes);
  for (const KeptOnDevice& kept : kept_) kernels::copy(trainer_.context(), kept.live, kept.copy);
  if (trainer_.model().groups().rank() != 0)
    return {.step = counters.step, .model = model_, .optim = optim_};
  arrays_ = data::to_arrays(loader);
  loader_.clear();
  for (data::NamedIntegers& array : arrays_)
    loader_.push_back(loader_piece(array.name, array.values));
  checkpoint::SaveRequest request{
      .step = counters.step, .model = model_, .optim = optim_, .loader = loader_, .whole = whole_};
  request.extra = {{kTrainerFile,
                    to_json({counters, recipe.train.seed, trainer_.optimizer().num_steps(),
                             trainer_.balancer().num_updates(), health}),
                    true},
                   {"recipe.toml", to_toml(recipe), false}};
  models::describe_model(model_of(recipe.model), request);
  if (recipe.tune.freezes("model.embed_tokens.weight")) request.aliases.clear();
  if (base_) request.extra.push_back({models::kBaseModelFile, models::to_json(*base_), true});
  models::add_companions(companions_, "", request.extra, request.sections);
  request.sections["trainer"] = Ordered{
      {"step", counters.step},
      {"samples", counters.samples},
      {"tokens", counters.tokens},
      {"lr", trainer_.learning_rate(counters.step)},
      {"isa", isa_}}.dump();
  request.sections["optimizer"] =
      Ordered{{"matrices", recipe.optim.matrices == MatrixOptimizer::kMuon ? "muon" : "adamw"},
              {"others", "adamw"},
              {"steps", trainer_.optimizer().num_steps()}}
          .dump();
  request.sections["rng"] = Ordered{
      {"generator", "philox4x32-10"},
      {"seed", recipe.train.seed},
      {"stateless", true}}.dump();
  return request;
}

void add_what_others_keep(std::vector<LogicalTensor> whole, std::vector<Piece>& pieces) {
  std::set<std::string> here;
  for (const Piece& piece : pieces) here.insert(piece.logical.name);
  for (LogicalTensor& tensor : whole) {
    if (here.contains(tensor.name)) continue;
    Shape none = tensor.global_shape;
    for (int dim = 0; dim < none.ndim(); ++dim) none[dim] = 0;
    const Tensor nothing{nullptr, tensor.dtype, Device::kCpu, none};
    pieces.push_back({std::move(tensor), {none, none}, nothing});
  }
}

namespace {

void check_base(const checkpoint::StepReader& reader, const models::BaseModel& found) {
  ASHLAR_REQUIRE(reader.has_blob(models::kBaseModelFile), kConfig,
                 "{} was made by a run that trained all tensors; leave out train.freeze and "
                 "lora.rank, or begin a run from it with init.model={} and another train.run_dir",
                 reader.directory(), reader.directory());
  const std::string place =
      join(reader.directory(), std::string("extra/") + models::kBaseModelFile);
  require_same_base(models::parse_base_model(reader.read_blob(models::kBaseModelFile), place),
                    found, reader.directory());
}

}  // namespace

Restored restore(const checkpoint::StepReader& reader, Trainer& trainer,
                 const std::optional<models::BaseModel>& base) {
  ASHLAR_REQUIRE(
      reader.has_blob(kTrainerFile), kConfig,
      "{} holds weights and no state of a run, as `ashlar ckpt import` makes it, so that "
      "nothing continues from it; begin a run from its weights with init.model={} and "
      "another train.run_dir",
      reader.directory(), reader.directory());
  if (base) check_base(reader, *base);
  const TrainerState state = parse_trainer_state(reader.read_blob(kTrainerFile),
                                                 join(reader.directory(), "extra/trainer.json"));
  std::vector<Piece> pieces = trainer.model().pieces(false);
  for (Piece& piece : trainer.optimizer_pieces(false)) pieces.push_back(std::move(piece));
  std::vector<data::NamedIntegers> arrays;
  // The step lists its arrays; loader_state_from() checks them.
  for (const checkpoint::IndexTensor& tensor : reader.index().tensors)
    if (tensor.logical.role == Role::kLoader)
      arrays.push_back(
          {tensor.logical.name, std::vector<int64_t>(size_t(tensor.logical.global_shape.numel()))});
  for (data::NamedIntegers& array : arrays)
    pieces.push_back(loader_piece(array.name, array.values));
  add_what_others_keep(trainer.whole_state(), pieces);
  const checkpoint::LoadReport report =
      reader.load(pieces, {.components = {},
                           .allow_missing = {},
                           .allow_unexpected = {},
                           .cast = {{DType::kF32, DType::kF64}, {DType::kF64, DType::kF32}}});
  trainer.restore_counters(state.optimizer_steps, state.balancer_updates);
  return {.counters = state.counters,
          .health = state.health,
          .loader = data::loader_state_from(arrays),
          .recipe = reader.has_blob("recipe.toml") ? reader.read_blob("recipe.toml") : "",
          .isa = isa_in(reader.manifest()),
          .num_converted = int64_t(report.cast.size()),
          .inherited = {models::companions_in(reader), join(reader.directory(), "extra"),
                        models::model_of_step(reader).eos_token_ids}};
}

}  // namespace ashlar::train
