// The engine when its file changes under it, when it is stopped, and when it is asked for what it cannot do:
// a clear error, and the same bits afterwards as if nothing had happened. Public interface only.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <thread>

#include "ganglion/engine.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;

using Tokens = std::vector<int32_t>;
using Logits = std::vector<float>;

// One small model of each kind: dense, quantised, windows, experts. The first is always there.
std::vector<fs::path> models() {
  std::vector<fs::path> found = {fs::path(GANGLION_FIXTURES) / "broken" / "intact-dense.gguf"};
  for (const char* name : {"llama-q4_0", "gemma2-f32", "smallthinker-q8_0"}) {
    for (const fs::path& root : {fs::path(GANGLION_FIXTURES), fs::path(GANGLION_SHARED_FIXTURES)}) {
      const fs::path path = root / "models" / (std::string(name) + ".gguf");
      if (!fs::exists(path)) continue;
      found.push_back(path);
      break;
    }
  }
  return found;
}

/// A copy of a model that the test may damage.
class Copy {
 public:
  explicit Copy(const fs::path& model, const std::string& parent = ::testing::TempDir()) {
    folder_ = (fs::path(parent) / "ganglion_XXXXXX").string();
    if (::mkdtemp(folder_.data()) == nullptr) {
      folder_.clear();
      return;
    }
    path_ = folder_ + "/" + model.filename().string();
    std::ifstream in(model, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    restore();
  }
  ~Copy() {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  bool ok() const { return !folder_.empty(); }
  const std::string& path() const { return path_; }
  size_t size() const { return bytes_.size(); }
  void truncate(size_t size) { ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0); }
  /// Writes the whole contents into the same file again, and out of the page cache: reads come from storage.
  void restore() {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(::write(fd, bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

 private:
  std::string folder_;
  std::string path_;
  std::string bytes_;
};

struct Opened {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

// Streams whatever can be streamed.
EngineOptions streaming(const std::string& path, bool io_uring = true) {
  EngineOptions options;
  options.model_path = path;
  options.memory = "min";
  options.threads = 2;
  options.context = 128;
  options.chunk = 8;
  options.io_uring = io_uring;
  options.logit_rows = 8;
  return options;
}

Opened open(const EngineOptions& options) {
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) return {};
  Opened opened{engine.take(), nullptr};
  const Status loaded = opened.engine->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  opened.session = opened.engine->new_session().take();
  return opened;
}

Tokens tokens_for(const Engine& engine, size_t count, int32_t seed = 1) {
  Tokens tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back((seed * 31 + static_cast<int32_t>(i) * 17) % engine.text().vocab_size());
  }
  return tokens;
}

Logits evaluate(Session& session, std::span<const int32_t> tokens) {
  const Status status = session.evaluate(tokens);
  EXPECT_TRUE(status.ok()) << status.message();
  return {session.logits().begin(), session.logits().end()};
}

Logits fresh(Session& session, std::span<const int32_t> tokens) {
  session.reset();
  return evaluate(session, tokens);
}

void expect_mentions(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "no '" << part << "' in: " << status.message();
  }
}

class EngineFaultTest : public ::testing::TestWithParam<fs::path> {};

TEST_P(EngineFaultTest, ATruncatedFileIsNamedAndARestoredOneWorksAgain) {
  for (const bool io_uring : {true, false}) {
    Copy copy(GetParam());
    Opened opened = open(streaming(copy.path(), io_uring));
    ASSERT_NE(opened.session, nullptr);
    if (!opened.engine->plan().streams) {
      ASSERT_NE(GetParam().stem(), "intact-dense") << "one model at least has to be streamed";
      GTEST_SKIP() << "all of it fits the smallest budget";
    }
    const Tokens tokens = tokens_for(*opened.engine, 20);
    const Logits expected = evaluate(*opened.session, tokens);
    auto bystander = opened.engine->new_session().take();
    ASSERT_EQ(evaluate(*bystander, tokens), expected);
    for (const size_t size : {copy.size() / 2, copy.size() * 9 / 10}) {
      copy.truncate(size);
      opened.session->reset();
      Status status;
      for (int i = 0; i < 3 && status.ok(); ++i) status = opened.session->evaluate(tokens);
      ASSERT_EQ(status.code(), Code::kModelFile) << status.message();
      expect_mentions(status, {copy.path(), "truncated", std::to_string(size)});
      EXPECT_EQ(opened.session->evaluate(tokens).code(), Code::kPoisoned);
      copy.restore();
      EXPECT_EQ(opened.session->evaluate(tokens).code(), Code::kPoisoned) << "until it is reset";
      EXPECT_EQ(fresh(*opened.session, tokens), expected);
    }
    // The other session was between two calls all the while.
    const Logits more = evaluate(*opened.session, std::span(tokens).first(3));
    EXPECT_EQ(evaluate(*bystander, std::span(tokens).first(3)), more);
  }
}

TEST_P(EngineFaultTest, AFileTruncatedBeforeLoadingIsNamed) {
  for (const char* memory : {"min", "1G"}) {
    Copy copy(GetParam());
    EngineOptions options = streaming(copy.path());
    options.memory = memory;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    copy.truncate(copy.size() / 3);
    Status status = engine.value()->load(nullptr, nullptr);
    if (status.ok()) {
      // Nothing that is loaded at start lies behind the cut.
      auto session = engine.value()->new_session().take();
      status = session->evaluate(tokens_for(*engine.value(), 3));
    }
    ASSERT_EQ(status.code(), Code::kModelFile) << status.message();
    expect_mentions(status, {copy.path(), "truncated"});
  }
}

TEST_P(EngineFaultTest, ADeletedFileIsReadOn) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  const Tokens tokens = tokens_for(*opened.engine, 20);
  const Logits expected = evaluate(*opened.session, tokens);
  fs::remove(copy.path());
  EXPECT_EQ(fresh(*opened.session, tokens), expected);
}

TEST_P(EngineFaultTest, AModelInSharedMemoryGivesTheSameBits) {
  Copy disk(GetParam());
  Copy shm(GetParam(), "/dev/shm");
  if (!shm.ok()) GTEST_SKIP() << "no /dev/shm";
  Opened from_disk = open(streaming(disk.path()));
  ASSERT_NE(from_disk.session, nullptr);
  const Tokens tokens = tokens_for(*from_disk.engine, 20);
  const Logits expected = evaluate(*from_disk.session, tokens);
  for (const bool io_uring : {true, false}) {
    for (const bool direct : {true, false}) {
      EngineOptions options = streaming(shm.path(), io_uring);
      options.direct_io = direct;
      Opened from_shm = open(options);
      ASSERT_NE(from_shm.session, nullptr);
      EXPECT_EQ(evaluate(*from_shm.session, tokens), expected)
          << "io_uring " << io_uring << ", direct " << direct;
    }
  }
}

/// Has another thread set a flag at the n-th layer that is computed, and waits until it has.
class CancelAtLayer : public LogitSink {
 public:
  explicit CancelAtLayer(int n) : left_(n), thread_([this] { run(); }) {}
  ~CancelAtLayer() override {
    asked_.release();
    thread_.join();
  }
  void logits(size_t, std::span<const float>) override {}
  void hidden(size_t, std::span<const float>) override {
    if (left_-- != 0) return;
    asked_.release();
    done_.acquire();
  }
  const std::atomic<bool>* flag() const { return &cancel_; }

