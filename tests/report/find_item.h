// The chart or table of a page with a title.
#pragma once

#include <string_view>

#include "ashlar/report/page.h"

namespace ashlar::report {

// Null: there is none of this title and kind.
template <typename Kind>
const Kind* item_of(const Page& page, std::string_view title) {
  for (const PageSection& section : page.sections)
    for (const Item& item : section.items)
      if (const Kind* found = std::get_if<Kind>(&item); found && found->title == title)
        return found;
  return nullptr;
}

}  // namespace ashlar::report
