#include "neuron_store/weight_store.h"

#include <algorithm>

#include "base/units.h"

namespace ganglion::neuron_store {

using base::Code;
using base::Result;
using base::Status;

Result<WeightStore> WeightStore::open(const std::vector<std::string>& shard_paths,
                                      std::vector<MatrixExtent> matrices, size_t block_bytes) {
  WeightStore store;
  for (const std::string& path : shard_paths) {
    Result<platform::File> file = platform::File::open(path);
    if (!file.ok()) return Status(Code::kModelFile, file.status().message());
    store.files_.push_back(file.take());
  }
  store.matrices_ = std::move(matrices);
  for (const MatrixExtent& matrix : store.matrices_) {
    const size_t most_rows = std::max<size_t>(1, block_bytes / matrix.row_bytes);
    const auto blocks = static_cast<uint32_t>(base::ceil_div(matrix.rows, most_rows));
    const auto rows = static_cast<uint32_t>(base::ceil_div(matrix.rows, blocks));
    const auto used = static_cast<uint32_t>(base::ceil_div(matrix.rows, rows));
    store.rows_per_block_.push_back(rows);
    store.blocks_per_slice_.push_back(used);
    store.first_block_.push_back(static_cast<BlockId>(store.matrix_of_.size()));
    store.matrix_of_.insert(store.matrix_of_.end(), size_t{used} * matrix.slices,
                            static_cast<uint32_t>(store.first_block_.size() - 1));
  }
  return store;
}

Block WeightStore::block(BlockId id) const {
  const uint32_t m = matrix_of_[id];
  const MatrixExtent& matrix = matrices_[m];
  const uint32_t at = id - first_block_[m];
  Block block;
  block.matrix = m;
  block.slice = at / blocks_per_slice_[m];
  block.row_begin = at % blocks_per_slice_[m] * rows_per_block_[m];
  block.row_count = std::min(rows_per_block_[m], matrix.rows - block.row_begin);
  block.offset = matrix.offset + (uint64_t{block.slice} * matrix.rows + block.row_begin) * matrix.row_bytes;
  block.bytes = uint64_t{block.row_count} * matrix.row_bytes;
  return block;
}

BlockRange WeightStore::blocks_of(uint32_t matrix, uint32_t slice) const {
  const BlockId begin = first_block_[matrix] + slice * blocks_per_slice_[matrix];
  return {begin, begin + blocks_per_slice_[matrix]};
}

size_t WeightStore::slot_bytes(BlockId begin, BlockId end) const {
  uint64_t most = async_io::kIoAlignment;
  for (BlockId id = begin; id < end; ++id) {
    const Block b = block(id);
    most = std::max(most, async_io::widened_bytes(b.offset, b.bytes));
  }
  return most;
}

void WeightStore::describe_read(BlockId id, async_io::ReadOp* op) const {
  const Block b = block(id);
  op->file = &files_[matrices_[b.matrix].shard];
  op->offset = b.offset;
  op->needed = b.bytes;
  op->label = matrices_[b.matrix].name;
}

}  // namespace ganglion::neuron_store
