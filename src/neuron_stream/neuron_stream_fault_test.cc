// A stream when reads fail, files end early, and passes are given up half-way.
#include <gtest/gtest.h>

#include "neuron_stream/neuron_stream.h"
#include "neuron_stream/stream_for_test.h"

namespace ganglion::neuron_stream {
namespace {

using base::Code;

class NeuronStreamFaultTest : public ::testing::Test {
 protected:
  FakeDevice device(const FakeDeviceOptions& options = {}) const {
    FakeDevice made(options);
    made.set_contents(model_.path(), model_.contents());
    return made;
  }
  // Trouble for the first byte of a block.
  Fault fault_at(BlockId id, Fault::Kind kind = Fault::Kind::kError, int times = -1) const {
    const uint64_t offset = model_.store().block(id).offset;
    return {.kind = kind, .begin = offset, .end = offset + 1, .times = times};
  }
  TestModel model_;
};

TEST_F(NeuronStreamFaultTest, AFailedBlockIsNamedOnceAndTheNextPassWorks) {
  for (BlockId broken = 0; broken < model_.store().block_count(); ++broken) {
    for (const Delivery delivery : {Delivery::kAtOnce, Delivery::kRandom}) {
      FakeDevice dev = device({.seed = broken, .delivery = delivery});
      TestStream test(model_, dev, model_.config(1 + broken % 6, 1 + broken % 9));
      ASSERT_TRUE(test.pass(true, true, {0}).ok());
      dev.add_fault(fault_at(broken));
      Status status;
      for (int pass = 0; pass < 2 && status.ok(); ++pass) status = test.pass(true, true, {0, 1, 2, 3});
      ASSERT_EQ(status.code(), Code::kIo) << "block " << broken;
      // Direct reads are widened: a neighbour may meet the broken byte first.
      EXPECT_NE(status.message().find(model_.path()), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("offset"), std::string::npos) << status.message();
      dev.clear_faults();
      test.stream->restart();
      for (int pass = 0; pass < 3; ++pass) {
        const Status again = test.pass(true, true, {0, 1, 2, 3});
        ASSERT_TRUE(again.ok()) << "block " << broken << ": " << again.message();
      }
    }
  }
}

TEST_F(NeuronStreamFaultTest, ManyFailuresAreOneErrorAndNoneIsLeftAfterRestart) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  TestStream test(model_, dev, model_.config(5, 5));
  dev.add_fault({.kind = Fault::Kind::kError});
  test.stream->begin_pass({true}, {true});
  for (const BlockId id : model_.expert_blocks(0, 0, false)) test.stream->request(id);
  ASSERT_GT(dev.pending(), 5U);
  EXPECT_EQ(test.stream->wait(0).code(), Code::kIo) << "the first";
  test.stream->restart();  // The others fail now.
  EXPECT_EQ(dev.in_flight(), 0U);
  dev.clear_faults();
  const Status status = test.pass(true, true, {0, 1});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(NeuronStreamFaultTest, AnErrorIsReturnedOnceEvenWithoutRestart) {
  FakeDevice dev = device();
  TestStream test(model_, dev, model_.config(3, 3));
  dev.add_fault({.kind = Fault::Kind::kError});
  test.stream->begin_pass({true}, {true});
  ASSERT_EQ(test.stream->wait(0).code(), Code::kIo);
  dev.clear_faults();
  EXPECT_TRUE(test.stream->wait(0).ok());
  EXPECT_NE(test.stream->try_pin(0), nullptr);
  test.stream->unpin(0);
  const Status status = test.consume(model_.blocks(1));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(NeuronStreamFaultTest, AnErrorThatPassesIsNotSeen) {
  for (BlockId id = 0; id < model_.store().block_count(); ++id) {
    FakeDevice dev = device({.seed = id, .delivery = Delivery::kRandom, .short_percent = 30});
    dev.add_fault(fault_at(id, Fault::Kind::kError, 2));
    TestStream test(model_, dev, model_.config(4, 20));
    const Status status = test.pass(true, true, {0, 1, 2, 3});
    ASSERT_TRUE(status.ok()) << "block " << id << ": " << status.message();
    EXPECT_EQ(dev.stats().retries, 2U);
  }
}

TEST_F(NeuronStreamFaultTest, DirectReadsRefusedHalfwayChangeNothing) {
  FakeDevice dev = device({.delivery = Delivery::kRandom, .short_percent = 40});
  TestStream test(model_, dev, model_.config(4, 6));
  ASSERT_TRUE(test.pass(true, true, {0, 1}).ok());
  dev.add_fault({.kind = Fault::Kind::kRefuseDirect});
  for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(test.pass(true, true, {1, 2}).ok());
  EXPECT_FALSE(dev.stats().direct);
}

TEST_F(NeuronStreamFaultTest, AFileThatEndsEarlyIsCalledTruncatedByTensor) {
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(4, 6));
  ASSERT_TRUE(test.pass(true, true).ok());
  const BlockId last = model_.blocks(TestModel::kHead).back();
  const Block block = model_.store().block(last);
  dev.add_fault({.kind = Fault::Kind::kEnd, .begin = block.offset + block.bytes - 1});
  const Status status = test.pass(true, true);
  ASSERT_EQ(status.code(), Code::kModelFile) << status.message();
  for (const std::string& part : {model_.path(), std::string("head"), std::string("truncated"),
                                  std::to_string(block.offset + block.bytes - 1)}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  dev.clear_faults();
  dev.add_fault({.kind = Fault::Kind::kEnd, .begin = block.offset + block.bytes});
  test.stream->restart();
  EXPECT_TRUE(test.pass(true, true).ok()) << "the file ends exactly where the last block does";
}

TEST_F(NeuronStreamFaultTest, AFailureOfWhatIsNotWantedAnyMoreIsNoError) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  // Only the head is streamed.
  std::set<BlockId> resident;
  for (BlockId id = 0; id < model_.blocks(TestModel::kHead).front(); ++id) resident.insert(id);
  TestStream test(model_, dev, model_.config(4, 1, resident));
  ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
  ASSERT_TRUE(test.pass(true, true).ok());
  ASSERT_GT(dev.pending(), 0U) << "the next head";
  dev.add_fault({.kind = Fault::Kind::kError});
  test.stream->begin_pass({false}, {false});
  while (dev.pending() > 0) dev.complete(0);
  test.stream->poll();
  dev.clear_faults();
  for (uint32_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(test.consume(model_.blocks(2 * layer)).ok());
  const Status status = test.pass(true, true);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(NeuronStreamFaultTest, APassMayBeGivenUpAnywhere) {
  // Steps of a pass: consume a block, or merely ask for it.
  std::vector<BlockId> order;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const BlockId id : model_.blocks(2 * layer)) order.push_back(id);
    for (const bool down : {false, true}) {
      for (const BlockId id : model_.expert_blocks(layer, layer, down)) order.push_back(id);
    }
    for (const BlockId id : model_.blocks(2 * layer + 1)) order.push_back(id);
  }
  for (const size_t slots : {1U, 4U, 7U}) {
    for (size_t cut = 0; cut <= order.size(); ++cut) {
      FakeDevice dev = device({.seed = cut, .delivery = Delivery::kRandom, .short_percent = 30});
      TestStream test(model_, dev, model_.config(slots, 3));
      for (int round = 0; round < 3; ++round) {
        test.stream->begin_pass({round % 2 == 0}, {true});
        for (size_t i = 0; i < cut; ++i) ASSERT_TRUE(test.consume({order[i]}).ok());
        if (cut < order.size()) test.stream->request(order[cut]);
        test.stream->restart();
        const Status status = test.pass(true, round % 2 == 0, {0, 3});
        ASSERT_TRUE(status.ok()) << "given up after " << cut << " blocks, " << slots
                                 << " slots: " << status.message();
      }
    }
  }
}

TEST_F(NeuronStreamFaultTest, RestartMayComeBeforeAndBetweenPasses) {
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(4, 3));
  test.stream->restart();
  ASSERT_TRUE(test.pass(true, true, {0}).ok());
  test.stream->restart();
  test.stream->restart();
  ASSERT_TRUE(test.pass(false, true, {0}).ok());
}

TEST_F(NeuronStreamFaultTest, APassNotReadToItsEndDoesNotConfuseTheNext) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    FakeDevice dev = device({.seed = seed, .delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(1 + seed % 9, 3));
    for (int round = 0; round < 8; ++round) {
      test.stream->begin_pass({random() % 2 == 0}, {random() % 2 == 0});
      const uint64_t used = random() % (2 * kLayers);
      for (uint32_t m = 0; m < used; ++m) ASSERT_TRUE(test.consume(model_.blocks(m)).ok()) << "seed " << seed;
    }
    ASSERT_TRUE(test.pass(true, true).ok());
  }
}

