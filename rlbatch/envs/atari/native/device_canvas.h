// Observations on a GPU: what an image is of is noted here; `device.h` makes it, with many threads.
#pragma once

#include "batch.h"

namespace rlbatch::atari {

// What the newest frame of an environment's observations is.
struct View {
  enum Kind : u8 { kNone, kImage, kAgain, kBytes };
  u8 kind;
  u8 clears_stack;
  u8 n;           // Pictures that it is the maximum of.
  u8 picture[3];
  u8 padding[2];
};

// What `KnownResets` is of. Pictures are there once, and not with all of their `bytes`.
struct KnownStates {
  const State* states;
  const u8* pictures;
  const s32* pictures_at;  // Of each state: their first byte.

  RLB_FN const Pictures& pictures_of(s32 i) const {
    return *reinterpret_cast<const Pictures*>(pictures + pictures_at[i]);
  }
};

struct DeviceCanvas {
  const Options& options;
  Pictures* pictures;  // Null where no frame is ever looked at.
  View& view;
  u8* ring;  // [stack][frame_size] observations of single frames, which others make.
  const KnownStates& known;

  RLB_FN const State& known_state(s32 i) const { return known.states[i]; }
  RLB_FN void show_known(const Console& c, s32 i, bool is_swapped) {
    copy_shown(known.pictures_of(i), *pictures, is_swapped, c.s.session.height);
  }

  // The picture that the image is of, beside the one that is shown; kNoPicture if there is none.
  RLB_FN u8 partner(const Console& c, const Episode& e) const {
    return e.has_kept ? pictures->kept : e.is_of_one ? kNoPicture : pictures->shown[c.s.frame.buffer ^ 1];
  }

  RLB_FN u8 current(const Console& c) const { return pictures->shown[c.s.frame.buffer]; }

  RLB_FN void recall_image(const Console& c, const Episode& e) {
    Pictures& p = *pictures;
    p.image[0] = current(c);
    p.image[1] = partner(c, e);
    p.n_image = p.image[1] == kNoPicture ? 1 : 2;
  }

  RLB_FN void keep_screen(const Console& c) { pictures->kept = current(c); }

  RLB_FN bool kept_differs(const Console& c) const {
    return pictures->kept != current(c) && differ(*pictures, pictures->kept, current(c), c.s.session.height);
  }

  RLB_FN void clear_stack() { view.clears_stack = 1; }

  RLB_FN void next_frame(Episode& e, View::Kind kind) {
    e.newest = e.newest + 1 == options.stack ? 0 : e.newest + 1;
    view.kind = kind;
    view.n = 0;
  }

  RLB_FN void add(u8 picture) {
    if (picture != kNoPicture) view.picture[view.n++] = picture;
  }

  RLB_FN void push_image(const Console& c, Episode& e) {
    next_frame(e, View::kImage);
    add(current(c));
    add(partner(c, e));
    if (!e.has_kept) pictures->kept = kNoPicture;
  }

  RLB_FN void push_recalled(const Console& c, Episode& e, bool has_second) {
    next_frame(e, View::kImage);
    for (s32 i = 0; i < pictures->n_image; ++i) add(pictures->image[i]);
    add(has_second ? pictures->kept : pictures->shown[c.s.frame.buffer ^ 1]);
    e.has_kept = 0;
  }

  RLB_FN void push_ram(const Console&, Episode& e) { next_frame(e, View::kBytes); }
  RLB_FN void push_last_again(Episode& e) { next_frame(e, View::kAgain); }
};

using DeviceEnvironment = Environment<DeviceCanvas>;

}  // namespace rlbatch::atari
