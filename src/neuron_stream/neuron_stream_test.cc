// What a stream delivers and what it reads, whatever the order in which reads complete. Failures: the fault
// test.
#include "neuron_stream/neuron_stream.h"

#include <gtest/gtest.h>

#include <map>

#include "neuron_stream/stream_for_test.h"

namespace ganglion::neuron_stream {
namespace {

class NeuronStreamTest : public ::testing::Test {
 protected:
  FakeDevice device(const FakeDeviceOptions& options = {}) const {
    FakeDevice made(options);
    made.set_contents(model_.path(), model_.contents());
    return made;
  }
  // How often each block was read.
  std::map<BlockId, int> reads_of(const FakeDevice& device) const {
    std::map<uint64_t, BlockId> block_at;
    for (BlockId id = 0; id < model_.store().block_count(); ++id)
      block_at[model_.store().block(id).offset] = id;
    std::map<BlockId, int> reads;
    for (const uint64_t offset : device.submitted_offsets()) ++reads[block_at.at(offset)];
    return reads;
  }
  TestModel model_;
};

TEST_F(NeuronStreamTest, DeliversTheRightBytesForEveryTimingAndSize) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    FakeDevice dev = device({.seed = seed,
                             .delivery = static_cast<Delivery>(random() % 2),
                             .short_percent = static_cast<unsigned>(random() % 60),
                             .interrupted_percent = static_cast<unsigned>(random() % 30)});
    std::set<BlockId> resident;
    const uint64_t share = random() % 4;
    for (BlockId id = 0; id < model_.dense_blocks(); ++id) {
      if (random() % 4 < share) resident.insert(id);
    }
    TestStream test(model_, dev, model_.config(1 + random() % 12, 1 + random() % 40, resident));
    ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
    bool output = true;
    for (int pass = 0; pass < 6; ++pass) {
      std::vector<uint32_t> experts;
      for (uint32_t e = 0; e < kExperts; ++e) {
        if (random() % 2 == 0) experts.push_back(e);
      }
      const bool predicted = random() % 2 == 0;
      const Status status = test.pass(output, predicted, experts, random() % 3 == 0);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ", pass " << pass << ": " << status.message();
      output = random() % 4 == 0 ? !predicted : predicted;  // Now and then the prediction is wrong.
    }
  }
}

TEST_F(NeuronStreamTest, ReadsEachStreamedBlockOncePerPass) {
  for (const size_t slots : {1U, 4U, 9U}) {
    FakeDevice dev = device({.seed = slots, .delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(slots, 4));
    for (int pass = 0; pass < 5; ++pass) ASSERT_TRUE(test.pass(true, true).ok());
    int ahead = 0;
    for (const auto& [id, count] : reads_of(dev)) {
      ASSERT_TRUE(count == 5 || count == 6) << id << " was read " << count << " times";
      ahead += count - 5;
    }
    EXPECT_EQ(reads_of(dev).size(), model_.dense_blocks());
    EXPECT_EQ(static_cast<size_t>(ahead), slots) << "the next pass's first blocks are on their way";
  }
}

TEST_F(NeuronStreamTest, ReadsNothingThatIsResident) {
  FakeDevice dev = device();
  std::set<BlockId> resident;
  for (BlockId id = 0; id < model_.store().block_count(); id += 2) resident.insert(id);
  TestStream test(model_, dev, model_.config(4, 100, resident));
  ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
  dev.forget_submitted();
  for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(test.pass(true, true, {0, 1, 2, 3}).ok());
  for (const auto& [id, count] : reads_of(dev)) {
    EXPECT_EQ(resident.count(id), 0U) << id;
    EXPECT_TRUE(id < model_.dense_blocks() || count == 1) << "a cached expert was read again";
  }
}

TEST_F(NeuronStreamTest, PromptsReadTheNextLayersExpertsAndKeepSome) {
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  ASSERT_EQ(all.size(), kExperts);
  const size_t experts = model_.store().block_count() - model_.dense_blocks();
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(4, experts * 3 / 4));
  constexpr size_t kPasses = 6;
  for (size_t pass = 0; pass < kPasses; ++pass) ASSERT_TRUE(test.pass(true, true, all, true).ok());
  size_t reads = 0;
  for (const auto& [id, count] : reads_of(dev))
    reads += id < model_.dense_blocks() ? 0 : static_cast<size_t>(count);
  EXPECT_LT(reads, kPasses * experts);
  EXPECT_GT(test.stream->stats().ahead_used, 0U);
}

TEST_F(NeuronStreamTest, ReadAheadCrossesTheEndOfAPassAndStopsAfterOne) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  TestStream test(model_, dev, model_.config(model_.dense_blocks() + 3, 1));
  test.stream->begin_pass({true}, {true});
  EXPECT_EQ(dev.pending(), model_.dense_blocks())
      << "a block is not read for the next pass while it is still needed";
  ASSERT_TRUE(test.consume(model_.blocks(0)).ok());
  EXPECT_EQ(reads_of(dev)[0], 2) << "the next pass's first block follows";
  FakeDevice small = device();
  TestStream ring(model_, small, model_.config(4, 1));
  ASSERT_TRUE(ring.pass(true, true).ok());
  const auto reads = reads_of(small);
  for (BlockId id = 0; id < 4; ++id) EXPECT_EQ(reads.at(id), 2);
  EXPECT_EQ(reads.at(4), 1);
}