 private:
  void run() {
    asked_.acquire();
    cancel_.store(true);
    done_.release();
  }
  int left_;
  std::atomic<bool> cancel_{false};
  std::binary_semaphore asked_{0};
  std::counting_semaphore<2> done_{0};
  std::thread thread_;
};

TEST_P(EngineFaultTest, ACancelledEvaluationKeepsWholeChunksAndGoesOnWithTheSameBits) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  const Tokens tokens = tokens_for(*opened.engine, 20);
  const Logits expected = evaluate(*opened.session, tokens);
  size_t cancelled = 0;
  size_t partly = 0;
  for (int layer = 0;; ++layer) {
    opened.session->reset();
    CancelAtLayer sink(layer);
    const Status status = opened.session->evaluate(tokens, sink.flag(), &sink);
    if (status.ok()) break;
    ASSERT_EQ(status.code(), Code::kCancelled) << status.message();
    const size_t kept = opened.session->position();
    ASSERT_EQ(kept % opened.engine->plan().chunk, 0U);
    ASSERT_LT(kept, tokens.size());
    ++cancelled;
    partly += kept > 0 ? 1 : 0;
    ASSERT_EQ(evaluate(*opened.session, std::span(tokens).subspan(kept)), expected)
        << "stopped at layer " << layer;
    ASSERT_LT(layer, 1000);
  }
  EXPECT_GT(cancelled, 3U);
  EXPECT_GT(partly, 0U);
}

TEST_P(EngineFaultTest, ACancelFlagSetBeforehandStopsAtOnce) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  const Tokens tokens = tokens_for(*opened.engine, 20);
  const std::atomic<bool> cancel{true};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(opened.session->evaluate(tokens, &cancel).code(), Code::kCancelled);
  EXPECT_EQ(opened.session->position(), 0U);
  const Logits after = evaluate(*opened.session, tokens);
  EXPECT_EQ(fresh(*opened.session, tokens), after);
}

