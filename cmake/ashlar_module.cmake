# Code of tests runs once and is compiled in every build: little optimization makes that a third
# shorter.
function(ashlar_test_program TARGET)
  target_compile_options(${TARGET} PRIVATE -O1)
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
#               [TEST_LIBRARIES targets...] [SHARDED_SUITES suites...] [ROOMS folders...]): library
# ashlar_<name> of every .cpp under ashlar/<name>/, and the test program <name>_test of every
# tests/<name>/*_test.cpp.
#
# USES are the modules whose headers the sources include, TEST_USES those that the tests include
# besides, which may stand below.  scripts/check_layers.sh (the test `layers`) rejects an include of
# any other module, and a module that nobody includes.  LIBRARIES are third-party; TEST_LIBRARIES
# serve the tests alone.  ROOMS are the folders of a large module, lowest first: the test `layers`
# rejects an include of a room behind its own.  SHARDED_SUITES are tables of so many cases that a
# few tests run them all.
function(ashlar_module NAME)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "USES;TEST_USES;ROOMS;LIBRARIES;TEST_LIBRARIES;SHARDED_SUITES")
  file(GLOB_RECURSE SOURCES CONFIGURE_DEPENDS ashlar/${NAME}/*.cpp)
  list(FILTER SOURCES EXCLUDE REGEX "/main\\.cpp$")
  list(TRANSFORM ARG_USES PREPEND "ashlar_" OUTPUT_VARIABLE USED)
  list(TRANSFORM ARG_TEST_USES PREPEND "ashlar_" OUTPUT_VARIABLE TEST_USED)
  add_library(ashlar_${NAME} STATIC ${SOURCES})
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
    gtest_discover_tests(${NAME}_test TEST_PREFIX ${NAME}. TEST_FILTER "${ONE_BY_ONE}"
                         PROPERTIES LABELS fast TIMEOUT 120 DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