TEST_F(NeuronStreamTest, APassWithoutOutputDoesNotReadTheHead) {
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(6, 1));
  for (int pass = 0; pass < 4; ++pass) ASSERT_TRUE(test.pass(false, false).ok());
  for (const BlockId id : model_.blocks(TestModel::kHead)) EXPECT_EQ(reads_of(dev).count(id), 0U);
  ASSERT_TRUE(test.pass(true, true).ok()) << "not predicted";
}

TEST_F(NeuronStreamTest, AHeadReadAheadForNothingGivesItsSlotsBack) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  // All that is streamed: two blocks of the body and the head.
  const std::vector<BlockId> head = model_.blocks(TestModel::kHead);
  ASSERT_GE(head.size(), 3U);
  std::set<BlockId> resident;
  for (BlockId id = 2; id < head.front(); ++id) resident.insert(id);
  TestStream test(model_, dev, model_.config(2 + head.size(), 1, resident));
  ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
  ASSERT_TRUE(test.pass(true, true).ok());
  dev.forget_submitted();
  EXPECT_EQ(dev.pending(), 2 + head.size()) << "the next pass, head included";
  test.stream->begin_pass({false}, {true});
  // Dropped while loading; the pass after this one wants them: the reads under way are taken over.
  ASSERT_TRUE(test.consume({0, 1}).ok());
  while (dev.pending() > 0) dev.complete(dev.pending() - 1);
  test.stream->poll();
  test.stream->begin_pass({true}, {true});
  ASSERT_TRUE(test.consume({0, 1}).ok());
  ASSERT_TRUE(test.consume(head).ok());
  EXPECT_EQ(reads_of(dev)[head.front()], 1) << "once more for the pass after";
}

TEST_F(NeuronStreamTest, AHeadAloneIsReadAheadOnceItIsWanted) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  std::set<BlockId> resident;
  for (BlockId id = 0; id < model_.blocks(TestModel::kHead).front(); ++id) resident.insert(id);
  TestStream test(model_, dev, model_.config(2, 1, resident));
  ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
  for (int pass = 0; pass < 3; ++pass) {
    test.stream->begin_pass({false}, {false});
    EXPECT_EQ(dev.pending(), 0U);
  }
  test.stream->begin_pass({true}, {false});
  EXPECT_EQ(dev.pending(), 2U);
}

TEST_F(NeuronStreamTest, WaitingForWhatIsInMemoryDoesNotSleepOrReadAgain) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  TestStream test(model_, dev, model_.config(1, 1, {3}));
  ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
  dev.forget_submitted();
  test.stream->begin_pass({true}, {true});
  ASSERT_TRUE(test.stream->wait(0).ok());
  EXPECT_TRUE(test.stream->wait(0).ok());
  EXPECT_TRUE(test.stream->wait(3).ok()) << "resident";
  ASSERT_NE(test.stream->try_pin(0), nullptr);
  EXPECT_EQ(dev.submitted_offsets().size(), 1U);
}

TEST_F(NeuronStreamTest, TheHeadMayBeUsedSeveralTimesInAPass) {
  for (const size_t slots : {1U, 3U, 8U}) {
    FakeDevice dev = device({.delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(slots, 1));
    for (int pass = 0; pass < 3; ++pass) {
      ASSERT_TRUE(test.pass(true, true).ok());
      for (int group = 0; group < 3; ++group) ASSERT_TRUE(test.consume(model_.blocks(TestModel::kHead)).ok());
    }
  }
}

TEST_F(NeuronStreamTest, BlocksMayBeUsedInAnotherOrderThanPlanned) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    FakeDevice dev = device({.seed = seed, .delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(1 + seed % 6, 1));
    std::vector<BlockId> order(model_.dense_blocks());
    for (BlockId id = 0; id < order.size(); ++id) order[id] = id;
    for (int pass = 0; pass < 3; ++pass) {
      std::shuffle(order.begin(), order.end(), random);
      test.stream->begin_pass({true}, {true});
      for (const BlockId id : order) ASSERT_TRUE(test.consume({id}).ok()) << "seed " << seed;
    }
  }
}