TEST_P(EngineFaultTest, AContextOverflowNamesBothNumbersAndChangesNothing) {
  Copy copy(GetParam());
  EngineOptions options = streaming(copy.path());
  options.context = 37;
  Opened opened = open(options);
  ASSERT_NE(opened.session, nullptr);
  const Tokens tokens = tokens_for(*opened.engine, 37);
  const Logits expected = evaluate(*opened.session, tokens);
  ASSERT_EQ(opened.session->position(), 37U);
  Status status = opened.session->evaluate(std::span(tokens).first(1));
  EXPECT_EQ(status.code(), Code::kContextOverflow);
  expect_mentions(status, {"37", "-c"});
  opened.session->reset();
  ASSERT_TRUE(opened.session->evaluate(std::span(tokens).first(30)).ok());
  status = opened.session->evaluate(std::span(tokens).first(19));
  EXPECT_EQ(status.code(), Code::kContextOverflow);
  expect_mentions(status, {"19", "30", "37"});
  EXPECT_EQ(opened.session->position(), 30U);
  EXPECT_EQ(evaluate(*opened.session, std::span(tokens).subspan(30)), expected) << "to the last position";
}

TEST_P(EngineFaultTest, TokensOutsideTheVocabularyAreRefusedByNumber) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  const Tokens good = tokens_for(*opened.engine, 5);
  const Logits expected = evaluate(*opened.session, good);
  opened.session->reset();
  for (const int32_t bad : {-1, INT32_MIN, INT32_MAX}) {
    Tokens tokens = good;
    tokens[3] = bad;
    const Status status = opened.session->evaluate(tokens);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    expect_mentions(status, {std::to_string(bad), "vocabulary"});
  }
  EXPECT_EQ(opened.session->evaluate({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(opened.session->position(), 0U);
  EXPECT_EQ(evaluate(*opened.session, good), expected);
}

TEST_P(EngineFaultTest, RewindingGivesTheBitsOfAFreshEvaluation) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  Session& session = *opened.session;
  const Tokens first = tokens_for(*opened.engine, 70, 1);
  const Tokens second = tokens_for(*opened.engine, 9, 2);
  size_t rewound = 0;
  for (const size_t to : {69U, 64U, 63U, 1U, 0U}) {
    Tokens whole(first.begin(), first.begin() + static_cast<ptrdiff_t>(to));
    whole.insert(whole.end(), second.begin(), second.end());
    const Logits expected = fresh(session, whole);
    session.reset();
    ASSERT_TRUE(session.evaluate(first).ok());
    EXPECT_FALSE(session.try_rewind(71)) << "there is no such position";
    if (!session.try_rewind(to)) continue;  // A window has moved on.
    ++rewound;
    EXPECT_EQ(session.position(), to);
    EXPECT_TRUE(session.logits().empty());
    EXPECT_EQ(evaluate(session, second), expected) << "rewound to " << to;
  }
  EXPECT_GE(rewound, 2U);
}

TEST_P(EngineFaultTest, InterleavedSessionsGiveTheBitsOfEachAlone) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  auto other = opened.engine->new_session().take();
  const Tokens a = tokens_for(*opened.engine, 24, 1);
  const Tokens b = tokens_for(*opened.engine, 24, 2);
  std::vector<Logits> alone_a;
  std::vector<Logits> alone_b;
  for (size_t i = 0; i < 24; i += 3) alone_a.push_back(evaluate(*opened.session, std::span(a).subspan(i, 3)));
  for (size_t i = 0; i < 24; i += 3) alone_b.push_back(evaluate(*other, std::span(b).subspan(i, 3)));
  opened.session->reset();
  other->reset();
  for (size_t i = 0; i < 24; i += 3) {
    ASSERT_EQ(evaluate(*opened.session, std::span(a).subspan(i, 3)), alone_a[i / 3]);
    ASSERT_EQ(evaluate(*other, std::span(b).subspan(i, 3)), alone_b[i / 3]);
  }
  // And from two threads.
  opened.session->reset();
  other->reset();
  std::vector<Logits> from_thread;
  std::thread thread([&] {
    for (size_t i = 0; i < 24; i += 3) from_thread.push_back(evaluate(*other, std::span(b).subspan(i, 3)));
  });
  for (size_t i = 0; i < 24; i += 3)
    EXPECT_EQ(evaluate(*opened.session, std::span(a).subspan(i, 3)), alone_a[i / 3]);
  thread.join();
  EXPECT_EQ(from_thread, alone_b);
}

TEST_P(EngineFaultTest, TwoFullSessionsDoNotFitAndTheFirstGoesOn) {
  Copy copy(GetParam());
  Opened opened = open(streaming(copy.path()));
  ASSERT_NE(opened.session, nullptr);
  const Tokens tokens = tokens_for(*opened.engine, 128);
  const Logits expected = evaluate(*opened.session, tokens);
  opened.session->reset();
  ASSERT_TRUE(opened.session->evaluate(std::span(tokens).first(100)).ok());
  auto other = opened.engine->new_session().take();
  const Status status = other->evaluate(tokens);
  EXPECT_EQ(status.code(), Code::kResources) << status.message();
  EXPECT_EQ(other->evaluate(tokens).code(), Code::kPoisoned);
  EXPECT_EQ(evaluate(*opened.session, std::span(tokens).subspan(100)), expected);
  opened.session->reset();
  EXPECT_EQ(fresh(*other, tokens), expected);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineFaultTest, ::testing::ValuesIn(models()), [](const auto& test) {
  std::string name = test.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace ganglion
