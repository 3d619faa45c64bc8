// A small synthetic model on a fake device, and a consumer that goes over it as the engine's Multiplier does,
// comparing every byte that it is handed.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "async_io/testing/fake_device.h"
#include "neuron_stream/neuron_stream.h"

namespace ganglion::neuron_stream {

using async_io::Delivery;
using async_io::FakeDevice;
using async_io::FakeDeviceOptions;
using async_io::Fault;
using base::Status;
using neuron_store::Block;
using neuron_store::MatrixExtent;
using neuron_store::WeightStore;

inline constexpr uint32_t kLayers = 3;
inline constexpr uint32_t kExperts = 4;

/// Dense matrices: two for each layer, then the head. Expert matrices: gate, up, down for each layer.
class TestModel {
 public:
  static constexpr uint32_t kHead = 2 * kLayers;
  static constexpr uint32_t kFirstExpertMatrix = kHead + 1;

  /// `block_bytes` 4000 cuts each dense matrix and each expert's matrix into several blocks.
  explicit TestModel(size_t block_bytes = 4000) {
    path_ = ::testing::TempDir() + "ganglion_stream_" + std::to_string(::getpid());
    std::vector<MatrixExtent> matrices;
    uint64_t offset = 992;
    const auto add = [&](const std::string& name, size_t row_bytes, uint32_t rows, uint32_t slices) {
      matrices.push_back({name, 0, offset, row_bytes, rows, slices});
      offset += uint64_t{row_bytes} * rows * slices + 32;
    };
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      add("attn." + std::to_string(layer), 700, 13, 1);
      add("ffn." + std::to_string(layer), 1300, 11, 1);
    }
    add("head", 900, 12, 1);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const char* part : {"gate.", "up.", "down."}) add(part + std::to_string(layer), 600, 9, kExperts);
    }
    contents_.resize(offset);
    std::mt19937 random(11);
    for (uint8_t& byte : contents_) byte = static_cast<uint8_t>(random());
    std::ofstream(path_) << "-";  // The fake device has the rest; the page cache must not.
    store_ = std::make_unique<WeightStore>(WeightStore::open({path_}, matrices, block_bytes).take());
  }
  ~TestModel() { std::remove(path_.c_str()); }
  TestModel(const TestModel&) = delete;
  TestModel& operator=(const TestModel&) = delete;

  const WeightStore& store() const { return *store_; }
  const std::string& path() const { return path_; }
  const std::vector<uint8_t>& contents() const { return contents_; }
  BlockId dense_blocks() const { return store_->blocks_of(kFirstExpertMatrix, 0).begin; }

  std::vector<BlockId> blocks(uint32_t matrix, uint32_t slice = 0) const {
    std::vector<BlockId> ids;
    const BlockRange range = store_->blocks_of(matrix, slice);
    for (BlockId id = range.begin; id < range.end; ++id) ids.push_back(id);
    return ids;
  }
  /// Blocks of gate and up (the first product), or of down (the second), of an expert.
  std::vector<BlockId> expert_blocks(uint32_t layer, uint32_t expert, bool down) const {
    const uint32_t gate = kFirstExpertMatrix + 3 * layer;
    if (down) return blocks(gate + 2, expert);
    std::vector<BlockId> ids = blocks(gate, expert);
    for (const BlockId id : blocks(gate + 1, expert)) ids.push_back(id);
    return ids;
  }
  bool holds(BlockId id, const uint8_t* data) const {
    const Block block = store_->block(id);
    return std::memcmp(data, contents_.data() + block.offset, block.bytes) == 0;
  }
  /// Everything streamed but `resident`.
  StreamConfig config(size_t ring_slots, size_t expert_slots, const std::set<BlockId>& resident = {}) const {
    StreamConfig config;
    config.dense_blocks = dense_blocks();
    const BlockRange head = store_->blocks_of(kHead, 0);
    for (BlockId id = 0; id < store_->block_count(); ++id) {
      if (resident.count(id) > 0) {
        config.resident.push_back(id);
      } else if (id < dense_blocks()) {
        config.streamed.push_back(id);
        config.streamed_tail += id >= head.begin ? 1 : 0;
      }
    }
    for (BlockId id = dense_blocks(); id < store_->block_count(); ++id) {
      const Block block = store_->block(id);
      config.expert_group.push_back((block.matrix - kFirstExpertMatrix) / 3 * kExperts + block.slice);
    }
    config.expert_groups = kLayers * kExperts;
    config.ring_slots = ring_slots;
    config.expert_slots = expert_slots;
    return config;
  }

 private:
  std::string path_;
  std::vector<uint8_t> contents_;
  std::unique_ptr<WeightStore> store_;
};

