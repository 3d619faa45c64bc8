// How one operation goes on after each system call, and the fake device that other rooms' tests stand on.
#include "async_io/read_step.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "async_io/op_list.h"
#include "async_io/testing/fake_device.h"

namespace ganglion::async_io {
namespace {

struct FreeDeleter {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedMemory = std::unique_ptr<uint8_t, FreeDeleter>;

AlignedMemory aligned_memory(size_t bytes) {
  return AlignedMemory(static_cast<uint8_t*>(std::aligned_alloc(kIoAlignment, bytes)));
}

class ReadStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "ganglion_read_step_" + std::to_string(::getpid());
    std::ofstream(path_, std::ios::binary) << "x";
    file_.emplace(platform::File::open(path_).take());
    memory_ = aligned_memory(8 * kIoAlignment);
    op_.file = &*file_;
    op_.label = "blk.7.ffn_up.weight";
    op_.memory = memory_.get();
    want(5000, 9000);
  }
  void TearDown() override { std::remove(path_.c_str()); }

  // Covers [4096, 16384) when widened; 9904 bytes from there on are needed.
  void want(uint64_t offset, uint64_t needed) {
    op_.offset = offset;
    op_.needed = needed;
    begin(&op_, true);
    op_.direct = true;  // Whatever the file system of the test says.
  }

  std::string path_;
  std::optional<platform::File> file_;
  AlignedMemory memory_;
  ReadOp op_;
};

TEST_F(ReadStepTest, ReadsTheWidenedRangeAndEndsAtWhatIsNeeded) {
  const ReadStep step = next_read(op_);
  EXPECT_EQ(step.offset, 4096U);
  EXPECT_EQ(step.length, 12288U);
  EXPECT_EQ(step.memory, memory_.get());
  EXPECT_EQ(advance(&op_, 9904), NextStep::kFinished) << "the file may end there";
  EXPECT_TRUE(op_.status.ok());
  EXPECT_EQ(op_.read_bytes, 9904U);
}

TEST_F(ReadStepTest, ShortDirectReadsResumeAtAWholeUnitAndCountNoByteTwice) {
  ASSERT_EQ(advance(&op_, 5000), NextStep::kAgain);
  ReadStep step = next_read(op_);
  EXPECT_EQ(step.offset, 8192U);
  EXPECT_EQ(step.length, 8192U);
  EXPECT_EQ(step.memory, memory_.get() + 4096);
  ASSERT_EQ(advance(&op_, 5807), NextStep::kAgain) << "one byte short";
  EXPECT_EQ(next_read(op_).offset, 12288U);
  ASSERT_EQ(advance(&op_, 1712), NextStep::kFinished);
  EXPECT_TRUE(op_.status.ok());
}

TEST_F(ReadStepTest, ShortBufferedReadsResumeAtTheByte) {
  op_.direct = false;
  ASSERT_EQ(advance(&op_, 1), NextStep::kAgain);
  EXPECT_EQ(next_read(op_).offset, 4097U);
  EXPECT_EQ(next_read(op_).fd, file_->fd());
  ASSERT_EQ(advance(&op_, 9902), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, 1), NextStep::kFinished);
  EXPECT_TRUE(op_.status.ok());
}

TEST_F(ReadStepTest, InterruptionsAreNoAttempts) {
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(advance(&op_, i % 2 == 0 ? -EINTR : -EAGAIN), NextStep::kAgain);
  EXPECT_EQ(op_.attempts, 0);
  EXPECT_EQ(advance(&op_, 12288), NextStep::kFinished);
  EXPECT_TRUE(op_.status.ok());
}

TEST_F(ReadStepTest, EndlessInterruptionEndsWithFileAndOffset) {
  int calls = 1;
  while (advance(&op_, -EAGAIN) == NextStep::kAgain) ++calls;
  EXPECT_EQ(calls, kMaxInterruptions);
  EXPECT_EQ(op_.status.code(), base::Code::kIo);
  EXPECT_NE(op_.status.message().find(path_), std::string::npos) << op_.status.message();
  EXPECT_NE(op_.status.message().find("5000"), std::string::npos) << op_.status.message();
}

