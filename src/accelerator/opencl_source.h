// The kernels in OpenCL C 1.2, compiled by the device's driver. Needs neither fp16 nor subgroups.
#pragma once

namespace ganglion::accelerator {

/// Sizes that the kernels and those who start them agree on; programs are built with them as macros.
struct OpenclSizes {
  static constexpr unsigned kLanes = 32;      ///< Work-items that share a row of gates.
  static constexpr unsigned kSlice = 64;      ///< Neurons whose down rows one work-item adds.
  static constexpr unsigned kDownItems = 64;  ///< Work-items of a group of down rows, 8 elements each.
  static constexpr unsigned kSumItems = 32;
  static constexpr unsigned kTileRows = 64;    ///< Of a tile of a matrix product: one row per work-item.
  static constexpr unsigned kTileTokens = 32;  ///< Likewise; buckets are multiples.
};

/// Build options choose what is in the program: PART_HIDDEN (with BUCKET and WEIGHTS_<type>), PART_DOWN (with
/// BUCKET and DOWN_<type>), PART_SUM, PART_MATMUL (with WEIGHTS_<type>).
const char* opencl_source();

}  // namespace ganglion::accelerator
