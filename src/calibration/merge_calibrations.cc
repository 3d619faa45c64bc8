// merge_calibrations(): calibrations of one model become one, row by row and layer by layer.
#include <algorithm>
#include <memory>

#include "base/units.h"
#include "calibration/calibration_file.h"
#include "calibration/calibration_report.h"
#include "ganglion/calibration.h"

namespace ganglion {

using calibration::CalibrationFile;
using calibration::CalibrationHeader;
using calibration::LayerStatistics;

namespace {

using Files = std::vector<std::unique_ptr<CalibrationFile>>;

// What the parts have in common is checked, what they count is added.
Result<CalibrationHeader> joint_header(const Files& files) {
  CalibrationHeader all = files[0]->header();
  for (size_t i = 1; i < files.size(); ++i) {
    const CalibrationHeader& part = files[i]->header();
    if (part.model != all.model || part.layers != all.layers) {
      return Status(Code::kInvalidArgument,
                    base::format("'%s' and '%s' are calibrations of different models (%.12s..., %.12s...)",
                                 files[0]->path().c_str(), files[i]->path().c_str(), all.model.c_str(),
                                 part.model.c_str()));
    }
    for (const std::string& source : part.sources) {
      if (std::find(all.sources.begin(), all.sources.end(), source) != all.sources.end()) {
        return Status(Code::kInvalidArgument,
                      "'" + files[i]->path() +
                          "' was made from tokens that another part has already - they "
                          "would count twice");
      }
    }
    all.sources.insert(all.sources.end(), part.sources.begin(), part.sources.end());
    all.tokens += part.tokens;
    all.samples += part.samples;
    for (size_t b = 0; b < all.groups.size(); ++b) all.groups[b] += part.groups[b];
  }
  if (all.tokens > INT32_MAX)
    return Status(Code::kInvalidArgument, base::format("%zu tokens are more than a file counts", all.tokens));
  return all;
}

Result<LayerStatistics> joint_statistics(const Files& files, size_t layer) {
  LayerStatistics all;
  for (const auto& file : files) {
    GANGLION_ASSIGN_OR_RETURN(LayerStatistics part, file->statistics(layer));
    if (all.fired.empty()) {
      all = std::move(part);
      continue;
    }
    for (size_t i = 0; i < all.fired.size(); ++i) all.fired[i] += part.fired[i];
    for (size_t i = 0; i < all.squares.size(); ++i) all.squares[i] += part.squares[i];
    for (size_t i = 0; i < all.routed.size(); ++i) all.routed[i] += part.routed[i];
  }
  return all;
}

// `kept` of the parts' samples, evenly, in the order of the parts.
Status copy_samples(const Files& files, size_t layer, bool experts, size_t kept, format::GgufWriter* writer) {
  size_t all = 0;
  for (const auto& file : files) all += file->header().samples;
  std::vector<uint8_t> row;
  size_t before = 0;  // samples of the parts before `file`
  size_t file = 0;
  for (size_t i = 0; i < kept; ++i) {
    const size_t sample = calibration::sample_token(i, kept, all);
    while (sample - before >= files[file]->header().samples) before += files[file++]->header().samples;
    GANGLION_RETURN_IF_ERROR(files[file]->read_row(layer, experts, sample - before, &row));
    GANGLION_RETURN_IF_ERROR(writer->write(row));
  }
  return ok_status();
}

}  // namespace

Result<CalibrationReport> merge_calibrations(const std::vector<std::string>& inputs,
                                             const std::string& output_path, StageProgress progress,
                                             void* context) {
  if (inputs.size() < 2) return Status(Code::kInvalidArgument, "a merge takes two calibrations or more");
  GANGLION_RETURN_IF_ERROR(format::check_output(output_path, inputs));
  Files files;
  for (const std::string& path : inputs) {
    GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<CalibrationFile> file, CalibrationFile::open(path));
    files.push_back(std::move(file));
  }
  GANGLION_ASSIGN_OR_RETURN(CalibrationHeader all, joint_header(files));
  all.samples = std::min(all.samples, calibration::kMostSamples);
  GANGLION_RETURN_IF_ERROR(
      calibration::check_free_space(output_path, calibration_bytes(all), "the merged calibration"));
  format::GgufWriter writer(output_path);
  declare_calibration(all, &writer);
  GANGLION_RETURN_IF_ERROR(writer.begin_data());
  for (size_t i = 0; i < all.layers.size(); ++i) {
    if (progress != nullptr && !progress(context, "merging", i, all.layers.size()))
      return Status(Code::kCancelled, "interrupted");
    GANGLION_ASSIGN_OR_RETURN(const LayerStatistics statistics, joint_statistics(files, i));
    GANGLION_RETURN_IF_ERROR(write_statistics(statistics, all.layers[i].moe, &writer));
    GANGLION_RETURN_IF_ERROR(copy_samples(files, i, false, all.samples, &writer));
    if (all.layers[i].moe) GANGLION_RETURN_IF_ERROR(copy_samples(files, i, true, all.samples, &writer));
  }
  GANGLION_RETURN_IF_ERROR(writer.finish());
  GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<CalibrationFile> merged,
                            CalibrationFile::open(output_path));
  return calibration::report_calibration(*merged);
}

}  // namespace ganglion
