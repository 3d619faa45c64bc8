// The self-test on sim: a right device passes, wrong and failing operations are masked, a lost device is an
// error.
#include "accelerator/self_test.h"

#include <gtest/gtest.h>

#include "accelerator/sample_layer.h"
#include "accelerator/sim.h"

namespace ganglion::accelerator {
namespace {

using base::Code;
using base::TensorType;

constexpr FfnFormat kQ4 = {TensorType::kQ4_0, TensorType::kQ4_0, kernels::DownType::kQ6};
const Operation kRelu4 = {.activation = Activation::kRelu, .format = kQ4, .bucket = 4};
const Operation kSilu1 = {.activation = Activation::kSilu, .format = kQ4, .bucket = 1};
const Operation kMatmul32 = {.kind = Operation::Kind::kMatmul, .type = TensorType::kF16, .bucket = 32};

TEST(SelfTest, AHealthyDeviceMasksNothing) {
  Sim sim({});
  const auto report = self_test(sim);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const Capabilities& c = sim.capabilities();
  EXPECT_EQ(report.value().tested, c.ffn_formats.size() * std::size(kActivations) * c.ffn_buckets.size() +
                                       c.matmul_types.size() * c.matmul_buckets.size());
  for (const MaskedOperation& masked : report.value().masked) ADD_FAILURE() << masked.why;
  EXPECT_GT(report.value().worst, 0.02) << "the tolerance of int8 is too wide to find anything";
}

TEST(SelfTest, ItsDataIsGoneAfterwards) {
  Sim sim({});
  ASSERT_TRUE(self_test(sim, {.only = {kRelu4, kMatmul32}, .layer = 5}).ok());
  const FfnLayer layer = {.layer = 5, .dim = 64, .block_neurons = 16, .format = kQ4};
  EXPECT_TRUE(upload(sim, random_bundles(layer, 2, 1), 0).ok());
  EXPECT_TRUE(sim.create_buffer({.bytes = sim.capabilities().windows[0] - (1 << 20)}).ok());
}

TEST(SelfTest, WhatComputesWronglyIsMaskedAndNothingElse) {
  SimOptions options;
  options.broken = {kRelu4, kMatmul32};
  Sim sim(options);
  const auto report = self_test(sim);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.value().masked.size(), 2U);
  EXPECT_TRUE(report.value().masks(kRelu4));
  EXPECT_TRUE(report.value().masks(kMatmul32));
  EXPECT_FALSE(report.value().masks(kSilu1));
  EXPECT_EQ(report.value().masked[0].why.find("ffn relu Q4_0 Q4_0 q6, 4 tokens: "), 0U)
      << report.value().masked[0].why;
}

TEST(SelfTest, OneWrongElementIsFoundInEveryFormat) {
  // Broken outputs differ in one element only: every format shows it.
  for (const FfnFormat& format : sim_capabilities().ffn_formats) {
    const Operation operation = {.activation = Activation::kDRelu, .format = format, .bucket = 8};
    SimOptions options;
    options.broken = {operation};
    Sim sim(options);
    const auto report = self_test(sim, {.only = {operation}});
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report.value().masks(operation)) << operation_name(operation);
  }
}

TEST(SelfTest, AFailingOperationIsMaskedAndTheOthersGoOn) {
  Sim sim({});
  sim.inject({SimFault::Kind::kFail, 2});
  const auto report = self_test(sim, {.only = {kRelu4, kSilu1, kMatmul32}});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.value().tested, 3U);
  ASSERT_EQ(report.value().masked.size(), 1U);
  EXPECT_EQ(report.value().masked[0].operation, kSilu1);
}

TEST(SelfTest, ARefusedOperationIsMasked) {
  Sim sim({});
  Operation odd = kRelu4;
  odd.bucket = 3;
  const auto report = self_test(sim, {.only = {odd, kSilu1}});
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report.value().masked.size(), 1U);
  EXPECT_EQ(report.value().masked[0].operation, odd);
}

TEST(SelfTest, ALostDeviceIsAnError) {
  Sim sim({});
  sim.inject({SimFault::Kind::kLoseDevice, 2});
  const auto report = self_test(sim, {.only = {kRelu4, kSilu1, kMatmul32}});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kDevice);
  EXPECT_NE(report.status().message().find("ffn silu"), std::string::npos) << report.status().message();
}

TEST(SelfTest, ADeviceThatHangsIsAnError) {
  Sim sim({});
  sim.inject({SimFault::Kind::kHang, 1});
  const auto report = self_test(sim, {.only = {kRelu4}, .timeout_ns = 1000});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kDevice);
}

}  // namespace
}  // namespace ganglion::accelerator