// Random orders of everything a caller may do, with failures.
TEST_F(NeuronStreamFaultTest, RandomFaultsNeverHangOrDeliverWrongBytes) {
  int failures = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    FakeDevice dev = device({.seed = seed,
                             .delivery = static_cast<Delivery>(random() % 2),
                             .short_percent = static_cast<unsigned>(random() % 40),
                             .interrupted_percent = static_cast<unsigned>(random() % 20)});
    TestStream test(model_, dev, model_.config(1 + random() % 9, 1 + random() % 20));
    for (int pass = 0; pass < 8; ++pass) {
      if (random() % 2 == 0) {
        const auto victim = static_cast<BlockId>(random() % model_.store().block_count());
        dev.add_fault(
            fault_at(victim, static_cast<Fault::Kind>(random() % 3), static_cast<int>(random() % 6)));
      }
      const Status status =
          test.pass(random() % 2 == 0, random() % 2 == 0, {static_cast<uint32_t>(random() % 4)});
      if (status.ok()) continue;
      ++failures;
      ASSERT_EQ(status.code(), Code::kIo) << "seed " << seed << ": " << status.message();
      if (random() % 2 == 0) dev.clear_faults();
      test.stream->restart();
    }
  }
  EXPECT_GT(failures, 50);
}

TEST_F(NeuronStreamFaultTest, CanBeDestroyedWhileItReads) {
  FakeDevice dev = device({.delivery = Delivery::kManual});
  TestStream test(model_, dev, model_.config(4, 4));
  test.stream->begin_pass({true}, {true});
  test.stream->request(model_.expert_blocks(0, 0, false).front());
  ASSERT_EQ(dev.pending(), 5U);
  test.stream.reset();
  EXPECT_EQ(dev.in_flight(), 0U) << "its memory may be written to until then";
}

