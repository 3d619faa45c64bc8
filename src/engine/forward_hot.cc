// The hot part of a sparse FFN: given to a device before the processor begins its own part, added behind it.
// The sum of a row is that of its cold neurons' groups, ascending, then those of the hot neurons of each
// expert, ascending. What the device fails to compute is computed here, by the same rule and in the same
// order.
#include <algorithm>

#include "engine/forward_buffers.h"

namespace ganglion::engine {

using base::Status;

// Makes the calls of a layer; where there are none, its hot neurons will be computed here. Returns the first
// neuron that a predictor is asked for.
size_t ForwardPass::begin_hot(size_t rows) {
  if (context_.hot == nullptr) return 0;
  HotClusters& device = *context_.hot;
  Buffers::Sparse& s = buffers_->sparse;
  for (size_t u = 0; u < s.now.unit_count; ++u) s.hot_sets[u] = s.now.units[u].set;
  device.begin({s.hot_sets, s.now.unit_count}, buffers_->normed.floats(0), buffers_->normed.float_stride(),
               rows);
  uint32_t first = UINT32_MAX;
  for (size_t u = 0; u < s.now.unit_count; ++u) {
    Unit& unit = s.now.units[u];
    unit.hot = device.hot(unit.set, rows);
    unit.hot_here = !device.on_device(u);
    if (unit.hot_here)
      std::fill_n(s.hot_out + u * s.rows * context_.config->dim, rows * context_.config->dim, 0.0F);
    first = std::min(first, unit.hot);
  }
  return base::round_down(first, 32);
}

// Waits for the device, does its part where it failed, and adds the sums of hot neurons.
Status ForwardPass::finish_hot(size_t rows, size_t layer) {
  HotClusters& device = *context_.hot;
  Buffers::Sparse& s = buffers_->sparse;
  device.finish();
  const bool mapped = device.map_results();
  bool any_failed = false;
  for (size_t u = 0; u < s.now.unit_count; ++u) {
    Unit& unit = s.now.units[u];
    const bool failed = !unit.hot_here && unit.hot > 0 && !(mapped && device.on_device(u));
    unit.cold_here = unit.hot_here = false;
    if (!failed) continue;
    unit.hot_here = any_failed = true;
    std::fill_n(s.hot_out + u * s.rows * context_.config->dim, rows * context_.config->dim, 0.0F);
  }
  if (any_failed) {
    context_.bundles->begin_layer(layer);
    list_active(rows, layer);
    GANGLION_RETURN_IF_ERROR(request_missing());
    GANGLION_RETURN_IF_ERROR(compute_active(rows, layer));
  }
  add_hot(rows);
  device.unmap_results();
  return base::ok_status();
}

// projected [t] += weight of each unit that row t is routed to times the sum of its hot neurons.
void ForwardPass::add_hot(size_t rows) {
  const HotClusters& device = *context_.hot;
  const Buffers::Sparse& s = buffers_->sparse;
  const size_t dim = context_.config->dim;
  for_rows(rows, [&](size_t t) {
    for (size_t u = 0; u < s.now.unit_count; ++u) {
      const Unit& unit = s.now.units[u];
      if (unit.hot == 0 || (unit.rows >> t & 1) == 0) continue;
      const float* sum = device.on_device(u) ? device.result(u, t) : s.hot_out + (u * s.rows + t) * dim;
      context_.kernels->add_scaled(sum, s.unit_weight[u * s.rows + t], dim, buffers_->projected + t * dim);
    }
  });
}

}  // namespace ganglion::engine
