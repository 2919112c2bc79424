// The border between host code and device code: plain structs, and one function per kernel.  Host
// code includes this header and no other of device code, so that it is compiled once for the
// emulator and for every vendor.
//
// launch(x) queues one kernel, except where num_kernels says how many, and returns "" or an error.
//
// by_vectors says that elements are read 16 bytes at a time: every tensor and every row of it then
// begins at a multiple of 16 bytes, and the width of rows is a multiple of 8.  Without it the bits
// are the same.
#pragma once

#include "ashlar/kernels/gpu/device.h"
#include "ashlar/kernels/gpu/launch/attention.h"
#include "ashlar/kernels/gpu/launch/copy.h"
#include "ashlar/kernels/gpu/launch/heads.h"
#include "ashlar/kernels/gpu/launch/linear.h"
#include "ashlar/kernels/gpu/launch/moe.h"
#include "ashlar/kernels/gpu/launch/norm.h"
#include "ashlar/kernels/gpu/launch/router.h"
#include "ashlar/kernels/gpu/launch/rows.h"
#include "ashlar/kernels/gpu/launch/update.h"
#include "ashlar/kernels/gpu/launch/vocabulary.h"