// Loading.

std::set<BlockId> every_other(const TestModel& model) {
  std::set<BlockId> ids;
  for (BlockId id = 0; id < model.store().block_count(); id += 2) ids.insert(id);
  return ids;
}

TEST_F(NeuronStreamFaultTest, LoadingDeliversEveryResidentBlock) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FakeDevice dev = device({.seed = seed, .delivery = Delivery::kRandom, .short_percent = 40});
    const std::set<BlockId> resident = every_other(model_);
    TestStream test(model_, dev, model_.config(1 + seed % 5, 4, resident));
    uint64_t last_done = 0;
    const auto progress = [](void* context, uint64_t done, uint64_t total) {
      EXPECT_LE(*static_cast<uint64_t*>(context), done);
      EXPECT_LE(done, total);
      *static_cast<uint64_t*>(context) = done;
      return true;
    };
    ASSERT_TRUE(test.stream->load_resident(progress, &last_done).ok());
    for (const BlockId id : resident) {
      const uint8_t* data = test.stream->try_pin(id);
      ASSERT_TRUE(data != nullptr && model_.holds(id, data)) << id;
      test.stream->unpin(id);
    }
    EXPECT_GT(last_done, 0U);
  }
}

TEST_F(NeuronStreamFaultTest, LoadingThatFailsSaysWhyLeavesNoReadBehindAndCanBeRepeated) {
  const std::set<BlockId> resident = every_other(model_);
  for (const BlockId broken : resident) {
    FakeDevice dev = device({.seed = broken, .delivery = Delivery::kRandom});
    TestStream test(model_, dev, model_.config(3, 4, resident));
    dev.add_fault(fault_at(broken));
    const Status status = test.stream->load_resident(nullptr, nullptr);
    ASSERT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find(model_.path()), std::string::npos);
    EXPECT_EQ(dev.in_flight(), 0U);
    dev.clear_faults();
    ASSERT_TRUE(test.stream->load_resident(nullptr, nullptr).ok());
    ASSERT_TRUE(test.pass(true, true, {0, 1}).ok());
  }
}

TEST_F(NeuronStreamFaultTest, AResidentBlockLargerThanTheRingIsLoaded) {
  constexpr size_t kRow = size_t{3} << 20;
  const WeightStore store =
      WeightStore::open({model_.path()}, {{"dense", 0, 0, 64, 3, 1}, {"expert", 0, 4096, kRow, 1, 2}}, 4096)
          .take();
  FakeDevice dev({});
  std::vector<uint8_t> contents(4096 + 2 * kRow);
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<uint8_t>(i * 13 + i / 1000);
  dev.set_contents(model_.path(), contents);
  StreamConfig config;
  config.dense_blocks = 1;
  config.resident = {0, 1, 2};
  config.expert_group = {0, 1};
  config.expert_groups = 2;
  config.ring_slots = 1;
  neuron_cache::Arena arena(size_t{64} << 20);
  auto stream = NeuronStream::create(store, dev, arena, config).take();
  ASSERT_TRUE(stream->load_resident(nullptr, nullptr).ok());
  EXPECT_EQ(std::memcmp(stream->try_pin(2), contents.data() + 4096 + kRow, kRow), 0);
}

TEST_F(NeuronStreamFaultTest, LoadingStopsWhenProgressSaysSo) {
  FakeDevice dev = device({.delivery = Delivery::kRandom});
  TestStream test(model_, dev, model_.config(3, 4, every_other(model_)));
  int calls = 0;
  const auto stop_at_third = [](void* context, uint64_t, uint64_t) {
    return ++*static_cast<int*>(context) < 3;
  };
  const Status status = test.stream->load_resident(stop_at_third, &calls);
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(dev.in_flight(), 0U);
  EXPECT_EQ(dev.submitted_offsets().size(), 2U) << "nothing is read after that";
}

}  // namespace
}  // namespace ganglion::neuron_stream
