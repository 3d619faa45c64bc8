// Both real queues, over real files, under success and failure alike.
#include "async_io/read_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "async_io/read_step.h"

namespace ganglion::async_io {
namespace {

namespace fs = std::filesystem;

struct FreeDeleter {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedMemory = std::unique_ptr<uint8_t, FreeDeleter>;

std::vector<uint8_t> random_bytes(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

/// A directory that goes away with its files.
class TempDir {
 public:
  explicit TempDir(const std::string& parent = ::testing::TempDir()) {
    path_ = (fs::path(parent) / "ganglion_XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TempDir() { fs::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  bool ok() const { return !path_.empty(); }
  /// Writes a file and, with `cold`, drops it from the page cache.
  std::string write(const std::string& name, const std::vector<uint8_t>& bytes, bool cold = true) const {
    const std::string path = path_ + "/" + name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    if (cold) {
      ::fsync(fd);
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    ::close(fd);
    return path;
  }

 private:
  std::string path_;
};

// Pages of a file that are in the page cache.
size_t cached_pages(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const size_t size = fs::file_size(path);
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages((size + 4095) / 4096);
  ::mincore(at, size, pages.data());
  ::munmap(at, size);
  ::close(fd);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

/// Reads with their memory.
class Reads {
 public:
  void add(const platform::File& file, uint64_t offset, uint64_t needed,
           Priority priority = Priority::kNormal, size_t misaligned_by = 0) {
    auto read = std::make_unique<Read>();
    read->memory.reset(static_cast<uint8_t*>(std::aligned_alloc(
        kIoAlignment, widened_bytes(offset, needed) + (misaligned_by > 0 ? kIoAlignment : 0))));
    read->op.file = &file;
    read->op.offset = offset;
    read->op.needed = needed;
    read->op.memory = read->memory.get() + misaligned_by;
    read->op.priority = priority;
    read->op.label = "blk.3.attn_q.weight";
    read->op.context = this;
    read->op.done = [](ReadOp* op) { static_cast<Reads*>(op->context)->finished_.push_back(op); };
    all_.push_back(std::move(read));
  }
  void submit(ReadQueue& queue) {
    std::vector<ReadOp*> ops;
    for (const auto& read : all_) ops.push_back(&read->op);
    queue.submit(ops);
  }
  void run(ReadQueue& queue) {
    submit(queue);
    while (queue.in_flight() > 0) ASSERT_GT(queue.poll(true), 0U);
    ASSERT_EQ(finished_.size(), all_.size());
  }
  const ReadOp& op(size_t i) const { return all_[i]->op; }
  size_t size() const { return all_.size(); }
  const std::vector<ReadOp*>& finished() const { return finished_; }
  bool holds(size_t i, const std::vector<uint8_t>& bytes) const {
    const ReadOp& o = op(i);
    return o.status.ok() && std::memcmp(wanted(o), bytes.data() + o.offset, o.needed) == 0;
  }

 private:
  struct Read {
    ReadOp op;
    AlignedMemory memory;
  };
  std::vector<std::unique_ptr<Read>> all_;
  std::vector<ReadOp*> finished_;
};

class ReadQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(dir_.ok());
    if (queue(QueueOptions()) == nullptr) GTEST_SKIP() << "nothing tested: " << note_;
  }
  std::unique_ptr<ReadQueue> queue(const QueueOptions& options) {
    return GetParam() ? make_io_uring(options, &note_) : make_pread_pool(options);
  }
  platform::File open(const std::string& path) { return platform::File::open(path).take(); }

  TempDir dir_;
  std::string note_;
};

TEST_P(ReadQueueTest, ReadsAnyRangeUpToAnUnalignedEnd) {
  for (const size_t size : {size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{700001}}) {
    const std::vector<uint8_t> bytes = random_bytes(size);
    const platform::File file = open(dir_.write(std::to_string(size), bytes));
    for (const bool direct : {true, false}) {
      auto q = queue({.allow_direct = direct});
      Reads reads;
      std::mt19937 random(5);
      reads.add(file, 0, size);
      reads.add(file, size - 1, 1);
      for (int i = 0; i < 40; ++i) {
        const uint64_t offset = random() % size;
        reads.add(file, offset, 1 + random() % (size - offset));
      }
      reads.run(*q);
      for (size_t i = 0; i < reads.size(); ++i) {
        EXPECT_TRUE(reads.holds(i, bytes))
            << reads.op(i).offset << "+" << reads.op(i).needed << " of " << size
            << (direct ? " direct: " : ": ") << reads.op(i).status.message();
      }
      EXPECT_EQ(q->stats().operations, reads.size());
      EXPECT_TRUE(direct || !q->stats().direct);
    }
  }
}

TEST_P(ReadQueueTest, TakesManyMoreReadsThanItsDepth) {
  const std::vector<uint8_t> bytes = random_bytes(1 << 20);
  const platform::File file = open(dir_.write("f", bytes));
  auto q = queue({.pool_threads = 3, .depth = 4});
  Reads reads;
  for (size_t i = 0; i < 500; ++i) {
    reads.add(file, i * 1999, 5000, static_cast<Priority>(i % 3));
  }
  reads.run(*q);
  for (size_t i = 0; i < reads.size(); ++i) ASSERT_TRUE(reads.holds(i, bytes)) << i;
  EXPECT_EQ(q->in_flight(), 0U);
  EXPECT_EQ(q->poll(true), 0U) << "nothing to wait for";
}

TEST_P(ReadQueueTest, StartsUrgentReadsFirst) {
  const std::vector<uint8_t> bytes = random_bytes(64 * 4096);
  const platform::File file = open(dir_.write("f", bytes));
  auto q = queue({.pool_threads = 1, .depth = 1});
  Reads reads;
  for (size_t i = 0; i < 24; ++i) reads.add(file, i * 8192, 4096, static_cast<Priority>(2 - i % 3));
  reads.run(*q);
  if (q->stats().cached_bytes > 0) GTEST_SKIP() << "the file would not leave the page cache";
  for (size_t i = 1; i < reads.size(); ++i) {
    EXPECT_LE(reads.finished()[i - 1]->priority, reads.finished()[i]->priority);
  }
}

TEST_P(ReadQueueTest, TakesFromThePageCacheWhatIsThere) {
  const std::vector<uint8_t> bytes = random_bytes(300000);
  const platform::File file = open(dir_.write("f", bytes, false));
  auto q = queue(QueueOptions());
  Reads reads;
  for (size_t i = 0; i < 20; ++i) reads.add(file, i * 14001, 14001);
  reads.run(*q);
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_TRUE(reads.holds(i, bytes));
    EXPECT_TRUE(reads.op(i).from_page_cache);
    EXPECT_EQ(reads.op(i).read_bytes, 0U);
  }
  EXPECT_EQ(q->stats().cached_bytes, 20U * 14001U);
  EXPECT_EQ(q->stats().device_bytes, 0U);

  auto device_only = queue({.allow_page_cache = false});
  Reads from_device;
  for (size_t i = 0; i < 20; ++i) from_device.add(file, i * 14001, 14001);
  from_device.run(*device_only);
  for (size_t i = 0; i < from_device.size(); ++i) EXPECT_TRUE(from_device.holds(i, bytes));
  EXPECT_EQ(device_only->stats().cached_bytes, 0U);
}

TEST_P(ReadQueueTest, LeavesNothingInThePageCache) {
  const std::vector<uint8_t> bytes = random_bytes(1 << 20);
  const std::string path = dir_.write("f", bytes);
  if (cached_pages(path) > 0) GTEST_SKIP() << "the file would not leave the page cache";
  const platform::File file = open(path);
  for (const bool direct : {true, false}) {
    auto q = queue({.allow_direct = direct});
    Reads reads;
    for (size_t i = 0; i < 16; ++i) reads.add(file, i << 16, 1 << 16);
    reads.run(*q);
    EXPECT_EQ(q->stats().cached_bytes, 0U);
    // A kernel without cachestat has one page fetched by each look; see read_step.cc.
    EXPECT_LE(cached_pages(path), 8U) << (direct ? "direct" : "buffered");
  }
}

TEST_P(ReadQueueTest, AFileThatEndsExactlyAtTheBlocksEndIsEnough) {
  const std::vector<uint8_t> bytes = random_bytes(3 * 4096 + 17);
  const platform::File file = open(dir_.write("f", bytes));
  auto q = queue(QueueOptions());
  Reads reads;
  reads.add(file, 4000, bytes.size() - 4000);
  reads.add(file, 3 * 4096, 17);
  reads.run(*q);
  EXPECT_TRUE(reads.holds(0, bytes)) << reads.op(0).status.message();
  EXPECT_TRUE(reads.holds(1, bytes)) << reads.op(1).status.message();
}

TEST_P(ReadQueueTest, AFileThatShrankIsCalledTruncatedAndHarmsNoOtherRead) {
  const std::vector<uint8_t> bytes = random_bytes(50000);
  const std::string path = dir_.write("f", bytes);
  const platform::File file = open(path);
  ASSERT_EQ(::truncate(path.c_str(), 30000), 0);
  const bool has_direct = file.direct_fd() >= 0;
  auto q = queue(QueueOptions());
  Reads reads;
  reads.add(file, 20000, 10001);
  reads.add(file, 20000, 10000);
  reads.add(file, 40000, 100);
  reads.run(*q);
  for (const size_t i : {0U, 2U}) {
    const base::Status& status = reads.op(i).status;
    EXPECT_EQ(status.code(), base::Code::kModelFile);
    for (const std::string& part :
         std::vector<std::string>{path, "blk.3.attn_q.weight", "truncated", "byte 30000,",
                                  std::to_string(reads.op(i).offset + reads.op(i).needed)}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  EXPECT_TRUE(reads.holds(1, bytes)) << reads.op(1).status.message();
  Reads later;
  later.add(file, 0, 4096);
  later.run(*q);
  EXPECT_TRUE(later.holds(0, bytes));
  EXPECT_EQ(q->stats().direct, has_direct) << "a damaged file is no reason to give up direct reads";
}

// Reading address 0 of one's own memory fails with EIO on every Linux.
TEST_P(ReadQueueTest, AnIoErrorIsRetriedAndThenNamesFileOffsetAndLabel) {
  const platform::File file = open("/proc/self/mem");
  auto q = queue(QueueOptions());
  Reads reads;
  reads.add(file, 16, 100);
  reads.run(*q);
  EXPECT_EQ(reads.op(0).status.code(), base::Code::kIo);
  EXPECT_EQ(q->stats().retries, static_cast<uint64_t>(kMaxAttempts));
  for (const std::string& part :
       std::vector<std::string>{"/proc/self/mem", "offset 16", "100 bytes", "blk.3.attn_q.weight"}) {
    EXPECT_NE(reads.op(0).status.message().find(part), std::string::npos) << reads.op(0).status.message();
  }
}

TEST_P(ReadQueueTest, AFileSystemWithoutDirectReadsIsReadBufferedAndReported) {
  const platform::File file = open("/proc/version");
  ASSERT_LT(file.direct_fd(), 0) << "procfs has no direct reads";
  std::ifstream in("/proc/version");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto q = queue(QueueOptions());
  EXPECT_TRUE(q->stats().direct);
  Reads reads;
  reads.add(file, 3, 10);
  reads.run(*q);
  EXPECT_TRUE(reads.holds(0, {text.begin(), text.end()})) << reads.op(0).status.message();
  EXPECT_FALSE(q->stats().direct);
}

TEST_P(ReadQueueTest, ADirectReadRefusedWhenReadFallsBack) {
  const std::vector<uint8_t> bytes = random_bytes(100000);
  const platform::File file = open(dir_.write("f", bytes));
  if (file.direct_fd() < 0) GTEST_SKIP() << "no direct reads on " << ::testing::TempDir();
  auto q = queue(QueueOptions());
  Reads reads;
  // No kernel reads directly to an odd address: EINVAL, as from file systems that accept O_DIRECT at open
  // alone.
  for (size_t i = 0; i < 12; ++i) reads.add(file, i * 8000, 8000, Priority::kNormal, i % 4 == 0 ? 1 : 0);
  reads.run(*q);
  for (size_t i = 0; i < reads.size(); ++i)
    EXPECT_TRUE(reads.holds(i, bytes)) << reads.op(i).status.message();
  EXPECT_FALSE(q->stats().direct);
  EXPECT_EQ(q->stats().retries, 0U);
}

TEST_P(ReadQueueTest, FilesInSharedMemoryCanBeRead) {
  const TempDir shm("/dev/shm");
  if (!shm.ok()) GTEST_SKIP() << "no /dev/shm";
  const std::vector<uint8_t> bytes = random_bytes(100000);
  const platform::File file = open(shm.write("f", bytes));
  auto q = queue(QueueOptions());
  Reads reads;
  for (size_t i = 0; i < 12; ++i) reads.add(file, i * 8000, 8000);
  reads.run(*q);
  for (size_t i = 0; i < reads.size(); ++i)
    EXPECT_TRUE(reads.holds(i, bytes)) << reads.op(i).status.message();
  EXPECT_TRUE(file.direct_fd() >= 0 || !q->stats().direct);
}

TEST_P(ReadQueueTest, CanBeDestroyedWithReadsInFlight) {
  const std::vector<uint8_t> bytes = random_bytes(1 << 20);
  const platform::File file = open(dir_.write("f", bytes));
  for (int round = 0; round < 20; ++round) {
    Reads reads;  // Outlives the queue, as required; its memory is freed right after.
    auto q = queue({.pool_threads = 2, .depth = 8});
    for (size_t i = 0; i < 64; ++i) reads.add(file, i * 10007, 10007);
    reads.submit(*q);
    if (round % 2 == 1) q->poll(true);
    const size_t finished = reads.finished().size();
    q.reset();
    EXPECT_EQ(reads.finished().size(), finished) << "no completion runs outside poll()";
  }
}

INSTANTIATE_TEST_SUITE_P(Queues, ReadQueueTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "io_uring" : "pread_pool");
});

TEST(TryReadCached, FailsWithoutFetchingAnything) {
  const TempDir dir;
  const std::vector<uint8_t> bytes = random_bytes(1 << 20);
  const std::string path = dir.write("f", bytes);
  if (cached_pages(path) > 0) GTEST_SKIP() << "the file would not leave the page cache";
  const platform::File file = platform::File::open(path).take();
  std::vector<uint8_t> out(1 << 19);
  EXPECT_FALSE(try_read_cached(file, 4096, out));
  EXPECT_LE(cached_pages(path), 1U);
  EXPECT_FALSE(try_read_cached(file, bytes.size() - 10, std::span(out).first(11))) << "beyond the end";
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(out.data()), 100000);
  std::fill(out.begin(), out.end(), uint8_t{0});
  ASSERT_TRUE(try_read_cached(file, 5, std::span(out).first(90000)));
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 90000, bytes.begin() + 5));
}

#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#endif

// From here on each of the three io_uring calls kills this process, as Android's filter does.
void forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_setup + 2, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::_Exit(77);
  }
}

