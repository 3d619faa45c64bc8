#include "calibration/calibration_report.h"

#include <algorithm>
#include <functional>

namespace ganglion::calibration {

using base::Result;

namespace {

// The share of all activations that the most frequent `part` of the neurons have.
double top_share(const std::vector<int32_t>& descending, double part) {
  double all = 0;
  double top = 0;
  for (size_t i = 0; i < descending.size(); ++i) {
    all += descending[i];
    if (static_cast<double>(i) < part * static_cast<double>(descending.size())) top += descending[i];
  }
  return all > 0 ? top / all : 0;
}

CalibrationLayerReport report_layer(const LayerStatistics& statistics, const CalibrationHeader& header,
                                    const LayerShape& shape) {
  CalibrationLayerReport report;
  const size_t neurons = size_t{shape.experts} * shape.neurons;
  for (size_t b = 0; b < kBatchCount; ++b) {
    double fired = 0;
    for (size_t i = 0; i < neurons; ++i) fired += statistics.fired[b * neurons + i];
    const double batches = static_cast<double>(header.groups[b]);
    report.active_by_batch.push_back(batches > 0 ? fired / batches / static_cast<double>(neurons) : 0);
  }
  report.active = report.active_by_batch[0] * shape.experts / shape.used;
  std::vector<int32_t> counts(statistics.fired.begin(),
                              statistics.fired.begin() + static_cast<ptrdiff_t>(neurons));
  std::sort(counts.begin(), counts.end(), std::greater<>());
  report.top_30 = top_share(counts, 0.3);
  report.top_50 = top_share(counts, 0.5);
  return report;
}

}  // namespace

Result<CalibrationReport> report_calibration(const CalibrationFile& file) {
  const CalibrationHeader& header = file.header();
  CalibrationReport report;
  report.model = header.model;
  report.tokens = header.tokens;
  report.samples = header.samples;
  report.bytes = calibration_bytes(header);
  report.batches.assign(std::begin(kBatches), std::end(kBatches));
  for (size_t i = 0; i < header.layers.size(); ++i) {
    GANGLION_ASSIGN_OR_RETURN(const LayerStatistics statistics, file.statistics(i));
    report.layers.push_back(report_layer(statistics, header, header.layers[i]));
  }
  return report;
}

}  // namespace ganglion::calibration
