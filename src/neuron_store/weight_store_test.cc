#include "neuron_store/weight_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

namespace ganglion::neuron_store {
namespace {

class WeightStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* suffix : {"a", "b"}) {
      paths_.push_back(::testing::TempDir() + "ganglion_store_" + std::to_string(::getpid()) + suffix);
      std::ofstream(paths_.back()) << suffix;
    }
  }
  void TearDown() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }
  WeightStore open(std::vector<MatrixExtent> matrices, size_t block_bytes) {
    return WeightStore::open(paths_, std::move(matrices), block_bytes).take();
  }
  std::vector<std::string> paths_;
};

// Every row of every slice in exactly one block, at its place, in ascending order; no block larger than asked
// unless it is a single row; slots that hold what a widened read can bring.
void check_blocks(const WeightStore& store, const std::vector<MatrixExtent>& matrices, size_t block_bytes) {
  BlockId next = 0;
  for (uint32_t m = 0; m < matrices.size(); ++m) {
    const MatrixExtent& matrix = matrices[m];
    for (uint32_t slice = 0; slice < matrix.slices; ++slice) {
      const BlockRange range = store.blocks_of(m, slice);
      ASSERT_EQ(range.begin, next);
      ASSERT_LT(range.begin, range.end);
      uint32_t row = 0;
      uint32_t fewest = UINT32_MAX;
      uint32_t most = 0;
      for (BlockId id = range.begin; id < range.end; ++id) {
        const Block block = store.block(id);
        ASSERT_EQ(block.matrix, m);
        ASSERT_EQ(block.slice, slice);
        ASSERT_EQ(block.row_begin, row);
        ASSERT_GT(block.row_count, 0U);
        ASSERT_EQ(block.offset, matrix.offset + (uint64_t{slice} * matrix.rows + row) * matrix.row_bytes);
        ASSERT_EQ(block.bytes, uint64_t{block.row_count} * matrix.row_bytes);
        ASSERT_TRUE(block.bytes <= block_bytes || block.row_count == 1) << block.bytes;
        if (id + 1 < range.end) fewest = std::min(fewest, block.row_count);
        most = std::max(most, block.row_count);
        row += block.row_count;
        ASSERT_GE(store.slot_bytes(id, id + 1), async_io::widened_bytes(block.offset, block.bytes));
      }
      ASSERT_EQ(row, matrix.rows);
      ASSERT_TRUE(range.end - range.begin == 1 || fewest == most) << "only the last block may be smaller";
      next = range.end;
    }
  }
  ASSERT_EQ(next, store.block_count());
  const size_t all = store.slot_bytes(0, next);
  ASSERT_EQ(all % async_io::kIoAlignment, 0U);
  bool reached = false;
  for (BlockId id = 0; id < next; ++id) {
    ASSERT_GE(all, store.slot_bytes(id, id + 1));
    reached = reached || all == store.slot_bytes(id, id + 1);
  }
  ASSERT_TRUE(reached) << "no slot is larger than the largest block needs";
}

TEST_F(WeightStoreTest, BlocksCoverEveryRowOfEverySliceOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<MatrixExtent> matrices;
    const size_t count = 1 + random() % 6;
    for (size_t i = 0; i < count; ++i) {
      matrices.push_back({.name = "m" + std::to_string(i),
                          .shard = static_cast<uint32_t>(random() % 2),
                          .offset = random() % 1000000 * 32,
                          .row_bytes = 1 + random() % (random() % 4 == 0 ? 100000 : 3000),
                          .rows = static_cast<uint32_t>(1 + random() % 500),
                          .slices = static_cast<uint32_t>(1 + random() % 5)});
    }
    const size_t block_bytes = 1 + random() % 60000;
    const WeightStore store = open(matrices, block_bytes);
    check_blocks(store, matrices, block_bytes);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST_F(WeightStoreTest, OffsetsBeyondFourGibibytesStayExact) {
  const MatrixExtent huge = {
      .name = "h", .offset = (uint64_t{1} << 40) + 32, .row_bytes = 18432, .rows = 262144, .slices = 64};
  const WeightStore store = open({huge}, 504 << 10);
  check_blocks(store, {huge}, 504 << 10);
}

TEST_F(WeightStoreTest, NoBlocksNeedTheLeastSlot) {
  const WeightStore store = open({}, 4096);
  EXPECT_EQ(store.block_count(), 0U);
  EXPECT_EQ(store.slot_bytes(0, 0), async_io::kIoAlignment);
}

TEST_F(WeightStoreTest, DescribesTheReadOfABlock) {
  const WeightStore store =
      open({{.name = "one", .offset = 64, .row_bytes = 10, .rows = 4},
            {.name = "two", .shard = 1, .offset = 96, .row_bytes = 100, .rows = 7, .slices = 3}},
           300);
  const BlockRange range = store.blocks_of(1, 2);
  ASSERT_EQ(range.end - range.begin, 3U);
  async_io::ReadOp op;
  store.describe_read(range.begin + 1, &op);
  EXPECT_EQ(op.file->path(), paths_[1]);
  EXPECT_EQ(op.offset, 96U + (2 * 7 + 3) * 100U);
  EXPECT_EQ(op.needed, 300U);
  EXPECT_EQ(op.label, "two");
}

TEST_F(WeightStoreTest, AMissingShardIsNamed) {
  paths_.push_back("/nowhere/shard-00003.gguf");
  const auto store = WeightStore::open(paths_, {}, 4096);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), base::Code::kModelFile);
  EXPECT_NE(store.status().message().find("/nowhere/shard-00003.gguf"), std::string::npos);
  paths_.pop_back();
}

}  // namespace
}  // namespace ganglion::neuron_store