TEST_F(ReadStepTest, ProgressForgivesInterruptions) {
  for (int i = 0; i + 1 < kMaxInterruptions; ++i) ASSERT_EQ(advance(&op_, -EINTR), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, 4096), NextStep::kAgain);
  for (int i = 0; i + 1 < kMaxInterruptions; ++i) ASSERT_EQ(advance(&op_, -EINTR), NextStep::kAgain);
  EXPECT_EQ(advance(&op_, 9904 - 4096), NextStep::kFinished);
  EXPECT_TRUE(op_.status.ok());
}

TEST_F(ReadStepTest, AnErrorIsRetriedABoundedNumberOfTimesAndThenNamed) {
  for (int i = 1; i < kMaxAttempts; ++i) ASSERT_EQ(advance(&op_, -EIO), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, -EIO), NextStep::kFinished);
  EXPECT_EQ(op_.status.code(), base::Code::kIo);
  for (const std::string& part :
       std::vector<std::string>{path_, "5000", "9000", "blk.7.ffn_up.weight", "Input/output error"}) {
    EXPECT_NE(op_.status.message().find(part), std::string::npos) << op_.status.message();
  }
}

TEST_F(ReadStepTest, AnErrorThatPassesLeavesNoTrace) {
  ASSERT_EQ(advance(&op_, 4096), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, -EIO), NextStep::kAgain);
  EXPECT_EQ(next_read(op_).offset, 8192U) << "what had arrived is kept";
  ASSERT_EQ(advance(&op_, 8192), NextStep::kFinished);
  EXPECT_TRUE(op_.status.ok());
}

TEST_F(ReadStepTest, ARefusedDirectReadGoesOnBuffered) {
  ASSERT_EQ(advance(&op_, 5000), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, -EINVAL), NextStep::kAgainBuffered);
  EXPECT_FALSE(op_.direct);
  EXPECT_EQ(next_read(op_).fd, file_->fd());
  EXPECT_EQ(next_read(op_).offset, 4096U + 5000U);
  EXPECT_EQ(op_.attempts, 0);
  for (int i = 1; i < kMaxAttempts; ++i) ASSERT_EQ(advance(&op_, -EINVAL), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, -EINVAL), NextStep::kFinished) << "a buffered one is an error like any other";
  EXPECT_EQ(op_.status.code(), base::Code::kIo);
}

TEST_F(ReadStepTest, TheEndOfTheFileIsAskedForTwiceAndNamed) {
  ASSERT_EQ(advance(&op_, 4196), NextStep::kAgain);
  ASSERT_EQ(advance(&op_, 100), NextStep::kAgain) << "nothing new: tried without direct reads";
  ASSERT_FALSE(op_.direct);
  ASSERT_EQ(advance(&op_, 0), NextStep::kFinished);
  EXPECT_EQ(op_.status.code(), base::Code::kModelFile);
  for (const std::string& part :
       std::vector<std::string>{path_, "8292", "14000", "blk.7.ffn_up.weight", "truncated"}) {
    EXPECT_NE(op_.status.message().find(part), std::string::npos) << op_.status.message();
  }
}

TEST(WidenedBytes, CoversWhatIsNeededInWholeUnits) {
  EXPECT_EQ(widened_bytes(0, 1), 4096U);
  EXPECT_EQ(widened_bytes(4095, 1), 4096U);
  EXPECT_EQ(widened_bytes(4095, 2), 8192U);
  EXPECT_EQ(widened_bytes(4096, 4096), 4096U);
  EXPECT_EQ(widened_bytes(5000, 9000), 12288U);
}

TEST(PriorityOpList, UrgentOnesComeFirstAndEqualOnesInOrder) {
  ReadOp ops[6];
  const Priority priorities[6] = {Priority::kLookAhead, Priority::kNormal, Priority::kUrgent,
                                  Priority::kNormal,    Priority::kUrgent, Priority::kLookAhead};
  PriorityOpList list;
  for (size_t i = 0; i < 6; ++i) {
    ops[i].priority = priorities[i];
    list.push(&ops[i]);
  }
  for (const size_t expected : {2, 4, 1, 3, 0, 5}) EXPECT_EQ(list.pop(), &ops[expected]);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.pop(), nullptr);
}

// The fake device.