[[noreturn]] void read_under_filter(bool allow_io_uring) {
  const TempDir dir;
  const std::vector<uint8_t> bytes = random_bytes(100000);
  const platform::File file = platform::File::open(dir.write("f", bytes)).take();
  fs::remove_all(fs::path(file.path()).parent_path());  // Nobody else will, if this process is killed.
  forbid_io_uring();
  std::string note;
  auto queue = make_read_queue({.allow_io_uring = allow_io_uring}, &note);
  Reads reads;
  for (size_t i = 0; i < 10; ++i) reads.add(file, i * 10000, 10000);
  reads.run(*queue);
  bool right = note.empty() && queue->name() == "pread pool";
  for (size_t i = 0; i < 10; ++i) right = right && reads.holds(i, bytes);
  queue.reset();
  std::_Exit(right ? 0 : 1);
}

TEST(IoUringForbiddenDeathTest, ItsSystemCallsAreNotMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::string note;
  const bool has_io_uring = make_io_uring({}, &note) != nullptr;
  EXPECT_EXIT(read_under_filter(false), ::testing::ExitedWithCode(0), "");
  if (!has_io_uring) GTEST_SKIP() << "the filter cannot be shown to work: " << note;
  EXPECT_EXIT(read_under_filter(true), ::testing::KilledBySignal(SIGSYS), "");
}

}  // namespace
}  // namespace ganglion::async_io
