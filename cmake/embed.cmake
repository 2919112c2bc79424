# ashlar_embed(<target> <namespace> <function> FILES...): compiles text files into the target.  It
# defines FUNCTION_text(name), the text of the file of this name or null, and FUNCTION_names(), the
# names of all.  Names lose folder and extension; "d3.txt" becomes "d3_txt".
function(ashlar_embed TARGET NAMESPACE FUNCTION)
  set(OUT ${PROJECT_BINARY_DIR}/embedded/${TARGET}_${FUNCTION}.cpp)
  set(CASES "")
  set(NAMES "")
  foreach(FILE ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FILE})
    get_filename_component(NAME ${FILE} NAME)
    string(REGEX REPLACE "\\.(toml|css|min\\.js|js)$" "" NAME ${NAME})
    string(REPLACE "." "_" NAME ${NAME})
    file(READ ${FILE} TEXT)
    # A string literal has at most 64 KiB in portable C++: longer texts are joined from several.
    string(LENGTH "${TEXT}" LENGTH)
    set(LITERALS "")
    set(AT 0)
    while(AT LESS LENGTH)
      string(SUBSTRING "${TEXT}" ${AT} 16000 PART)
      string(APPEND LITERALS "\n    R\"embedded(${PART})embedded\"")
      math(EXPR AT "${AT} + 16000")
    endwhile()
    string(APPEND CASES "  if (name == \"${NAME}\") return ${LITERALS};\n")
    string(APPEND NAMES "\"${NAME}\", ")
  endforeach()
  file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [=[// Made by cmake/embed.cmake.
#include <string>
#include <string_view>
#include <vector>

namespace @NAMESPACE@ {
const char* @FUNCTION@_text(std::string_view name);
std::vector<std::string> @FUNCTION@_names();

const char* @FUNCTION@_text(std::string_view name) {
@CASES@  return nullptr;
}
std::vector<std::string> @FUNCTION@_names() {
  return {@NAMES@};
}
}  // namespace @NAMESPACE@
]=])
  target_sources(${TARGET} PRIVATE ${OUT})
  set_source_files_properties(${OUT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
