// Rates of this machine, kept for an hour, and what they predict for a plan.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <vector>

#include "base/tensor_type.h"
#include "base/units.h"
#include "ganglion/doctor.h"
#include "neuron_cache/arena.h"
#include "platform/clock.h"
#include "platform/cpu.h"
#include "profile/disk_sampler.h"
#include "profile/kernel_rate.h"
#include "profile/memory_bandwidth.h"

namespace ganglion {

using profile::case_of;
using profile::DiskCase;
using profile::kBlockReads;
using profile::kBundleReads;
using profile::kSingleReads;

namespace {

constexpr int64_t kProbeNs = 200'000'000;
constexpr uint64_t kLeastTarget = kBlockReads.bytes * kBlockReads.depth;
constexpr uint64_t kMostTarget = 64 * base::kMiB;
static_assert(kBundleReads.bytes * kBundleReads.depth <= kLeastTarget);

double overlap_of(const OverlapSample& both, double memory_bytes_per_s, const DiskSample& disk) {
  return std::clamp(both.memory_bytes_per_s / memory_bytes_per_s + both.disk.bytes_per_s / disk.bytes_per_s,
                    1.0, 2.0);
}

void set_disk_rates(const DiskSample& blocks, const DiskSample& single, const DiskSample& bundles,
                    MachineRates* rates) {
  rates->disk_bytes_per_s = blocks.bytes_per_s;
  const auto block = static_cast<double>(single.read_bytes);
  rates->block_latency_s = std::max(0.0, block / single.bytes_per_s - block / blocks.bytes_per_s);
  rates->random_reads_per_s = bundles.bytes_per_s / static_cast<double>(bundles.read_bytes);
  rates->cpu_s_per_read = bundles.cpu_s_per_read;
}

// Fills the rates of the disk that a file lies on; memory's is known.
Status measure_disk(const std::string& path, uint64_t memory_bytes, MachineRates* rates) {
  GANGLION_ASSIGN_OR_RETURN(const platform::File file, platform::File::open(path));
  const std::unique_ptr<async_io::ReadQueue> queue =
      async_io::make_read_queue({.allow_page_cache = false}, nullptr);
  const uint64_t least = base::round_up(file.size() / 8 + 1, async_io::kIoAlignment);
  const uint64_t target = std::clamp(memory_bytes / 2, kLeastTarget, kMostTarget);
  neuron_cache::Arena arena(base::round_up(target, neuron_cache::kSegmentBytes));
  GANGLION_ASSIGN_OR_RETURN(neuron_cache::Region memory,
                            neuron_cache::Region::reserve(arena, target, "disk measurement"));
  GANGLION_RETURN_IF_ERROR(memory.resize(target));
  profile::DiskSampler sampler(*queue, file, memory.bytes().first(target));
  // Of a small file what it has.
  DiskCase block_reads = kBlockReads;
  DiskCase single_reads = kSingleReads;
  DiskCase bundle_reads = kBundleReads;
  block_reads.bytes = std::min(block_reads.bytes, least);
  single_reads.bytes = block_reads.bytes;
  bundle_reads.bytes = std::min(bundle_reads.bytes, least);
  GANGLION_ASSIGN_OR_RETURN(const DiskSample blocks, sampler.run(block_reads, kProbeNs));
  GANGLION_ASSIGN_OR_RETURN(const DiskSample single, sampler.run(single_reads, kProbeNs / 4));
  GANGLION_ASSIGN_OR_RETURN(const DiskSample bundles, sampler.run(bundle_reads, kProbeNs / 2));
  set_disk_rates(blocks, single, bundles, rates);
  profile::MemoryReader reader(rates->threads, memory_bytes / 2);
  OverlapSample both;
  GANGLION_ASSIGN_OR_RETURN(both.disk,
                            sampler.run_beside(block_reads, kProbeNs / 2, &reader, &both.memory_bytes_per_s));
  rates->overlap = overlap_of(both, rates->memory_bytes_per_s, blocks);
  GANGLION_ASSIGN_OR_RETURN(
      both.disk, sampler.run_beside(bundle_reads, kProbeNs / 4, &reader, &both.memory_bytes_per_s));
  rates->overlap_random = overlap_of(both, rates->memory_bytes_per_s, bundles);
  return ok_status();
}

bool complete(const MachineRates& rates) {
  return rates.memory_bytes_per_s > 0 && rates.disk_bytes_per_s > 0 && rates.random_reads_per_s > 0 &&
         rates.multiply_adds_per_s > 0 && rates.expert_multiply_adds_per_s > 0 &&
         rates.attention_multiply_adds_per_s > 0;
}

// One file per device, thread count, kernels and types.
std::string cache_path(const std::string& cache_dir, const PlanSummary& plan) {
  struct stat info = {};
  const unsigned long long device =
      ::stat(plan.first_file.c_str(), &info) == 0 ? static_cast<unsigned long long>(info.st_dev) : 0;
  return cache_dir + base::format("/rates-%llx-%d-%s-%s-%s", device, plan.threads, plan.isa.c_str(),
                                  plan.weight_type.c_str(), plan.kv_type.c_str());
}

}  // namespace

Result<MachineRates> measure_rates(const PlanSummary& plan) {
  MachineRates rates;
  rates.threads = plan.threads;
  rates.weight_type = plan.weight_type;
  // Within the budget: no more than weights will take later.
  constexpr uint64_t kMostBytes = 256 * base::kMiB;
  constexpr uint64_t kLeastBytes = 4 * base::kMiB;
  const uint64_t room = plan.resident_weight_bytes + plan.expert_cache_bytes;
  const uint64_t memory_bytes = std::clamp(room, kLeastBytes, kMostBytes);
  rates.memory_bytes_per_s = profile::measure_memory_bandwidth(plan.threads, memory_bytes);
  GANGLION_RETURN_IF_ERROR(measure_disk(plan.first_file, memory_bytes, &rates));
  for (const base::TensorTypeInfo& type : base::all_tensor_types()) {
    if (type.name != plan.weight_type) continue;
    const auto measure = [&](const profile::PromptShape& shape) {
      return plan.threads * profile::measure_prompt_kernel(type.type, plan.isa, shape, plan.threads,
                                                           memory_bytes / 2, kProbeNs / 4);
    };
    rates.multiply_adds_per_s = measure(profile::prompt_shape(memory_bytes / 2));
    rates.expert_multiply_adds_per_s = measure(profile::kExpertPrompt);
  }
  if (const auto type = kernels::kv_type_named(plan.kv_type)) {
    rates.attention_multiply_adds_per_s =
        plan.threads * profile::measure_attention(*type, plan.isa, kProbeNs / 10);
  }
  rates.measured_unix_s = static_cast<int64_t>(std::time(nullptr));
  return rates;
}

Result<MachineRates> load_rates(const std::string& cache_dir, const PlanSummary& plan, int64_t most_age_s) {
  const std::string path = cache_path(cache_dir, plan);
  std::ifstream in(path);
  MachineRates rates;
  std::string cpu;
  in >> rates.measured_unix_s >> rates.memory_bytes_per_s >> rates.disk_bytes_per_s >>
      rates.block_latency_s >> rates.random_reads_per_s >> rates.cpu_s_per_read >>
      rates.multiply_adds_per_s >> rates.expert_multiply_adds_per_s >> rates.attention_multiply_adds_per_s >>
      rates.overlap >> rates.overlap_random;
  std::getline(in >> std::ws, cpu);
  const int64_t age = static_cast<int64_t>(std::time(nullptr)) - rates.measured_unix_s;
  if (in.fail() || cpu != platform::cpu_model_name() || age < 0 || age > most_age_s || !complete(rates)) {
    return Status(Code::kNotFound,
                  "no rates of the last " + std::to_string(most_age_s) + " s in '" + path + "'");
  }
  rates.threads = plan.threads;
  rates.weight_type = plan.weight_type;
  return rates;
}

Status save_rates(const std::string& cache_dir, const PlanSummary& plan, const MachineRates& rates) {
  const std::string text = base::format(
      "%lld %.0f %.0f %.9f %.0f %.9f %.0f %.0f %.0f %.3f %.3f\n%s\n",
      static_cast<long long>(rates.measured_unix_s), rates.memory_bytes_per_s, rates.disk_bytes_per_s,
      rates.block_latency_s, rates.random_reads_per_s, rates.cpu_s_per_read, rates.multiply_adds_per_s,
      rates.expert_multiply_adds_per_s, rates.attention_multiply_adds_per_s, rates.overlap,
      rates.overlap_random, platform::cpu_model_name().c_str());
  ::mkdir(cache_dir.c_str(), 0755);
  return platform::write_file_atomically(cache_path(cache_dir, plan),
                                         {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

Result<MachineRates> rates_from(const DoctorReport& report, const PlanSummary& plan) {
  MachineRates rates;
  rates.threads = plan.threads;
  rates.weight_type = plan.weight_type;
  rates.measured_unix_s = report.measured_unix_s;
  for (const BandwidthSample& sample : report.memory) {
    if (sample.threads == plan.threads) rates.memory_bytes_per_s = sample.bytes_per_s;
  }
  DiskSample blocks = {.read_bytes = kBlockReads.bytes};
  DiskSample single = {.read_bytes = kSingleReads.bytes};
  DiskSample bundles = {.read_bytes = kBundleReads.bytes};
  for (const DiskSample& sample : report.disk) {
    if (case_of(sample) == kBlockReads) blocks = sample;
    if (case_of(sample) == kSingleReads) single = sample;
    if (case_of(sample) == kBundleReads) bundles = sample;
  }
  set_disk_rates(blocks, single, bundles, &rates);
  for (const KernelSample& sample : report.kernels) {
    if (sample.type != plan.weight_type || sample.isa != plan.isa || sample.tokens == 1) continue;
    (sample.tokens == profile::kExpertPrompt.tokens ? rates.expert_multiply_adds_per_s
                                                    : rates.multiply_adds_per_s) =
        plan.threads * sample.multiply_adds_per_s;
  }
  for (const AttentionSample& sample : report.attention) {
    if (sample.kv_type == plan.kv_type && sample.isa == plan.isa)
      rates.attention_multiply_adds_per_s = plan.threads * sample.multiply_adds_per_s;
  }
  for (const OverlapSample& both : report.overlap) {
    if (!complete(rates) || both.threads != plan.threads) continue;
    if (case_of(both.disk) == kBlockReads) rates.overlap = overlap_of(both, rates.memory_bytes_per_s, blocks);
    if (case_of(both.disk) == kBundleReads)
      rates.overlap_random = overlap_of(both, rates.memory_bytes_per_s, bundles);
  }
  if (complete(rates)) return rates;
  return Status(Code::kNotFound, base::format("the profile has no rates of %d threads, %s and %s",
                                              plan.threads, plan.isa.c_str(), plan.weight_type.c_str()));
}

namespace {

// Of reading and computing at once.
double seconds_of(double compute_s, double disk_s, double overlap) {
  return std::max({compute_s, disk_s, (compute_s + disk_s) / overlap});
}

// The share of the experts that a token uses.
double used_share(const PlanSummary& plan) {
  return static_cast<double>(plan.expert_bytes_per_token) / static_cast<double>(plan.expert_bytes);
}

// Of a cache that holds a share of all experts: few of many are used unevenly (Qwen3's 8 of 128), a quarter
// of eight evenly (Mixtral). By the families of bench/results/expert_cache.md: zipf 0.8 and topics, Mixtral's
// shape.
double expected_hits(const PlanSummary& plan, double share) {
  constexpr double kFew = 1.0 / 16, kMany = 1.0 / 4, kUneven = 0.4;
  if (plan.expert_bytes == 0) return share;
  const double unevenness = (used_share(plan) - kFew) / (kMany - kFew);
  return std::pow(share, std::clamp(kUneven + (1 - kUneven) * unevenness, kUneven, 1.0));
}

// A prompt's matrix products, by token. Small experts, which get few of its rows, have a rate of their own.
double product_seconds(const PlanSummary& plan, const MachineRates& rates) {
  constexpr double kFewRows = 4.0 * profile::kExpertPrompt.tokens;
  const auto all = static_cast<double>(plan.multiply_adds_per_token);
  if (plan.expert_bytes == 0 || static_cast<double>(plan.chunk) * used_share(plan) >= kFewRows)
    return all / rates.multiply_adds_per_s;
  const auto experts = static_cast<double>(plan.expert_multiply_adds_per_token);
  return (all - experts) / rates.multiply_adds_per_s + experts / rates.expert_multiply_adds_per_s;
}

// Generated tokens of a pack: reads of neurons are bound by their number, and cost processor time.
void predict_sparse(const PlanSummary& plan, const MachineRates& rates, Prediction* prediction) {
  const double reads = plan.neurons_read_per_token;
  const double touched_s = static_cast<double>(plan.sparse_bytes_per_token) / rates.memory_bytes_per_s;
  const double compute_s = touched_s + reads * rates.cpu_s_per_read / std::max(1, rates.threads);
  const double disk_s =
      std::max(reads / rates.random_reads_per_s,
               reads * static_cast<double>(plan.neuron_read_bytes) / rates.disk_bytes_per_s) +
      static_cast<double>(plan.sparse_streamed_bytes_per_token) / rates.disk_bytes_per_s;
  // The overlap has been measured with the processor time of reads in it.
  prediction->decode_tokens_per_s =
      1 / std::max(compute_s, seconds_of(touched_s, disk_s, rates.overlap_random));
  prediction->decode_limit = disk_s > compute_s ? "disk" : "memory bandwidth";
}

}  // namespace

Prediction predict(const PlanSummary& plan, const MachineRates& rates) {
  const bool experts_resident = plan.expert_bytes > 0 && plan.expert_cache_bytes == 0;
  const auto streamed = static_cast<double>(plan.streamed_bytes_per_token);
  const auto experts = static_cast<double>(plan.expert_bytes_per_token);
  const double dense = static_cast<double>(plan.resident_weight_bytes) -
                       (experts_resident ? static_cast<double>(plan.expert_bytes) : 0) + streamed;
  const double cached = plan.expert_bytes == 0 || experts_resident
                            ? 1
                            : std::min(1.0, static_cast<double>(plan.expert_cache_bytes) /
                                                static_cast<double>(plan.expert_bytes));
  const double missed = (1 - expected_hits(plan, cached)) * experts;
  const double latency_s = missed > 0 ? static_cast<double>(plan.expert_layers) * rates.block_latency_s : 0;
  const double dense_s =
      seconds_of(dense / rates.memory_bytes_per_s, streamed / rates.disk_bytes_per_s, rates.overlap);
  const double experts_s =
      seconds_of(experts / rates.memory_bytes_per_s, missed / rates.disk_bytes_per_s, rates.overlap);
  Prediction prediction;
  prediction.decode_tokens_per_s = 1 / (dense_s + experts_s + latency_s);
  const bool disk_bound =
      (streamed + missed) / rates.disk_bytes_per_s > (dense + experts) / rates.memory_bytes_per_s;
  prediction.decode_limit = disk_bound ? "disk" : "memory bandwidth";
  if (plan.sparse_bytes_per_token > 0) predict_sparse(plan, rates, &prediction);
  // A chunk reads what is streamed once, and in a mixture all experts that do not fit.
  const auto chunk = static_cast<double>(plan.chunk);
  const double chunk_read =
      streamed + (1 - cached) * std::min(static_cast<double>(plan.expert_bytes), chunk * experts);
  // Of a first chunk: its tokens see half of it before them.
  const double compute_s =
      chunk * (product_seconds(plan, rates) + chunk / 2 * static_cast<double>(plan.attention_multiply_adds) /
                                                  rates.attention_multiply_adds_per_s);
  const double chunk_disk_s = chunk_read / rates.disk_bytes_per_s;
  prediction.prefill_tokens_per_s = chunk / seconds_of(compute_s, chunk_disk_s, rates.overlap);
  prediction.prefill_limit = chunk_disk_s > compute_s ? "disk" : "compute";
  return prediction;
}

}  // namespace ganglion
