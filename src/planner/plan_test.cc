#include "planner/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/units.h"

namespace ganglion::planner {
namespace {

using base::kKiB;
using base::kMiB;

uint64_t scratch(const void*, size_t chunk) {
  return chunk * 100 * kKiB;
}
uint64_t kv(const void*, size_t positions, size_t) {
  return positions * 16 * kKiB;
}

ModelSizes dense_model(const std::vector<uint32_t>& blocks) {
  ModelSizes sizes;
  sizes.vector_bytes = kMiB;
  sizes.dense_blocks = blocks;
  sizes.ring_slot_bytes = 512 * kKiB;
  sizes.context_trained = 8192;
  sizes.scratch_bytes = scratch;
  sizes.kv_bytes = kv;
  return sizes;
}

TEST(Plan, NeverPlansAboveTheBudgetAndUsesMoreOfALargerOne) {
  std::mt19937 random(3);
  std::vector<uint32_t> blocks(4000);
  for (uint32_t& bytes : blocks) bytes = static_cast<uint32_t>(200 * kKiB + random() % (300 * kKiB));
  const ModelSizes sizes = dense_model(blocks);
  uint64_t last_streamed = UINT64_MAX;
  for (uint64_t budget = 64 * kMiB; budget < 2400 * kMiB; budget += 37 * kMiB) {
    PlanRequest request;
    request.budget_bytes = budget;
    request.process_bytes = 20 * kMiB;
    request.context = 512;
    const auto plan = make_plan(sizes, request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan.value().planned_bytes(), budget);
    EXPECT_LE(plan.value().streamed_bytes, last_streamed) << "more memory, more reading";
    last_streamed = plan.value().streamed_bytes;
    const uint64_t total = std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
    if (plan.value().streams()) {
      EXPECT_GT(plan.value().planned_bytes() + 8 * kMiB, budget) << "memory left unused";
      EXPECT_LT(plan.value().streamed_bytes, total);
    }
  }
  EXPECT_EQ(last_streamed, 0U);
}

TEST(Plan, SpreadsTheResidentBlocksEvenly) {
  const std::vector<uint32_t> blocks(1000, 512 * kKiB);
  PlanRequest request;
  request.budget_bytes = 400 * kMiB;
  request.process_bytes = 20 * kMiB;
  const auto plan = make_plan(dense_model(blocks), request);
  ASSERT_TRUE(plan.ok());
  const auto count = [&](size_t begin, size_t end) {
    return std::count_if(plan.value().dense_resident.begin(), plan.value().dense_resident.end(),
                         [&](uint32_t block) { return block >= begin && block < end; });
  };
  const auto total = count(0, 1000);
  EXPECT_GT(total, 100);
  for (size_t i = 0; i < 1000; i += 100) EXPECT_LE(std::abs(count(i, i + 100) - total / 10), 3);
}

TEST(Plan, BetweenPromptsWeightsTakeTheScratchOfChunks) {
  const std::vector<uint32_t> blocks(1000, 512 * kKiB);
  const ModelSizes sizes = dense_model(blocks);
  const PlanRequest request = {.budget_bytes = 400 * kMiB, .process_bytes = 20 * kMiB, .context = 4096};
  const Plan answers = make_plan(sizes, request).take();
  EXPECT_GT(answers.chunk, 4 * answers.answer_rows);
  EXPECT_EQ(answers.rows, answers.answer_rows);
  PlanChange change = unchanged(answers);
  change.rows = answers.chunk;
  const Plan prompts = replan(sizes, answers, change).take();
  EXPECT_EQ(prompts.scratch_bytes, scratch(nullptr, answers.chunk));
  EXPECT_LE(prompts.planned_bytes(), request.budget_bytes);
  EXPECT_LT(prompts.resident_bytes + prompts.scratch_bytes / 2, answers.resident_bytes);
  change.rows = answers.answer_rows;
  EXPECT_EQ(replan(sizes, prompts, change).take().dense_resident, answers.dense_resident);
}

TEST(Plan, APackKeepsRoomForTheFullContextAndChunk) {
  const std::vector<uint32_t> blocks(100, 512 * kKiB);
  const std::vector<BlockUse> block_use(100, BlockUse::kAll);
  std::vector<float> frequency(20000);
  for (size_t i = 0; i < frequency.size(); ++i) frequency[i] = 1 / static_cast<float>(i + 1);
  const std::vector<NeuronSet> sets = {{8000, frequency}};
  ModelSizes sizes = dense_model(blocks);
  sizes.block_use = block_use;
  sizes.neuron_sets = sets;
  sizes.bundle_slot_bytes = 8000;
  for (uint64_t budget = 130 * kMiB; budget < 500 * kMiB; budget += 7 * kMiB) {
    const PlanRequest request = {.budget_bytes = budget, .process_bytes = 20 * kMiB, .context = 2048};
    const auto made = make_plan(sizes, request);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_LE(made.value().planned_bytes(), budget);
    const auto full = replan(sizes, made.value(), {budget, made.value().kv_full_bytes, made.value().chunk});
    ASSERT_TRUE(full.ok()) << full.status().message();
    EXPECT_LE(full.value().planned_bytes(), budget);
    EXPECT_EQ(full.value().neuron_prefix, made.value().neuron_prefix);
  }
}

TEST(Plan, SaysWhatIsNeededWhenNothingFits) {
  const std::vector<uint32_t> blocks(10, 512 * kKiB);
  PlanRequest request;
  request.budget_bytes = 30 * kMiB;
  request.process_bytes = 20 * kMiB;
  const auto plan = make_plan(dense_model(blocks), request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), base::Code::kResources);
  EXPECT_NE(plan.status().message().find("process 20.0 MiB"), std::string::npos) << plan.status().message();
  EXPECT_NE(plan.status().message().find("--mem"), std::string::npos);
}

TEST(Plan, TheSmallestBudgetIsAcceptedWhenAskedForByNumber) {
  const std::vector<uint32_t> blocks(100, 512 * kKiB);
  PlanRequest request;
  request.process_bytes = 20 * kMiB;
  const auto least = make_plan(dense_model(blocks), request);
  ASSERT_TRUE(least.ok());
  request.budget_bytes = least.value().budget_bytes;
  EXPECT_TRUE(make_plan(dense_model(blocks), request).ok());
}

TEST(Plan, ContextIsLoweredOnlyIfNotAskedFor) {
  const std::vector<uint32_t> blocks(100, 512 * kKiB);
  PlanRequest request;
  request.budget_bytes = 64 * kMiB;
  request.process_bytes = 20 * kMiB;
  const auto lowered = make_plan(dense_model(blocks), request);
  ASSERT_TRUE(lowered.ok());
  EXPECT_TRUE(lowered.value().context_lowered);
  EXPECT_LT(lowered.value().context, 4096U);
  request.context = 4096;
  EXPECT_FALSE(make_plan(dense_model(blocks), request).ok());
}

TEST(Plan, ExpertsGetWhatTheDensePartLeaves) {
  const std::vector<uint32_t> blocks(100, 512 * kKiB);
  ModelSizes sizes = dense_model(blocks);
  sizes.expert_block_count = 1000;
  sizes.expert_slot_bytes = 512 * kKiB;
  sizes.expert_bytes = 1000 * 500 * kKiB;
  PlanRequest request;
  request.budget_bytes = 300 * kMiB;
  request.process_bytes = 20 * kMiB;
  const auto plan = make_plan(sizes, request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.value().streamed_bytes, 0U);
  EXPECT_GT(plan.value().expert_slots, 200U);
  EXPECT_LE(plan.value().planned_bytes(), request.budget_bytes);
  request.budget_bytes = 900 * kMiB;
  const auto all = make_plan(sizes, request);
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(all.value().experts_resident);
  EXPECT_FALSE(all.value().streams());
}

TEST(Plan, TheMostFrequentNeuronsOfAllSetsFillTheirRoom) {
  std::mt19937 random(9);
  std::vector<std::vector<float>> frequencies(7);
  std::vector<NeuronSet> sets;
  for (std::vector<float>& f : frequencies) {
    for (int i = 0; i < 300; ++i) f.push_back(static_cast<float>(random() % 50) / 50);
    std::sort(f.begin(), f.end(), std::greater<>());
    sets.push_back({1000 + random() % 3 * 64, f});
  }
  for (uint64_t room = 0; room < 2500 * kKiB; room += 61 * kKiB) {
    const std::vector<uint32_t> counts = most_frequent(sets, room);
    uint64_t used = 0;
    float least_in = 2;
    float most_out = -1;
    for (size_t i = 0; i < sets.size(); ++i) {
      used += (counts[i] * sets[i].bundle_bytes + 63) / 64 * 64;
      if (counts[i] > 0) least_in = std::min(least_in, frequencies[i][counts[i] - 1]);
      if (counts[i] < 300) most_out = std::max(most_out, frequencies[i][counts[i]]);
    }
    EXPECT_LE(used, room);
    EXPECT_GE(least_in, most_out) << room;
    EXPECT_TRUE(most_out < 0 || room - used < 7 * 1200) << "room was left: " << room - used;
  }
}

TEST(Plan, SpreadOrderHoldsEveryBlockOnce) {
  for (const size_t count : {0U, 1U, 2U, 3U, 8U, 1000U}) {
    std::vector<uint32_t> order = spread_order(count);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order.size(), count);
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST(Plan, ReplanningCutsOrExtendsThePrefixAndKeepsContextAndChunk) {
  const std::vector<uint32_t> blocks(1000, 512 * kKiB);
  const ModelSizes sizes = dense_model(blocks);
  PlanRequest request;
  request.budget_bytes = 400 * kMiB;
  request.process_bytes = 20 * kMiB;
  request.context = 4096;
  const Plan plan = make_plan(sizes, request).take();
  EXPECT_LT(plan.kv_bytes, plan.kv_full_bytes);
  for (const uint64_t budget : {200 * kMiB, 300 * kMiB, 380 * kMiB, 600 * kMiB, 5000 * kMiB}) {
    for (const uint64_t kv_bytes : {plan.kv_bytes, plan.kv_full_bytes}) {
      const auto next = replan(sizes, plan, {budget, kv_bytes, plan.rows});
      ASSERT_TRUE(next.ok()) << next.status().message();
      EXPECT_LE(next.value().planned_bytes(), budget);
      EXPECT_EQ(next.value().context, plan.context);
      EXPECT_EQ(next.value().chunk, plan.chunk);
      const size_t common = std::min(plan.dense_resident.size(), next.value().dense_resident.size());
      EXPECT_TRUE(std::equal(plan.dense_resident.begin(),
                             plan.dense_resident.begin() + static_cast<long>(common),
                             next.value().dense_resident.begin()));
    }
  }
  EXPECT_EQ(replan(sizes, plan, {60 * kMiB, plan.kv_bytes, plan.rows}).status().code(),
            base::Code::kResources);
}

}  // namespace
}  // namespace ganglion::planner
