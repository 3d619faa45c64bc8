// Where the blocks of a model lie on storage: block id -> file, offset, length. Blocks are runs of whole rows
// of one matrix slice, verbatim. Owns the open files; issues no reads and owns no cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "async_io/read_queue.h"
#include "base/status.h"
#include "platform/file.h"

namespace ganglion::neuron_store {

using BlockId = uint32_t;

/// A matrix on storage: `slices` (experts, heads) of `rows` rows, one after the other.
struct MatrixExtent {
  std::string name;
  uint32_t shard = 0;
  uint64_t offset = 0;
  size_t row_bytes = 0;
  uint32_t rows = 0;
  uint32_t slices = 1;
};

struct Block {
  uint32_t matrix = 0;
  uint32_t slice = 0;
  uint32_t row_begin = 0;  ///< Within the slice.
  uint32_t row_count = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct BlockRange {
  BlockId begin = 0;
  BlockId end = 0;
};

/// Immutable after opening; thread-safe.
class WeightStore {
 public:
  /// Opens the shards and cuts each matrix into blocks of nearly equal row counts, at most `block_bytes` each
  /// (or one row). Block ids ascend with the matrices given. Errors: those of File::open as kModelFile.
  static base::Result<WeightStore> open(const std::vector<std::string>& shard_paths,
                                        std::vector<MatrixExtent> matrices, size_t block_bytes);

  size_t block_count() const { return matrix_of_.size(); }
  Block block(BlockId id) const;
  BlockRange blocks_of(uint32_t matrix, uint32_t slice) const;
  const MatrixExtent& matrix(uint32_t matrix) const { return matrices_[matrix]; }
  const platform::File& file(uint32_t shard) const { return files_[shard]; }
  /// Largest memory that a widened read of a block in [begin, end) can need.
  size_t slot_bytes(BlockId begin, BlockId end) const;

  /// Fills file, offset, needed and label of `op` for a block.
  void describe_read(BlockId id, async_io::ReadOp* op) const;

 private:
  std::vector<platform::File> files_;
  std::vector<MatrixExtent> matrices_;
  std::vector<uint32_t> rows_per_block_;    // by matrix
  std::vector<uint32_t> blocks_per_slice_;  // by matrix
  std::vector<BlockId> first_block_;        // by matrix
  std::vector<uint32_t> matrix_of_;         // by block
};

}  // namespace ganglion::neuron_store
