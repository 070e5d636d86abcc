#include "worker/train/model_sizes.h"

namespace regroup::worker {

std::map<std::string, std::int64_t> SizesOf(const GptConfig& model) {
  return {{"layers", model.layers},   {"width", model.width},
          {"heads", model.heads},     {"vocabulary", model.vocabulary},
          {"context", model.context}, {"tied-head", model.tied_head}};
}

}  // namespace regroup::worker
