// BundleStream on the fake device: every bundle it hands out is the right one, in whatever order reads
// complete, and faults are named and forgotten.
#include "neuron_stream/bundle_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "async_io/testing/fake_device.h"

namespace ganglion::neuron_stream {
namespace {

using async_io::Delivery;
using async_io::FakeDevice;
using async_io::FakeDeviceOptions;
using async_io::Fault;
using base::Status;
using neuron_store::WeightStore;

constexpr uint32_t kNeurons = 120;
constexpr uint32_t kStride = 1520;
constexpr uint32_t kBytes = 1500;

// Two dense layers and one of three experts; a fourth layer is not packed.
class BundleFile {
 public:
  BundleFile() {
    path_ = ::testing::TempDir() + "ganglion_bundles_" + std::to_string(::getpid());
    uint64_t offset = 992;
    for (const uint32_t experts : {1U, 3U, 0U, 1U}) {
      layers_.push_back({0, offset, experts > 0 ? kStride : 0, kBytes, experts > 0 ? kNeurons : 0, experts});
      offset += uint64_t{experts} * kNeurons * kStride;
      sets_ += experts;
    }
    contents_.resize(offset + 4096);
    std::mt19937 random(11);
    for (uint8_t& byte : contents_) byte = static_cast<uint8_t>(random());
    std::ofstream(path_) << "-";
    store_ = std::make_unique<WeightStore>(WeightStore::open({path_}, {}, 4000).take());
    for (uint32_t set = 0; set < sets_; ++set) {
      for (uint32_t p = 0; p < kNeurons; ++p) frequency_.push_back(1.0F - static_cast<float>(p) / kNeurons);
    }
  }
  ~BundleFile() { std::remove(path_.c_str()); }

  std::unique_ptr<BundleStream> open(FakeDevice& device, neuron_cache::Arena& arena, uint32_t prefix,
                                     size_t cache_bytes, size_t staging_bytes) {
    device.set_contents(path_, contents_);
    auto stream = BundleStream::create(*store_, device, arena, layers_, frequency_,
                                       {.prefix = std::vector<uint32_t>(sets_, prefix),
                                        .warm = std::vector<uint32_t>(sets_, prefix + 5),
                                        .cache_bytes = cache_bytes,
                                        .staging_bytes = staging_bytes});
    EXPECT_TRUE(stream.ok());
    return stream.take();
  }
  bool holds(size_t layer, uint32_t expert, uint32_t neuron, const uint8_t* data) const {
    const uint64_t at = layers_[layer].offset + (uint64_t{expert} * kNeurons + neuron) * kStride;
    return std::memcmp(data, contents_.data() + at, kBytes) == 0;
  }
  const std::vector<BundleLayer>& layers() const { return layers_; }

