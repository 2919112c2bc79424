# Computing on GPUs.  Every build has ashlar_gpu: the functions of kernels/ops.h for GPUs, which call
# the functions of launch.h and device.h.  Those are defined in gpu_device: the kernels that ASHLAR_GPU names, or
# without it functions that say that there is no GPU.  A program that links the objects of an
# emulator takes them from there, since objects come before libraries.
#
# Kernels for GPUs: ashlar/kernels/gpu/*.cu, compiled by g++ for the emulator in every build, and by
# the compiler of a vendor where ASHLAR_GPU asks for it (docs/gpu.md).  The tests of
# tests/kernels/gpu are compiled once and linked with each.
set(ASHLAR_GPU "off" CACHE STRING "kernels are also compiled for a GPU: off, cuda or hip")
file(GLOB GPU_SOURCES CONFIGURE_DEPENDS ashlar/kernels/gpu/*.cu)
file(GLOB GPU_TEST_SOURCES CONFIGURE_DEPENDS tests/kernels/gpu/*.cu)
set(GPU_KERNELS ${GPU_SOURCES} ${GPU_TEST_SOURCES})
file(GLOB GPU_LAUNCHES CONFIGURE_DEPENDS ashlar/kernels/gpu/launch/*.h)
file(GLOB GPU_HEADERS CONFIGURE_DEPENDS ashlar/kernels/gpu/*.h tests/kernels/gpu/*.h)
list(APPEND GPU_HEADERS ${GPU_LAUNCHES})
file(GLOB GPU_EMULATOR CONFIGURE_DEPENDS ashlar/kernels/gpu/emulator/*.cpp)
file(GLOB GPU_HOST CONFIGURE_DEPENDS ashlar/kernels/gpu/*.cpp ashlar/kernels/gpu/blas/*.cpp)
file(GLOB GPU_TESTS CONFIGURE_DEPENDS tests/kernels/gpu/*_test.cpp)
# With these the device is the host: planted faults, a library of products that reads host memory, and one that stands
# for AMD's runtime.
set(GPU_EMULATOR_TESTS ${PROJECT_SOURCE_DIR}/tests/kernels/gpu/faults_test.cpp
    ${PROJECT_SOURCE_DIR}/tests/kernels/gpu/cublaslt_test.cpp
    ${PROJECT_SOURCE_DIR}/tests/kernels/gpu/hip_runtime_test.cpp)
set(HIP_RUNTIME ${PROJECT_SOURCE_DIR}/ashlar/kernels/gpu/hip/runtime.cpp)
list(REMOVE_ITEM GPU_TESTS ${GPU_EMULATOR_TESTS})

add_library(ashlar_gpu STATIC ${GPU_HOST})
ashlar_unity(ashlar_gpu)
ashlar_embed(ashlar_gpu ashlar::kernels::gpu::blas shipped ashlar/kernels/gpu/blas/cublaslt.txt)
add_library(gpu_device STATIC)
target_link_libraries(ashlar_gpu PUBLIC ashlar_kernels gpu_device ${CMAKE_DL_LIBS})
target_link_libraries(ashlar_eval PUBLIC ashlar_gpu)
target_link_libraries(ashlar_train PUBLIC ashlar_gpu)

# The kernels and the emulator for one size of a warp, as object files.  With RACES they are for
# ThreadSanitizer, which sees the accesses of the kernels and not those of the emulator.
function(ashlar_gpu_emulator NAME WARP RACES)
  add_library(${NAME}_kernels OBJECT ${GPU_KERNELS})
  add_library(${NAME} OBJECT ${GPU_EMULATOR})
  foreach(TARGET ${NAME}_kernels ${NAME})
    target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_definitions(${TARGET} PRIVATE ASHLAR_WARP=${WARP} ASHLAR_RACES=${RACES})
    target_compile_options(${TARGET} PRIVATE -march=x86-64-v3 -ffp-contract=off -Wno-unknown-pragmas)
  endforeach()
  # -O2 compiles in half of the time of -O3, with which matrix instructions of the emulator take half of the time.
  target_compile_options(${NAME}_kernels PRIVATE -O2 -x c++)
  if(RACES)
    target_compile_options(${NAME}_kernels PRIVATE -O1 -g1 -fsanitize=thread)
  endif()
endfunction()

# Fibers are no threads that the sanitizers of a preset know, and the switch of stacks is written
# for one processor.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64 AND NOT ASHLAR_SANITIZE)
  set_source_files_properties(${GPU_KERNELS} PROPERTIES LANGUAGE CXX)
  ashlar_gpu_emulator(gpu_emulator_32 32 0)
  ashlar_gpu_emulator(gpu_emulator_64 64 0)
  ashlar_gpu_emulator(gpu_emulator_races 32 1)

  add_library(gpu_tests OBJECT ${GPU_TESTS})
  ashlar_test_program(gpu_tests)
  target_compile_definitions(gpu_tests PRIVATE
    ASHLAR_GPU_CHECKSUMS="${PROJECT_SOURCE_DIR}/tests/kernels/gpu/checksums.txt")
  target_link_libraries(gpu_tests PUBLIC ashlar_gpu GTest::gtest)
  # Libraries by vendors' names that tests load.  Of cuBLASLt one multiplies, one has the version's function alone.
  foreach(FAKE whole partial)
    add_library(fake_amdhip_${FAKE} MODULE tests/kernels/gpu/fake_amdhip.cpp)
    set_target_properties(fake_amdhip_${FAKE} PROPERTIES PREFIX "" OUTPUT_NAME libamdhip64.so SUFFIX .6
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_amdhip/${FAKE})
    add_library(fake_cublaslt_${FAKE} MODULE tests/kernels/gpu/fake_cublaslt.cpp)
    set_target_properties(fake_cublaslt_${FAKE} PROPERTIES PREFIX "" OUTPUT_NAME libcublasLt.so SUFFIX .13
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cublaslt/${FAKE})
  endforeach()
  target_compile_definitions(fake_cublaslt_partial PRIVATE FAKE_IS_PARTIAL)
  target_compile_definitions(fake_amdhip_partial PRIVATE FAKE_IS_PARTIAL)
  set_source_files_properties(${HIP_RUNTIME} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(gpu_emulator_tests OBJECT ${GPU_EMULATOR_TESTS} ${HIP_RUNTIME})
  ashlar_test_program(gpu_emulator_tests)
  target_link_libraries(gpu_emulator_tests PUBLIC ashlar_gpu GTest::gtest)
  target_compile_definitions(gpu_emulator_tests PRIVATE ASHLAR_FAKE_CUBLASLT="${PROJECT_BINARY_DIR}/fake_cublaslt"
                             ASHLAR_FAKE_AMDHIP="${PROJECT_BINARY_DIR}/fake_amdhip")
  find_path(ASHLAR_CUBLASLT_INCLUDE cublasLt.h HINTS /usr/local/cuda/include $ENV{HOME}/.cache/ashlar/cuda/nvidia/cu13/include)
  if(ASHLAR_CUBLASLT_INCLUDE)
    set_source_files_properties(tests/kernels/gpu/cublaslt_header_test.cpp PROPERTIES
                                COMPILE_OPTIONS "-isystem;${ASHLAR_CUBLASLT_INCLUDE}" SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  foreach(KIND 32 64 races)
    add_executable(gpu_${KIND}_test)
    add_dependencies(gpu_${KIND}_test fake_cublaslt_whole fake_cublaslt_partial fake_amdhip_whole fake_amdhip_partial)
    target_link_libraries(gpu_${KIND}_test PRIVATE gpu_tests gpu_emulator_tests gpu_emulator_${KIND}
                          gpu_emulator_${KIND}_kernels GTest::gtest_main)
  endforeach()
  add_library(gpu_tool OBJECT tests/kernels/gpu/tool.cpp)
  ashlar_test_program(gpu_tool)
  target_link_libraries(gpu_tool PUBLIC ashlar_gpu GTest::gtest)
  add_executable(gpu_32_tool)
  target_link_libraries(gpu_32_tool PRIVATE gpu_tool gpu_emulator_32 gpu_emulator_32_kernels)
  # The program with an emulator behind it, for tests: ashlar_emulator_32 train RECIPE train.device=gpu
  foreach(WARP 32 64)
    add_executable(ashlar_emulator_${WARP} ashlar/cli/main.cpp)
    target_link_libraries(ashlar_emulator_${WARP} PRIVATE ashlar_cli gpu_emulator_${WARP} gpu_emulator_${WARP}_kernels)
  endforeach()
  # Training on a GPU.
  file(GLOB GPU_TRAIN_TESTS CONFIGURE_DEPENDS tests/train/gpu/*_test.cpp)
  add_library(gpu_train_tests OBJECT ${GPU_TRAIN_TESTS})
  ashlar_test_program(gpu_train_tests)
  target_compile_definitions(gpu_train_tests PRIVATE ASHLAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  target_link_libraries(gpu_train_tests PUBLIC ashlar_train GTest::gtest)
  # Evaluating and generating on a GPU: all kernels have tests with both sizes of a warp, so one is enough.
  file(GLOB GPU_EVAL_TESTS CONFIGURE_DEPENDS tests/eval/gpu/*_test.cpp)
  add_library(gpu_eval_tests OBJECT ${GPU_EVAL_TESTS})
  ashlar_test_program(gpu_eval_tests)
  target_compile_definitions(gpu_eval_tests PRIVATE ASHLAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  target_link_libraries(gpu_eval_tests PUBLIC ashlar_eval GTest::gtest)
  add_executable(gpu_eval_32_test)
  target_link_libraries(gpu_eval_32_test PRIVATE gpu_eval_tests gpu_emulator_32 gpu_emulator_32_kernels GTest::gtest_main)
  gtest_discover_tests(gpu_eval_32_test TEST_PREFIX gpu.eval.32. PROPERTIES LABELS fast TIMEOUT 120 DISCOVERY_TIMEOUT 60)
  foreach(WARP 32 64)
    add_executable(gpu_train_${WARP}_test)
    target_link_libraries(gpu_train_${WARP}_test PRIVATE gpu_train_tests gpu_emulator_${WARP}
                          gpu_emulator_${WARP}_kernels GTest::gtest_main)
    gtest_discover_tests(gpu_train_${WARP}_test TEST_PREFIX gpu.train.${WARP}. TEST_FILTER Nightly.*
                         PROPERTIES LABELS nightly TIMEOUT 7200 DISCOVERY_TIMEOUT 60)
  endforeach()
  # With warps of 64 the gradients of every recipe are compared, since all else follows from the bits of kernels.
  set(GRADIENTS *.GradientsAreThoseOfTheCpu/*)
  gtest_discover_tests(gpu_train_32_test TEST_PREFIX gpu.train.32. TEST_FILTER -Long.*:Nightly.*
                       PROPERTIES LABELS fast TIMEOUT 300 DISCOVERY_TIMEOUT 60)
  gtest_discover_tests(gpu_train_32_test TEST_PREFIX gpu.train.32. TEST_FILTER Long.*
                       PROPERTIES LABELS long TIMEOUT 900 DISCOVERY_TIMEOUT 60)
  gtest_discover_tests(gpu_train_64_test TEST_PREFIX gpu.train.64. TEST_FILTER ${GRADIENTS}
                       PROPERTIES LABELS fast TIMEOUT 300 DISCOVERY_TIMEOUT 60)
  gtest_discover_tests(gpu_train_64_test TEST_PREFIX gpu.train.64. TEST_FILTER -${GRADIENTS}:Nightly.*
                       PROPERTIES LABELS long TIMEOUT 900 DISCOVERY_TIMEOUT 60)
  foreach(WARP 32 64)
    gtest_discover_tests(gpu_${WARP}_test TEST_PREFIX gpu.${WARP}. PROPERTIES LABELS fast TIMEOUT 120
                         DISCOVERY_TIMEOUT 60)
  endforeach()
  # The runtime of g++ 12 may not start where addresses are random.
  target_link_options(gpu_races_test PRIVATE -fsanitize=thread)
  find_program(SETARCH setarch REQUIRED)
  # The planted faults run in children, for which ThreadSanitizer ignores the host once there are
  # fibers: they get a process of their own.
  set(RACES_TEST ${SETARCH} -R $<TARGET_FILE:gpu_races_test> --gtest_brief=1)
  # gpu.races takes every 11th case of a test with a table, gpu.races.all takes all.  11 is prime to the sizes of the
  # loops over types and flags, so that each of their values gets a turn.
  set(OPS -Language.Functions*:Faults.*)
  add_test(NAME gpu.races COMMAND ${RACES_TEST}
           --gtest_filter=${OPS}:GpuMergeNorm.InOne*:GpuGroups.OfRowsOfTheModels:GpuGroups.OfColumnsOfManyGroups:CublasLt.*)
  add_test(NAME gpu.races.all COMMAND ${RACES_TEST} --gtest_filter=${OPS})
  add_test(NAME gpu.races.faults COMMAND ${RACES_TEST} --gtest_filter=Faults.*)
  set_tests_properties(gpu.races PROPERTIES LABELS fast TIMEOUT 300 ENVIRONMENT ASHLAR_GPU_EVERY=11)
  set_tests_properties(gpu.races.all gpu.races.faults PROPERTIES LABELS long TIMEOUT 900)
endif()

# Dry runs of the windows with a card: their reports, line by line.
set(WINDOWS nothing)
if(TARGET gpu_32_tool)
  list(APPEND WINDOWS correctness sanitizers benches)
endif()
foreach(WINDOW ${WINDOWS})
  add_test(NAME gpu.window.${WINDOW} COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu_window/run ${WINDOW})
  set_tests_properties(gpu.window.${WINDOW} PROPERTIES LABELS fast TIMEOUT 300 ENVIRONMENT BUILD=${PROJECT_BINARY_DIR})
endforeach()
if(TARGET gpu_32_tool)  # its tests run in gpu.32, too
  set_tests_properties(gpu.window.correctness PROPERTIES LABELS long)
endif()

add_test(NAME gpu.sources COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_gpu.sh)
foreach(ARCHITECTURE sm_80 sm_90a gfx90a gfx942)
  add_test(NAME gpu.code.${ARCHITECTURE} COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_gpu_code ${ARCHITECTURE})
  set_tests_properties(gpu.code.${ARCHITECTURE} PROPERTIES LABELS gpu_code TIMEOUT 600 SKIP_RETURN_CODE 77)
endforeach()
# Every kernel is compiled for the newer architecture of a vendor in the ordinary tests.
set_tests_properties(gpu.code.sm_80 gpu.code.gfx90a PROPERTIES LABELS "gpu_code;long")
set_tests_properties(gpu.sources PROPERTIES LABELS fast TIMEOUT 120)

# gpu_device, which defines the functions of launch.h and device.h in an ordinary program.
if(ASHLAR_GPU STREQUAL cuda)
  find_program(ASHLAR_NVCC nvcc HINTS $ENV{HOME}/.cache/ashlar/cuda/nvidia/cu13/bin /usr/local/cuda/bin REQUIRED
               DOC "nvcc of CUDA 13 (scripts/setup --cuda)")
  cmake_path(GET ASHLAR_NVCC PARENT_PATH CUDA_BIN)
  find_library(ASHLAR_CUDART cudart_static HINTS ${CUDA_BIN}/../lib ${CUDA_BIN}/../lib64 REQUIRED)
  set(GPU_COMPILER ${ASHLAR_NVCC} -std=c++20 -O3 --fmad=false -gencode=arch=compute_80,code=sm_80
                   -gencode=arch=compute_90a,code=sm_90a -x cu)
  set(GPU_LIBRARIES ${ASHLAR_CUDART} ${CMAKE_DL_LIBS} rt)
elseif(ASHLAR_GPU STREQUAL hip)
  find_program(ASHLAR_CLANG clang++-19 REQUIRED DOC "clang 19 (scripts/setup --hip)")
  set(GPU_COMPILER ${ASHLAR_CLANG} -x hip -std=c++20 -O3 -ffp-contract=off -nogpulib -nogpuinc
                   --offload-arch=gfx90a --offload-arch=gfx942)
  # The runtime is loaded, and not linked.
  target_sources(gpu_device PRIVATE ${HIP_RUNTIME})
  target_include_directories(gpu_device PRIVATE ${PROJECT_SOURCE_DIR})
  set(GPU_LIBRARIES ashlar_core ${CMAKE_DL_LIBS})
elseif(ASHLAR_GPU)
  message(FATAL_ERROR "ASHLAR_GPU is ${ASHLAR_GPU}: off, cuda or hip")
endif()
# The objects of kernels, compiled for ASHLAR_GPU.
function(ashlar_gpu_objects OUT)  # then kernels
  set(OBJECTS "")
  foreach(KERNEL ${ARGN})
    cmake_path(GET KERNEL STEM NAME)
    set(OBJECT ${PROJECT_BINARY_DIR}/gpu/${NAME}.o)
    add_custom_command(OUTPUT ${OBJECT} COMMAND ${GPU_COMPILER} -I${PROJECT_SOURCE_DIR} -c ${KERNEL} -o ${OBJECT}
                       DEPENDS ${KERNEL} ${GPU_HEADERS} COMMENT "Building ${NAME}.cu for ${ASHLAR_GPU}")
    list(APPEND OBJECTS ${OBJECT})
  endforeach()
  set_source_files_properties(${OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${OUT} ${OBJECTS} PARENT_SCOPE)
endfunction()
if(ASHLAR_GPU)
  # A package carries its libraries in lib, also those that only libraries need (scripts/gpu_package.sh).
  set(CMAKE_BUILD_RPATH $ORIGIN/lib)
  add_link_options(-Wl,--disable-new-dtags)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)
  ashlar_gpu_objects(GPU_OBJECTS ${GPU_SOURCES})
  target_sources(gpu_device PRIVATE ${GPU_OBJECTS})
  set_target_properties(gpu_device PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(gpu_device PUBLIC ${GPU_LIBRARIES})
  # The tests of the language and of all ops on a card, and what scripts/gpu_window.sh needs besides.
  ashlar_gpu_objects(GPU_TEST_OBJECTS ${GPU_TEST_SOURCES})
  add_executable(gpu_${ASHLAR_GPU}_test ${GPU_TEST_OBJECTS})
  target_link_libraries(gpu_${ASHLAR_GPU}_test PRIVATE gpu_tests GTest::gtest_main)
  add_executable(gpu_${ASHLAR_GPU}_tool ${GPU_TEST_OBJECTS})
  target_link_libraries(gpu_${ASHLAR_GPU}_tool PRIVATE gpu_tool)
  add_executable(gpu_${ASHLAR_GPU}_golden tests/train/gpu/golden_test.cpp)
  ashlar_test_program(gpu_${ASHLAR_GPU}_golden)
  target_compile_definitions(gpu_${ASHLAR_GPU}_golden PRIVATE ASHLAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  target_link_libraries(gpu_${ASHLAR_GPU}_golden PRIVATE ashlar_train GTest::gtest_main)
  gtest_discover_tests(gpu_${ASHLAR_GPU}_test TEST_PREFIX gpu.${ASHLAR_GPU}. PROPERTIES LABELS fast TIMEOUT 120
                       DISCOVERY_TIMEOUT 60)
else()
  # A launch for each struct of launch.h that has one.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${GPU_LAUNCHES})
  set(LAUNCHES "")
  foreach(HEADER ${GPU_LAUNCHES})
    file(READ ${HEADER} TEXT)
    string(REGEX MATCHALL "std::string launch\\(const [A-Za-z]+&\\)" OF_HEADER "${TEXT}")
    list(APPEND LAUNCHES ${OF_HEADER})
  endforeach()
  list(JOIN LAUNCHES " { return missing()@ }\n" LAUNCHES)
  string(REPLACE "@" ";" LAUNCHES "${LAUNCHES} { return missing()@ }")
  configure_file(cmake/no_gpu.cpp.in ${PROJECT_BINARY_DIR}/generated/no_gpu.cpp @ONLY)
  target_sources(gpu_device PRIVATE ${PROJECT_BINARY_DIR}/generated/no_gpu.cpp)
  target_include_directories(gpu_device PRIVATE ${PROJECT_SOURCE_DIR})
endif()