TEST_F(NeuronStreamTest, AnExpertLargerThanTheCacheStillGoesThrough) {
  const size_t blocks = model_.expert_blocks(0, 0, false).size() + model_.expert_blocks(0, 0, true).size();
  ASSERT_GT(blocks, 4U);
  for (size_t slots = 1; slots <= blocks; ++slots) {
    FakeDevice dev = device({.seed = slots, .delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(4, slots));
    for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(test.pass(true, true, {1}).ok()) << slots << " slots";
    for (int pass = 0; pass < 3; ++pass)
      ASSERT_TRUE(test.pass(true, true, {0, 2, 3}).ok()) << slots << " slots";
  }
}

TEST_F(NeuronStreamTest, HitsAndMissesAreCountedOncePerBlockAndPass) {
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(4, 100));
  const uint64_t per_expert =
      kLayers * (model_.expert_blocks(0, 0, false).size() + model_.expert_blocks(0, 0, true).size());
  ASSERT_TRUE(test.pass(true, true, {0, 1}).ok());
  EXPECT_EQ(test.stream->stats().expert_misses, 2 * per_expert);
  EXPECT_EQ(test.stream->stats().expert_hits, 0U);
  ASSERT_TRUE(test.pass(true, true, {1, 2}).ok());
  EXPECT_EQ(test.stream->stats().expert_misses, 3 * per_expert);
  EXPECT_EQ(test.stream->stats().expert_hits, per_expert);
}

TEST_F(NeuronStreamTest, TheExpertsUsedMostStay) {
  FakeDevice dev = device();
  const size_t per_expert =
      model_.expert_blocks(0, 0, false).size() + model_.expert_blocks(0, 0, true).size();
  TestStream test(model_, dev, model_.config(4, kLayers * 2 * per_expert));
  for (int pass = 0; pass < 20; ++pass) ASSERT_TRUE(test.pass(true, true, {0}).ok());
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_TRUE(test.pass(true, true, {1}).ok());
    ASSERT_TRUE(test.pass(true, true, {2}).ok());
  }
  dev.forget_submitted();
  ASSERT_TRUE(test.pass(true, true, {0}).ok());
  for (const auto& [id, count] : reads_of(dev))
    EXPECT_LT(id, model_.dense_blocks()) << "expert 0 had been displaced";
}

TEST_F(NeuronStreamTest, APinnedExpertOutlivesAllRequests) {
  FakeDevice dev = device();
  TestStream test(model_, dev, model_.config(4, 2));
  test.stream->begin_pass({true}, {true});
  const BlockId kept = model_.expert_blocks(0, 0, false).front();
  test.stream->request(kept);
  ASSERT_TRUE(test.stream->wait(kept).ok());
  const uint8_t* data = test.stream->try_pin(kept);
  ASSERT_NE(data, nullptr);
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    for (const BlockId id : model_.expert_blocks(0, expert, true)) {
      ASSERT_TRUE(test.consume({id}).ok());
      ASSERT_TRUE(model_.holds(kept, data));
    }
  }
  test.stream->unpin(kept);
}

TEST_F(NeuronStreamTest, ExpertsLeaveReadsForTheRing) {
  // More expert blocks than may be read at once.
  const std::string path = model_.path();
  std::vector<MatrixExtent> matrices = {{"dense", 0, 0, 4096, 3, 1}, {"experts", 0, 12288, 64, 1, 400}};
  const WeightStore store = WeightStore::open({path}, matrices, 4096).take();
  FakeDevice dev({.delivery = Delivery::kManual});
  dev.set_contents(path, std::vector<uint8_t>(50000));
  StreamConfig config;
  config.dense_blocks = 3;
  config.streamed = {0, 1, 2};
  for (uint32_t i = 0; i < 400; ++i) config.expert_group.push_back(i);
  config.expert_groups = 400;
  config.ring_slots = 1;
  config.expert_slots = 400;
  neuron_cache::Arena arena(64 << 20);
  auto stream = NeuronStream::create(store, dev, arena, config).take();
  stream->begin_pass({true}, {true});
  ASSERT_TRUE(stream->wait(0).ok());
  ASSERT_NE(stream->try_pin(0), nullptr);
  for (BlockId id = 3; id < 403; ++id) stream->request(id);
  stream->unpin(0);
  EXPECT_EQ(dev.submitted_offsets().back(), 4096U) << "block 1 is on its way";
}

// The real queues, which complete in other threads or in the kernel.
TEST_F(NeuronStreamTest, WorksOverTheRealQueues) {
  std::ofstream(model_.path(), std::ios::binary)
      .write(reinterpret_cast<const char*>(model_.contents().data()),
             static_cast<std::streamsize>(model_.contents().size()));
  for (const bool io_uring : {false, true}) {
    auto queue =
        async_io::make_read_queue({.allow_io_uring = io_uring, .pool_threads = 4, .depth = 3}, nullptr);
    TestStream test(model_, *queue, model_.config(5, 20, {1, 4, 6}));
    ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
    for (int pass = 0; pass < 20; ++pass) {
      if (pass % 3 == 2) {
        test.stream->begin_pass({true}, {true});
        test.stream->restart();
      }
      const Status status = test.pass(pass % 2 == 0, true, {0, static_cast<uint32_t>(1 + pass % 3)});
      ASSERT_TRUE(status.ok()) << queue->name() << ": " << status.message();
    }
  }
}

}  // namespace
}  // namespace ganglion::neuron_stream
