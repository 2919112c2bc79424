#include "ashlar/checkpoint/format/manifest.h"

#include <algorithm>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/core/fields.h"

namespace ashlar::checkpoint {
namespace {

constexpr std::string_view kSections[] = {"optimizer", "loader", "rng", "trainer",
                                          "mesh",      "quant",  "hf"};

Id parse_id_at(const Fields& fields, std::string_view key) {
  const auto id = parse_id(fields.text(key));
  if (!id) fields.fail("{} is '{}'; expected 32 lower-case hex digits", key, fields.text(key));
  return *id;
}

void check_version(const Fields& fields) {
  if (fields.text("format") != "ashlar")
    fields.fail("format is '{}'; expected 'ashlar'", fields.text("format"));
  if (fields.count("version") != 1)
    fields.fail("format version {} is unknown; this program reads version 1",
                fields.count("version"));
  const Json& features = fields.at("required_features");
  if (!features.is_array() || !features.empty())
    fields.fail("required_features is {}; this program knows none: use a newer version of it",
                shown(features));
}

void parse_files(const Fields& fields, const std::string& path, Manifest& manifest) {
  for (const Json& item : fields.array("files")) {
    const Fields file(item, path + ": files");
    manifest.files.push_back({file.text("path"), file.count("size"), parse_id_at(file, "uuid")});
    if (!is_safe_path(manifest.files.back().path))
      fields.fail("files: path '{}' must be relative, without '..'", manifest.files.back().path);
  }
}

}  // namespace

bool is_manifest_section(std::string_view name) {
  return std::find(std::begin(kSections), std::end(kSections), name) != std::end(kSections);
}

std::string build_manifest(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar";
  json["version"] = 1;
  json["required_features"] = nlohmann::ordered_json::array();
  json["optional_features"] = nlohmann::ordered_json::array();
  json["run_id"] = manifest.run_id;
  json["step"] = manifest.step;
  json["attempt"] = to_text(manifest.attempt);
  json["created"] = manifest.created;
  json["writer_version"] = manifest.writer_version;
  json["durability"] = manifest.durability;
  json["components"] = nlohmann::ordered_json::object();
  for (const auto& [name, total] : manifest.components)
    json["components"][name] = {{"bytes", total.bytes}, {"files", total.files}};
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files)
    json["files"].push_back(
        {{"path", file.path}, {"size", file.size_bytes}, {"uuid", to_text(file.uuid)}});
  json["tensors_total"] = manifest.tensors_total;
  json["aliases"] = nlohmann::ordered_json(manifest.aliases);
  for (const auto& [name, text] : manifest.sections) {
    ASHLAR_ASSERT(is_manifest_section(name));
    json[name] = nlohmann::ordered_json::parse(text);
  }
  json["verdict"] = "candidate";
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  if (int64_t(text.size()) > kMaxManifestBytes)
    raise(ErrorKind::kCorrupt, "{}: {} bytes; at most {} are allowed", path, text.size(),
          kMaxManifestBytes);
  const Json json = parse_json(text, path, ErrorKind::kCorrupt, kMaxManifestValues);
  const Fields fields(json, path);
  check_version(fields);
  Manifest manifest;
  manifest.run_id = fields.text("run_id");
  manifest.step = fields.count("step");
  manifest.attempt = parse_id_at(fields, "attempt");
  manifest.created = fields.text("created");
  manifest.writer_version = fields.text("writer_version");
  manifest.durability = fields.text("durability");
  manifest.tensors_total = fields.count("tensors_total");
  const Fields components = fields.object("components");
  for (const auto& item : fields.at("components").items()) {
    const Fields total = components.object(item.key());
    manifest.components[item.key()] = {total.count("bytes"), total.count("files")};
  }
  parse_files(fields, path, manifest);
  const Fields aliases = fields.object("aliases");
  for (const auto& item : fields.at("aliases").items())
    manifest.aliases[item.key()] = aliases.text(item.key());
  for (const std::string_view section : kSections) {
    const std::string name(section);
    if (!fields.has(name)) continue;
    fields.object(name);
    manifest.sections[name] = fields.at(name).dump();
  }
  return manifest;
}

}  // namespace ashlar::checkpoint
