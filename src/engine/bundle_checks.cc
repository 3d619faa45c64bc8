#include "engine/bundle_checks.h"

#include <fcntl.h>

#include <algorithm>

#include "base/units.h"
#include "format/bundle_checksum.h"

namespace ganglion::engine {

using base::Code;
using base::Result;
using base::Status;
using format::TensorInfo;

Result<BundleChecks> BundleChecks::open(const format::GgufModel& file, const model::WeightMap& weights) {
  BundleChecks checks;
  for (const format::ShardInfo& shard : file.shards()) {
    GANGLION_ASSIGN_OR_RETURN(platform::File opened, platform::File::open(shard.path));
    checks.files_.push_back(std::move(opened));
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const model::BundleRef& b = weights.layers[i].bundle;
    if (!b.present()) continue;
    const TensorInfo& bundles = file.tensors()[b.tensor];
    const std::string name = base::format("blk.%zu.ffn_check.weight", i);
    const TensorInfo* sums = file.find_tensor(name);
    const uint64_t count = uint64_t{b.rows.rows} * b.rows.slices;
    if (sums == nullptr || sums->type != base::TensorType::kI64 || sums->dims[0] != 2 ||
        sums->elements() != 2 * count) {
      return Status(Code::kModelFile,
                    base::format("tensor '%s' %s: two checksums for each of %llu bundles were expected",
                                 name.c_str(), sums == nullptr ? "is missing" : "has another shape",
                                 static_cast<unsigned long long>(count)));
    }
    Layer layer = {.number = i,
                   .shard = bundles.shard,
                   .offset = bundles.offset,
                   .stride = b.stride,
                   .gate_bytes = b.up_offset,
                   .bytes = b.bytes,
                   .down_alone = b.up_offset == b.down_offset,
                   .neurons = b.rows.rows,
                   .experts = b.rows.slices,
                   .sums = std::vector<uint64_t>(2 * count)};
    GANGLION_RETURN_IF_ERROR(
        checks.files_[sums->shard]
            .read_exact(sums->offset, {reinterpret_cast<uint8_t*>(layer.sums.data()), sums->bytes})
            .with_context("tensor '" + name + "'"));
    checks.layers_.push_back(std::move(layer));
  }
  return checks;
}

Status BundleChecks::wrong(const Layer& layer, uint64_t first, uint64_t last, const std::string& what) const {
  const std::string neurons =
      first == last
          ? base::format("neuron %llu", static_cast<unsigned long long>(first % layer.neurons))
          : base::format("neurons %llu to %llu", static_cast<unsigned long long>(first % layer.neurons),
                         static_cast<unsigned long long>(last % layer.neurons));
  return Status(
      Code::kModelFile,
      base::format("'%s' is damaged: layer %zu, expert %llu, %s (in pack order): %s - pack the model "
                   "again",
                   files_[layer.shard].path().c_str(), layer.number,
                   static_cast<unsigned long long>(first / layer.neurons), neurons.c_str(), what.c_str()));
}

Status BundleChecks::check(uint32_t shard, uint64_t offset, std::span<const uint8_t> bytes) const {
  const uint64_t end = offset + bytes.size();
  for (const Layer& layer : layers_) {
    if (layer.shard != shard || end <= layer.offset || offset >= layer.end()) continue;
    const uint64_t count = uint64_t{layer.neurons} * layer.experts;
    const uint64_t first = offset > layer.offset ? (offset - layer.offset) / layer.stride : 0;
    for (uint64_t i = first; i < count; ++i) {
      const uint64_t begin = layer.offset + i * layer.stride;
      if (begin >= end) break;
      const uint64_t borders[] = {begin, begin + layer.gate_bytes, begin + layer.bytes};
      for (size_t part = 0; part < 2; ++part) {
        if (borders[part] < offset || borders[part + 1] > end) continue;
        const uint64_t sum =
            format::bundle_checksum(bytes.subspan(borders[part] - offset, borders[part + 1] - borders[part]));
        const uint64_t expected = layer.sums[2 * i + part];
        if (sum == expected) continue;
        return wrong(
            layer, i, i,
            base::format("the checksum of its %s is %016llx, expected %016llx",
                         part == 0          ? "gate row"
                         : layer.down_alone ? "down row"
                                            : "up and down rows",
                         static_cast<unsigned long long>(sum), static_cast<unsigned long long>(expected)));
      }
    }
  }
  return base::ok_status();
}

uint64_t BundleChecks::bundle_bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.end() - layer.offset;
  return bytes;
}

Status BundleChecks::check_all(void (*progress)(void*, uint64_t, uint64_t), void* context) const {
  std::vector<uint8_t> buffer;
  uint64_t done = 0;
  uint64_t bad = 0;
  const Layer* bad_layer = nullptr;  // the first run of bad bundles
  uint64_t first = 0;
  uint64_t last = 0;
  for (const Layer& layer : layers_) {
    const platform::File& file = files_[layer.shard];
    const uint64_t count = uint64_t{layer.neurons} * layer.experts;
    const uint64_t at_once = std::max<uint64_t>(1, base::kMiB / layer.stride);
    for (uint64_t begin = 0; begin < count; begin += at_once) {
      const uint64_t bundles = std::min(at_once, count - begin);
      const uint64_t offset = layer.offset + begin * layer.stride;
      buffer.resize(bundles * layer.stride);
      GANGLION_RETURN_IF_ERROR(file.read_exact(offset, buffer));
      ::posix_fadvise(file.fd(), static_cast<off_t>(offset), static_cast<off_t>(buffer.size()),
                      POSIX_FADV_DONTNEED);
      for (uint64_t i = 0; i < bundles; ++i) {
        const auto bundle = std::span(buffer).subspan(i * layer.stride, layer.bytes);
        if (check(layer.shard, offset + i * layer.stride, bundle).ok()) continue;
        ++bad;
        if (bad_layer == nullptr) {
          bad_layer = &layer;
          first = last = begin + i;
        } else if (bad_layer == &layer && begin + i == last + 1 && (begin + i) % layer.neurons != 0) {
          last = begin + i;
        }
      }
      done += buffer.size();
      if (progress != nullptr) progress(context, done, bundle_bytes());
    }
  }
  if (bad == 0) return base::ok_status();
  return wrong(*bad_layer, first, last,
               base::format("checksums differ from those that the file holds; bad bundles in all: %llu",
                            static_cast<unsigned long long>(bad)));
}

}  // namespace ganglion::engine
