#include "worker/train/model_sizes.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup::worker {

std::map<std::string, std::int64_t> SizesOf(const GptConfig& model) {
  return {{"layers", model.layers},   {"width", model.width},
          {"heads", model.heads},     {"vocabulary", model.vocabulary},
          {"context", model.context}, {"tied-head", model.tied_head ? 1 : 0}};
}

GptConfig GptOf(const std::map<std::string, std::int64_t>& sizes) {
  const auto size = [&](const char* name, std::int64_t otherwise) {
    const auto found = sizes.find(name);
    return found == sizes.end() ? otherwise : found->second;
  };
  return {.layers = size("layers", 0),
          .width = size("width", 0),
          .heads = size("heads", 0),
          .vocabulary = size("vocabulary", 0),
          .context = size("context", 0),
          .tied_head = size("tied-head", 1) != 0};
}

absl::Status CheckModel(const Manifest& checkpoint, const GptConfig& model) {
  std::vector<std::string> differences;
  for (const auto& [name, own] : SizesOf(model)) {
    const auto saved = checkpoint.model.find(name);
    if (saved == checkpoint.model.end() || saved->second == own) continue;
    differences.push_back(
        absl::StrCat(name, ": the checkpoint has ", saved->second, ", this training ", own));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint of step ", checkpoint.step,
                   " is of another model: ", absl::StrJoin(differences, "; ")));
}

}  // namespace regroup::worker
