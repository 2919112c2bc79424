// Reads the table of products that a recipe names (train.machine): which forms of products were
// faster on this machine.  Results stay equal bit for bit (kernels/product_forms.h).
#pragma once

#include <memory>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/kernels/product_forms.h"
#include "ashlar/machine/product_choices.h"
#include "ashlar/machine/profile.h"

namespace ashlar::train {

// An entry as the file has it, and back.  kConfig, with `source`, for an op that is no product.
machine::ProductChoice choice_of(const kernels::ProductEntry& entry);
kernels::ProductEntry entry_of(const machine::ProductChoice& choice, const std::string& source);

// The table that the profile, read from `path`, names.
// Errors   kConfig: the profile has no table, or it is of another processor or instruction set, or
//          of kernels with other forms; kCorrupt: the table is not the one that the profile names.
std::vector<machine::ProductChoice> read_product_choices(FileSystem& files,
                                                         const machine::Profile& profile,
                                                         const std::string& path);

// The table of the profile `path`; null if that is "".
std::unique_ptr<kernels::ProductTable> read_product_table(FileSystem& files,
                                                          const std::string& path);

// How often kernels found a form so far: "runs/machine.toml has 48 forms of products: 210 of 240
// calls took one, 12 of these that of other rows; 30 followed the rules"
std::string describe(const kernels::ProductTable& table, const std::string& path);

}  // namespace ashlar::train
