# Code of tests runs once and is compiled in every build: little optimization makes that a third
# shorter.
function(ashlar_test_program TARGET)
  target_compile_options(${TARGET} PRIVATE -O1)
endfunction()

# ashlar_module(<name> [USES modules...] [TEST_USES modules...] [LIBRARIES targets...]
#               [TEST_LIBRARIES targets...]): library ashlar_<name> of every .cpp under ashlar/<name>/,
# and the test program <name>_test of every tests/<name>/*_test.cpp.
#
# USES are the modules whose headers the sources include, TEST_USES those that the tests include
# besides, which may stand below.  scripts/check_layers.sh (the test `layers`) rejects an include of
# any other module, and a module that nobody includes.  LIBRARIES are third-party; TEST_LIBRARIES
# serve the tests alone.
function(ashlar_module NAME)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "USES;TEST_USES;LIBRARIES;TEST_LIBRARIES")
  file(GLOB_RECURSE SOURCES CONFIGURE_DEPENDS ashlar/${NAME}/*.cpp)
  list(FILTER SOURCES EXCLUDE REGEX "/main\\.cpp$")
  list(TRANSFORM ARG_USES PREPEND "ashlar_" OUTPUT_VARIABLE USED)
  list(TRANSFORM ARG_TEST_USES PREPEND "ashlar_" OUTPUT_VARIABLE TEST_USED)
  add_library(ashlar_${NAME} STATIC ${SOURCES})
  target_include_directories(ashlar_${NAME} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(ashlar_${NAME} PUBLIC ${USED} PRIVATE ${ARG_LIBRARIES})

  file(GLOB TESTS CONFIGURE_DEPENDS tests/${NAME}/*_test.cpp)
  if(TESTS)
    add_executable(${NAME}_test ${TESTS})
    target_compile_definitions(${NAME}_test PRIVATE ASHLAR_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
    ashlar_test_program(${NAME}_test)
    target_link_libraries(${NAME}_test PRIVATE ashlar_${NAME} ${TEST_USED} ${ARG_LIBRARIES}
                          ${ARG_TEST_LIBRARIES} GTest::gtest_main)
    gtest_discover_tests(${NAME}_test TEST_PREFIX ${NAME}. PROPERTIES LABELS fast TIMEOUT 120
                         DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
