// The bytes of a pulse page (pulse.h), version 2: words of 64 bits in the order of the machine.
//
// Every word is an atomic.  The words of an entry belong together: its version is odd while it is
// being written, and a reader takes the entry only if it saw one even version before and after.  A
// writer that was killed meanwhile leaves it odd for ever.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace ashlar {

struct PulseLayout {
  using Word = std::atomic<uint64_t>;
  template <size_t kWords>
  using Text = std::array<Word, kWords>;  // 8 bytes a word, cut or filled with zeros

  static constexpr uint64_t kMagic = 0x45534c5550485341;  // "ASHPULSE"
  static constexpr uint64_t kVersion = 2;
  static constexpr int kNumGroups = 64, kNumEntries = 256;

  struct Group {
    Word id;      // written last; 0: no group
    Word size;    // its ranks
    Word posted;  // one more than the number of its last numbered operation
    Text<5> name;
  };

  struct Entry {
    Word version;  // 0: never written
    Word order;    // operations of this rank before it
    Word group;    // index of a Group; and the lane's number, from bit 32
    Word number, bytes;
    Word queued_ns, started_ns, ended_ns;  // 0: not yet
    Text<2> op;
    Text<6> label;
  };

  Word magic;  // written last
  Word version, rank, num_ranks, process, thread, start_ticks, attempt;
  Word step, steps_here;
  Word place;  // bits 0 to 7: the PulsePlace; 16 to 31: the block; 32 to 63: the micro-batch
  Word changed_ns;
  Word total, done;            // of the place's work, if it is counted
  Word waits_for, waiting_ns;  // one more than an Entry's order, 0: waits for none; since when
  Word num_steps;
  Word operated_ns;    // when any operation was last queued, began or ended
  Word waiting_entry;  // the Entry of waits_for
  std::array<Word, 13> unused;
  std::array<Group, kNumGroups> groups;
  std::array<Entry, kNumEntries> entries;
};
static_assert(sizeof(PulseLayout) == 37120 && PulseLayout::Word::is_always_lock_free);

}  // namespace ashlar
