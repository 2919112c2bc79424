#include "ashlar/cli/command.h"

int main(int argc, char** argv) {
  return ashlar::cli::run(argc, argv);
}
