// What a calibration file says of a model's sparsity.
#pragma once

#include "calibration/calibration_file.h"
#include "ganglion/calibration.h"

namespace ganglion::calibration {

/// Reads all statistics. Errors: kIo, kModelFile.
base::Result<CalibrationReport> report_calibration(const CalibrationFile& file);

}  // namespace ganglion::calibration
