# Compiles the sources of a target joined, at most twelve in a file, for most of the time goes to
# headers that every source includes again.  Sources that include a source, as Highway's do, stay
# alone, and those with code for one instruction set, which has the names of that for another.
function(ashlar_unity TARGET)
  get_target_property(SOURCES ${TARGET} SOURCES)
  set(COUNT 0)
  foreach(SOURCE ${SOURCES})
    file(STRINGS ${SOURCE} ALONE REGEX "HWY_TARGET_INCLUDE|gnu::target|^#include .*\\.cpp" LIMIT_COUNT 1)
    if(ALONE)
      set_source_files_properties(${SOURCE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    else()
      math(EXPR COUNT "${COUNT} + 1")
    endif()
  endforeach()
  if(NOT ASHLAR_UNITY OR COUNT LESS 2)
    return()
  endif()
  math(EXPR UNITS "(${COUNT} + 11) / 12")
  math(EXPR EVEN "(${COUNT} + ${UNITS} - 1) / ${UNITS}")
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${EVEN})
  # The warning is meant for headers, and takes a joined source for one.
  target_compile_options(${TARGET} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# Code of tests runs once and is compiled in every build: little optimization makes that a third
# shorter.
function(ashlar_test_program TARGET)
  target_compile_options(${TARGET} PRIVATE -O1)
  ashlar_unity(${TARGET})
endfunction()

# The cases of one large table as `shards` tests: a process a case would begin more often than test.
# The test that fails prints the case by name.
function(ashlar_sharded_tests TARGET PREFIX SUITE SHARDS LABEL)
  math(EXPR LAST "${SHARDS} - 1")
  foreach(SHARD RANGE ${LAST})
    set(NAME ${PREFIX}.${SUITE}.${SHARD}_of_${SHARDS})
    add_test(NAME ${NAME} COMMAND ${TARGET} "--gtest_filter=${SUITE}.*" --gtest_brief=1)
    set_tests_properties(${NAME} PROPERTIES LABELS ${LABEL} TIMEOUT 1200  # a minute, and ten under a sanitizer
                         ENVIRONMENT "GTEST_TOTAL_SHARDS=${SHARDS};GTEST_SHARD_INDEX=${SHARD}")
  endforeach()
endfunction()

# ashlar_module(<name> [USES modules...] [TEST_USES modules...] [LIBRARIES targets...]
#               [TEST_LIBRARIES targets...] [SHARDED_SUITES suites...] [LONG_TESTS tests...]
#               [ROOMS folders...]): library
# ashlar_<name> of every .cpp under ashlar/<name>/, and the test program <name>_test of every
# tests/<name>/*_test.cpp.
#
# USES are the modules whose headers the sources include, TEST_USES those that the tests include
# besides, which may stand below.  scripts/check_layers.sh (the test `layers`) rejects an include of
# any other module, and a module that nobody includes.  LIBRARIES are third-party; TEST_LIBRARIES
# serve the tests alone.  ROOMS are the folders of a large module, lowest first: the test `layers`
# rejects an include of a room behind its own.  SHARDED_SUITES are tables of so many cases that a
# few tests run them all; LONG_TESTS, by names or patterns of GoogleTest, get the label long.
function(ashlar_module NAME)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "USES;TEST_USES;ROOMS;LIBRARIES;TEST_LIBRARIES;SHARDED_SUITES;LONG_TESTS")
  file(GLOB_RECURSE SOURCES CONFIGURE_DEPENDS ashlar/${NAME}/*.cpp)
  list(FILTER SOURCES EXCLUDE REGEX "/main\\.cpp$|/kernels/gpu/")  # of the latter: gpu.cmake
  list(TRANSFORM ARG_USES PREPEND "ashlar_" OUTPUT_VARIABLE USED)
  list(TRANSFORM ARG_TEST_USES PREPEND "ashlar_" OUTPUT_VARIABLE TEST_USED)
  add_library(ashlar_${NAME} STATIC ${SOURCES})
  ashlar_unity(ashlar_${NAME})
  target_include_directories(ashlar_${NAME} PUBLIC ${PROJECT_SOURCE_DIR})
  if(NOT NAME STREQUAL kernels)
    target_compile_options(ashlar_${NAME} PRIVATE ${ASHLAR_HARDENING})
  endif()
  target_link_libraries(ashlar_${NAME} PUBLIC ${USED} PRIVATE ${ARG_LIBRARIES})

  file(GLOB TESTS CONFIGURE_DEPENDS tests/${NAME}/*_test.cpp)
  if(TESTS)
    add_executable(${NAME}_test ${TESTS})
    target_compile_definitions(${NAME}_test PRIVATE ASHLAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
    ashlar_test_program(${NAME}_test)
    target_link_libraries(${NAME}_test PRIVATE ashlar_${NAME} ${TEST_USED} ${ARG_LIBRARIES}
                          ${ARG_TEST_LIBRARIES} GTest::gtest_main)
    set(ONE_BY_ONE "-")  # all but these
    foreach(SUITE ${ARG_SHARDED_SUITES})
      ashlar_sharded_tests(${NAME}_test ${NAME} ${SUITE} 8 fast)
      string(APPEND ONE_BY_ONE "${SUITE}.*:")
    endforeach()
    list(JOIN ARG_LONG_TESTS ":" LONG)
    gtest_discover_tests(${NAME}_test TEST_PREFIX ${NAME}. TEST_FILTER "${ONE_BY_ONE}${LONG}"
                         PROPERTIES LABELS fast TIMEOUT 240 DISCOVERY_TIMEOUT 60)
    if(LONG)
      gtest_discover_tests(${NAME}_test TEST_PREFIX ${NAME}. TEST_FILTER "${LONG}"
                           PROPERTIES LABELS long TIMEOUT 900 DISCOVERY_TIMEOUT 60)
    endif()
  endif()
endfunction()