/// A stream over a model and a queue, with room for everything.
struct TestStream {
  TestStream(const TestModel& of, async_io::ReadQueue& queue, StreamConfig config)
      : model(of), arena(size_t{1} << 30) {
    stream = NeuronStream::create(of.store(), queue, arena, std::move(config)).take();
  }

  /// What Multiplier::run does. Compares after everything missing has been asked for: nothing pinned may be
  /// displaced.
  Status consume(std::vector<BlockId> pending) {
    for (int turn = 0; !pending.empty(); ++turn) {
      if (turn == 20000) return Status(base::Code::kInternal, "no progress");
      std::vector<std::pair<BlockId, const uint8_t*>> pinned;
      std::vector<BlockId> rest;
      for (const BlockId id : pending) {
        const uint8_t* data = stream->try_pin(id);
        data != nullptr ? pinned.push_back({id, data}) : rest.push_back(id);
      }
      pending = rest;
      for (const BlockId id : pending) stream->request(id);
      if (pinned.empty()) {
        GANGLION_RETURN_IF_ERROR(stream->wait(pending.front()));
        continue;
      }
      bool right = true;
      for (const auto& [id, data] : pinned) right = right && model.holds(id, data);
      for (const auto& [id, data] : pinned) stream->unpin(id);
      if (!right) return Status(base::Code::kInternal, "wrong bytes");
      if (!pending.empty()) stream->poll();
    }
    return base::ok_status();
  }

  void begin_prompt_layer(uint32_t layer, const std::vector<uint32_t>& experts) {
    std::vector<BlockId> next;
    for (const bool down : {false, true}) {
      for (const uint32_t expert : experts) {
        for (const BlockId id : model.expert_blocks(layer, expert, down)) stream->request(id);
        if (layer + 1 == kLayers) continue;
        for (const BlockId id : model.expert_blocks(layer + 1, expert, down)) next.push_back(id);
      }
    }
    stream->read_next(next, kExperts);
  }

  /// One pass with `experts` in each layer; a prompt's has the next layer's read meanwhile.
  Status pass(bool output, bool next_output, const std::vector<uint32_t>& experts = {}, bool prompt = false) {
    stream->begin_pass({output}, {next_output});
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      GANGLION_RETURN_IF_ERROR(consume(model.blocks(2 * layer)));
      if (prompt) begin_prompt_layer(layer, experts);
      for (const bool down : {false, true}) {
        std::vector<BlockId> wanted;
        for (const uint32_t expert : experts) {
          if (!down) stream->use_expert(layer * kExperts + expert);
          for (const BlockId id : model.expert_blocks(layer, expert, down)) wanted.push_back(id);
        }
        GANGLION_RETURN_IF_ERROR(consume(wanted));
      }
      for (const uint32_t expert : experts) {
        if (prompt) stream->leave_expert(layer * kExperts + expert);
      }
      GANGLION_RETURN_IF_ERROR(consume(model.blocks(2 * layer + 1)));
    }
    if (output) GANGLION_RETURN_IF_ERROR(consume(model.blocks(TestModel::kHead)));
    stream->tick();
    return base::ok_status();
  }

  const TestModel& model;
  neuron_cache::Arena arena;
  std::unique_ptr<NeuronStream> stream;
};

}  // namespace ganglion::neuron_stream
