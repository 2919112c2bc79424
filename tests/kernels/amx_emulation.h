// Runs tile instructions (AMX) on CPUs that lack them: the compiled instruction raises SIGILL, and
// the handler does what the instruction would have done, on registers and memory as they stand at
// that moment.  So a test runs the very code that ships; stores that a compiler dropped or moved
// are seen as the hardware would see them.  What the hardware answers with a fault is kept as a
// text.
//
//   SIGILL -> decode the VEX bytes at rip -> act on the tiles of this thread -> rip past them
//
// Source of encodings and faults: Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2, and Intel Architecture Instruction Set Extensions, chapter "Advanced Matrix
// Extensions".
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace ashlar::kernels::testing_support {

class AmxEmulation {
 public:
  AmxEmulation() {
    struct sigaction action = {};
    action.sa_sigaction = &AmxEmulation::on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
    fault_ = nullptr;
    num_instructions_ = 0;
  }
  ~AmxEmulation() { sigaction(SIGILL, &before_, nullptr); }
  AmxEmulation(const AmxEmulation&) = delete;
  AmxEmulation& operator=(const AmxEmulation&) = delete;

  // The first fault that the hardware would have raised, or null.
  const char* fault() const { return fault_; }
  int64_t num_instructions() const { return num_instructions_; }

 private:
  static constexpr int kTiles = 8, kMaxRows = 16, kMaxRowBytes = 64;

  struct Tiles {
    bool configured;
    uint8_t config[64];
    alignas(64) uint8_t data[kTiles][kMaxRows][kMaxRowBytes];
    int rows(int tile) const { return config[48 + tile]; }
    int row_bytes(int tile) const { return config[16 + 2 * tile]; }
  };

  // A VEX instruction with a register or a memory operand.
  struct Instruction {
    int prefix, opcode, reg, vvvv, rm;
    bool memory;
    uint8_t* base;  // the address without the index
    int64_t index;  // the scaled index: the stride of tile loads and stores
    int64_t size;   // bytes
  };

  static uint64_t register_value(const ucontext_t* context, int number) {
    static constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                        REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                        REG_R12, REG_R13, REG_R14, REG_R15};
    return uint64_t(context->uc_mcontext.gregs[kPlaces[number]]);
  }

  static bool decode(const ucontext_t* context, Instruction& in) {
    const auto* code = reinterpret_cast<const uint8_t*>(context->uc_mcontext.gregs[REG_RIP]);
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2) return false;  // map 0F38
    const int high_reg = ~code[1] >> 7 & 1, high_index = ~code[1] >> 6 & 1,
              high_base = ~code[1] >> 5 & 1;
    in.vvvv = ~code[2] >> 3 & 15;
    in.prefix = code[2] & 3;
    in.opcode = code[3];
    const int mod = code[4] >> 6, rm = code[4] & 7;
    in.reg = (code[4] >> 3 & 7) | high_reg << 3;
    in.rm = rm | high_base << 3;
    in.memory = mod != 3;
    in.size = 5;
    in.index = 0;
    if (!in.memory) return true;
    uint64_t base = 0;
    if (rm == 4) {
      const int sib = code[in.size++], index = (sib >> 3 & 7) | high_index << 3;
      if (index != 4) in.index = int64_t(register_value(context, index) << (sib >> 6));
      if ((sib & 7) == 5 && mod == 0) return false;  // no base: none of our code
      base = register_value(context, (sib & 7) | high_base << 3);
    } else {
      base = register_value(context, in.rm);
      if (rm == 5 && mod == 0)  // relative to the next instruction
        base = uint64_t(context->uc_mcontext.gregs[REG_RIP] + in.size + 4);
    }
    int32_t offset = 0;
    if (mod == 1) offset = int8_t(code[in.size++]);
    if (mod == 2 || (mod == 0 && rm == 5)) {
      std::memcpy(&offset, code + in.size, 4);
      in.size += 4;
    }
    in.base = reinterpret_cast<uint8_t*>(base + uint64_t(int64_t(offset)));
    return true;
  }

  static const char* load_config(const uint8_t* config) {
    if (config[0] != 1) return "ldtilecfg: the palette is not 1";
    for (int i = 1; i < 16; ++i)
      if (config[i]) return "ldtilecfg: start_row or a reserved byte is not 0";
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config[48 + tile], bytes = config[16 + 2 * tile];
      if (config[17 + 2 * tile] || bytes > kMaxRowBytes || rows > kMaxRows)
        return "ldtilecfg: a tile of more than 16 rows or 64 bytes";
      if ((rows == 0) != (bytes == 0)) return "ldtilecfg: a tile with rows or bytes alone";
      if (tile >= kTiles && rows) return "ldtilecfg: more than 8 tiles";
    }
    tiles_ = Tiles{};
    tiles_.configured = true;
    std::memcpy(tiles_.config, config, 64);
    return nullptr;
  }

  static const char* check(int tile) {
    if (!tiles_.configured) return "a tile is used before ldtilecfg or after tilerelease";
    if (tile >= kTiles || tiles_.rows(tile) == 0) return "a tile is used that has no shape";
    return nullptr;
  }

  static const char* load(const Instruction& in) {
    if (const char* fault = check(in.reg)) return fault;
    std::memset(tiles_.data[in.reg], 0, sizeof tiles_.data[in.reg]);
    for (int row = 0; row < tiles_.rows(in.reg); ++row)
      std::memcpy(tiles_.data[in.reg][row], in.base + row * in.index,
                  size_t(tiles_.row_bytes(in.reg)));
    return nullptr;
  }

  static const char* store(const Instruction& in) {
    if (const char* fault = check(in.reg)) return fault;
    for (int row = 0; row < tiles_.rows(in.reg); ++row)
      std::memcpy(in.base + row * in.index, tiles_.data[in.reg][row],
                  size_t(tiles_.row_bytes(in.reg)));
    return nullptr;
  }

  static float widened(const uint8_t* bf16) {
    return std::bit_cast<float>(uint32_t(bf16[0]) << 16 | uint32_t(bf16[1]) << 24);
  }

  static const char* multiply(int sum, int left, int right) {
    for (const int tile : {sum, left, right})
      if (const char* fault = check(tile)) return fault;
    if (sum == left || sum == right || left == right) return "tdpbf16ps: a tile stands twice";
    if (tiles_.rows(sum) != tiles_.rows(left) || tiles_.row_bytes(sum) != tiles_.row_bytes(right) ||
        tiles_.row_bytes(left) != 4 * tiles_.rows(right))
      return "tdpbf16ps: the shapes of the tiles do not fit";
    for (int m = 0; m < tiles_.rows(sum); ++m)
      for (int k = 0; k < tiles_.rows(right); ++k)
        for (int n = 0; n < tiles_.row_bytes(right) / 4; ++n) {
          float value = 0;
          std::memcpy(&value, tiles_.data[sum][m] + 4 * n, 4);
          const uint8_t *a = tiles_.data[left][m] + 4 * k, *b = tiles_.data[right][k] + 4 * n;
          value += widened(a) * widened(b);
          value += widened(a + 2) * widened(b + 2);
          std::memcpy(tiles_.data[sum][m] + 4 * n, &value, 4);
        }
    return nullptr;
  }

  static const char* act(const Instruction& in) {
    constexpr int kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;
    if (in.opcode == 0x49 && in.prefix == kNone && in.memory) return load_config(in.base);
    if (in.opcode == 0x49 && in.prefix == kNone) return tiles_ = Tiles{}, nullptr;
    if (in.opcode == 0x49 && in.prefix == k66 && in.memory)
      return std::memcpy(in.base, tiles_.config, 64), nullptr;
    if (in.opcode == 0x49 && in.prefix == kF2 && !in.memory) {
      if (const char* fault = check(in.reg)) return fault;
      return std::memset(tiles_.data[in.reg], 0, sizeof tiles_.data[in.reg]), nullptr;
    }
    if (in.opcode == 0x4B && (in.prefix == kF2 || in.prefix == k66) && in.memory) return load(in);
    if (in.opcode == 0x4B && in.prefix == kF3 && in.memory) return store(in);
    if (in.opcode == 0x5C && in.prefix == kF2 && !in.memory)
      return "tdpbf16ps with the prefix of another type";
    if (in.opcode == 0x5C && in.prefix == kF3 && !in.memory)
      return multiply(in.reg, in.rm, in.vvvv);
    return "an instruction that is not emulated";
  }

  // Any other illegal instruction goes to whoever handled the signal before.
  static void on_signal(int, siginfo_t*, void* raw) {
    auto* context = static_cast<ucontext_t*>(raw);
    Instruction in = {};
    if (!decode(context, in)) {
      sigaction(SIGILL, &before_, nullptr);
      return;
    }
    const char* fault = act(in);
    const char* none = nullptr;
    if (fault) fault_.compare_exchange_strong(none, fault);
    ++num_instructions_;
    context->uc_mcontext.gregs[REG_RIP] += in.size;
  }

  static inline struct sigaction before_ = {};
  static inline std::atomic<const char*> fault_ = nullptr;
  static inline std::atomic<int64_t> num_instructions_ = 0;
  static inline thread_local Tiles tiles_;
};

}  // namespace ashlar::kernels::testing_support