class FakeDeviceTest : public ReadStepTest {
 protected:
  static constexpr size_t kSize = 40000;
  void SetUp() override {
    ReadStepTest::SetUp();
    contents_.resize(kSize);
    for (size_t i = 0; i < kSize; ++i) contents_[i] = static_cast<uint8_t>(i * 7 + i / 256);
  }
  // Reads the operation's range and returns whether it holds what the file says.
  bool read(FakeDevice& device) {
    op_.done = [](ReadOp*) {};
    ReadOp* op = &op_;
    device.submit({&op, 1});
    while (device.in_flight() > 0) device.poll(true);
    return op_.status.ok() && std::equal(wanted(op_), wanted(op_) + op_.needed,
                                         contents_.begin() + static_cast<ptrdiff_t>(op_.offset));
  }
  std::vector<uint8_t> contents_;
};

TEST_F(FakeDeviceTest, ServesTheRightBytesUnderShortReadsAndInterruptions) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    FakeDevice device(
        {.seed = seed, .delivery = Delivery::kRandom, .short_percent = 60, .interrupted_percent = 20});
    device.set_contents(path_, contents_);
    std::mt19937_64 random(seed);
    want(random() % 20000, 1 + random() % 20000);
    ASSERT_TRUE(read(device)) << "seed " << seed << ": " << op_.status.message();
  }
}

TEST_F(FakeDeviceTest, ReadsTheFileItselfWhereNoContentsAreSet) {
  FakeDevice device({});
  want(0, 1);
  contents_ = {'x'};
  EXPECT_TRUE(read(device));
}

TEST_F(FakeDeviceTest, FaultsHitTheBytesTheyAreMeantForAsOftenAsTheyAreMeantTo) {
  FakeDevice device({});
  device.set_contents(path_, contents_);
  device.add_fault({.kind = Fault::Kind::kError, .begin = 8192, .end = 8193, .times = 1});
  EXPECT_TRUE(read(device)) << "one error is retried";
  EXPECT_EQ(device.stats().retries, 1U);
  device.add_fault({.kind = Fault::Kind::kError, .begin = 16384});
  EXPECT_TRUE(read(device)) << "beyond the range";
  device.add_fault({.kind = Fault::Kind::kError});
  EXPECT_FALSE(read(device));
  EXPECT_EQ(op_.status.code(), base::Code::kIo);
  device.clear_faults();
  device.add_fault({.kind = Fault::Kind::kCorrupt, .begin = 5003, .times = 1});
  EXPECT_FALSE(read(device));
  EXPECT_TRUE(op_.status.ok());
  EXPECT_EQ(wanted(op_)[3], static_cast<uint8_t>(~contents_[5003]));
  EXPECT_TRUE(read(device));
  device.add_fault({.kind = Fault::Kind::kEnd, .begin = 13999});
  EXPECT_FALSE(read(device));
  EXPECT_EQ(op_.status.code(), base::Code::kModelFile);
  device.clear_faults();
  device.add_fault({.kind = Fault::Kind::kEnd, .begin = 14000});
  device.add_fault({.kind = Fault::Kind::kShort});
  EXPECT_TRUE(read(device)) << "ends exactly at the block's end: " << op_.status.message();
  EXPECT_TRUE(device.stats().direct);
  device.add_fault({.kind = Fault::Kind::kRefuseDirect});
  EXPECT_TRUE(read(device)) << op_.status.message();
  EXPECT_FALSE(device.stats().direct);
}

TEST_F(FakeDeviceTest, AManualReadCompletesWhenTheTestSaysSo) {
  FakeDevice device({.delivery = Delivery::kManual});
  device.set_contents(path_, contents_);
  int done = 0;
  op_.context = &done;
  op_.done = [](ReadOp* op) { ++*static_cast<int*>(op->context); };
  ReadOp* op = &op_;
  device.submit({&op, 1});
  EXPECT_EQ(device.poll(false), 0U);
  EXPECT_EQ(wanted(op_)[0], 0xDB) << "poisoned until then";
  device.complete(0);
  EXPECT_EQ(done, 0) << "completions run in poll alone";
  EXPECT_EQ(device.poll(false), 1U);
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace ganglion::async_io