 private:
  std::string path_;
  std::vector<uint8_t> contents_;
  std::vector<BundleLayer> layers_;
  uint32_t sets_ = 0;
  std::unique_ptr<WeightStore> store_;
  std::vector<float> frequency_;
};

// Goes over a layer as a sparse pass does. `ahead`: neurons of its first set to ask for before.
Status use_layer(const BundleFile& file, BundleStream& stream, size_t layer,
                 const std::vector<std::vector<uint32_t>>& wanted, const std::vector<uint32_t>& ahead) {
  stream.begin_layer(layer);
  stream.request_ahead(stream.set_of(layer, 0), ahead);
  stream.submit();
  const Status first = stream.poll(false);
  if (!first.ok()) return first;
  stream.begin_layer(layer);
  for (uint32_t e = 0; e < wanted.size(); ++e) {
    const uint32_t set = stream.set_of(layer, e);
    size_t done = 0;
    while (done < wanted[e].size()) {
      std::vector<uint32_t> missing;
      for (size_t i = done; i < wanted[e].size(); ++i) {
        if (stream.find(set, wanted[e][i]) == nullptr) missing.push_back(wanted[e][i]);
      }
      const size_t taken = stream.request(set, missing);
      stream.submit();
      const uint32_t stop = taken < missing.size() ? missing[taken] : UINT32_MAX;
      for (; done < wanted[e].size() && wanted[e][done] < stop; ++done) {
        const uint8_t* data = nullptr;
        while ((data = stream.find(set, wanted[e][done])) == nullptr) {
          const Status status = stream.poll(true);
          if (!status.ok()) return status;
        }
        EXPECT_TRUE(file.holds(layer, e, wanted[e][done], data))
            << layer << " " << e << " " << wanted[e][done];
        stream.touch(set, wanted[e][done]);
      }
      if (done < wanted[e].size()) {
        const Status status = stream.recycle_present();
        if (!status.ok()) return status;
      }
    }
  }
  return base::ok_status();
}

std::vector<uint32_t> some(std::mt19937& random, unsigned percent) {
  std::vector<uint32_t> neurons;
  for (uint32_t p = 0; p < kNeurons; ++p) {
    if (random() % 100 < percent) neurons.push_back(p);
  }
  return neurons;
}

TEST(MergeGap, IsHalfOfWhatARequestCostsInBytes) {
  // 50 us a request and 0.5 ns a byte: 100,000 bytes, of which half, but at most 64 KiB.
  const auto ns = [](double request, double per_byte, double bytes) { return request + per_byte * bytes; };
  const auto gap = [&](double request, double per_byte) {
    return merge_gap(ns(request, per_byte, 8192), 8192, ns(request, per_byte, 65536), 65536);
  };
  EXPECT_NEAR(static_cast<double>(gap(50'000, 0.5)), 50'000, 1);
  EXPECT_EQ(gap(500'000, 0.5), 65536U);
  EXPECT_EQ(gap(1'000, 0.5), 8192U);
  EXPECT_EQ(gap(50'000, 0), 65536U);
  EXPECT_EQ(merge_gap(10'000, 8192, 9'000, 65536), 65536U);
}

TEST(BundleStream, GivesTheRightBundlesInAnyOrderOfCompletion) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    BundleFile file;
    FakeDevice device(
        {.seed = seed, .delivery = Delivery::kRandom, .short_percent = 20, .interrupted_percent = 10});
    neuron_cache::Arena arena(size_t{64} << 20);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto prefix = static_cast<uint32_t>(random() % 100);
    const size_t cache = random() % 2 == 0 ? 0 : size_t{2} << 20;
    const size_t staging = (150 + random() % 400) * 1024;
    const auto stream = file.open(device, arena, prefix, cache, staging);
    ASSERT_TRUE(stream->load(nullptr, nullptr).ok());
    for (int token = 0; token < 6; ++token) {
      const unsigned percent = 5 + static_cast<unsigned>(random() % 90);
      ASSERT_TRUE(use_layer(file, *stream, 0, {some(random, percent)}, some(random, percent)).ok());
      ASSERT_TRUE(use_layer(file, *stream, 1, {some(random, percent), {}, some(random, percent)},
                            some(random, percent))
                      .ok());
      ASSERT_TRUE(use_layer(file, *stream, 3, {some(random, percent)}, {}).ok());
      stream->tick();
    }
  }
}

TEST(BundleStream, AFailedReadIsNamedAndTheNextPassWorks) {
  BundleFile file;
  FakeDevice device({.delivery = Delivery::kRandom});
  neuron_cache::Arena arena(size_t{64} << 20);
  const auto stream = file.open(device, arena, 10, size_t{2} << 20, size_t{512} << 10);
  ASSERT_TRUE(stream->load(nullptr, nullptr).ok());
  std::vector<uint32_t> all(kNeurons);
  for (uint32_t p = 0; p < kNeurons; ++p) all[p] = p;
  const uint64_t bad = file.layers()[0].offset + uint64_t{50} * kStride;
  device.add_fault({.kind = Fault::Kind::kError, .begin = bad, .end = bad + 1, .times = 3});
  const Status status = use_layer(file, *stream, 0, {all}, all);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("bundles"), std::string::npos) << status.message();
  stream->restart();
  EXPECT_TRUE(use_layer(file, *stream, 0, {all}, all).ok());
  EXPECT_TRUE(use_layer(file, *stream, 1, {all, all, all}, {}).ok());
}

TEST(BundleStream, WhatALayerFoundStaysWhileMoreIsAskedFor) {
  BundleFile file;
  FakeDevice device({.seed = 3, .delivery = Delivery::kRandom});
  neuron_cache::Arena arena(size_t{64} << 20);
  const auto stream = file.open(device, arena, 0, size_t{60} * 1536, size_t{400} << 10);
  ASSERT_TRUE(stream->load(nullptr, nullptr).ok());
  std::mt19937 random(5);
  const size_t packed[] = {0, 1, 3};
  for (size_t i = 0; i < 300; ++i) {
    const size_t layer = packed[i % 3];
    const std::vector<uint32_t> wanted = some(random, 20);
    stream->begin_layer(layer);
    const uint32_t set = stream->set_of(layer, 0);
    std::vector<std::pair<uint32_t, const uint8_t*>> found;
    for (const uint32_t neuron : wanted) {
      if (const uint8_t* data = stream->find(set, neuron)) found.emplace_back(neuron, data);
    }
    stream->request(set, wanted);
    for (const uint32_t neuron : wanted) stream->touch(set, neuron);
    stream->request_ahead(set, some(random, 20));
    stream->submit();
    while (device.in_flight() > 0) ASSERT_TRUE(stream->poll(true).ok());
    for (const auto& [neuron, data] : found)
      ASSERT_TRUE(file.holds(layer, 0, neuron, data)) << "pass " << i << ", neuron " << neuron;
    stream->tick();
  }
}

TEST(BundleStream, NeighboursAreReadAtOnce) {
  BundleFile file;
  FakeDevice device({});
  neuron_cache::Arena arena(size_t{64} << 20);
  const auto stream = file.open(device, arena, 0, 0, size_t{1} << 20);
  ASSERT_TRUE(stream->load(nullptr, nullptr).ok());
  const uint64_t before = stream->stats().requests;
  ASSERT_TRUE(use_layer(file, *stream, 0, {{10, 11, 12, 14, 60, 100}}, {}).ok());
  EXPECT_EQ(stream->stats().requests - before, 3U);
}

}  // namespace
}  // namespace ganglion::neuron_stream
