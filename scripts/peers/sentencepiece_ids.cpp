// Encodes texts with Debian's libsentencepiece on one thread, for text_speed.py.
//
//   g++ -O2 -std=c++20 scripts/peers/sentencepiece_ids.cpp -lsentencepiece -o sentencepiece_ids
//   ./sentencepiece_ids MODEL TEXTS IDS
//
// TEXTS are texts that end with a zero byte each.  IDS are the ids of all, int32, with -1 behind
// every text.  Prints the seconds of CPU time in user mode that encoding takes.
#include <sentencepiece_processor.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

double user_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec) + 1e-6 * double(usage.ru_utime.tv_usec);
}

}  // namespace

int main(int argc, char** argv) {
  sentencepiece::SentencePieceProcessor processor;
  if (argc != 4 || !processor.Load(argv[1]).ok()) return 1;
  std::ifstream in(argv[2], std::ios::binary);
  const std::string texts(std::istreambuf_iterator<char>(in), {});
  std::vector<int32_t> all;
  const double start = user_seconds();
  for (size_t at = 0; at < texts.size();) {
    const size_t end = texts.find('\0', at);
    std::vector<int> ids;
    if (!processor.Encode(std::string_view(texts).substr(at, end - at), &ids).ok()) return 1;
    all.insert(all.end(), ids.begin(), ids.end());
    all.push_back(-1);
    at = end + 1;
  }
  std::printf("%.3f\n", user_seconds() - start);
  std::ofstream out(argv[3], std::ios::binary);
  out.write(reinterpret_cast<const char*>(all.data()), std::streamsize(4 * all.size()));
  return out.good() ? 0 : 1;
}
