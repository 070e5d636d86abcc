#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define REGROUP_CONCAT_INNER_(a, b) a##b
#define REGROUP_CONCAT_(a, b) REGROUP_CONCAT_INNER_(a, b)
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL_(REGROUP_CONCAT_(status_or_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_IMPL_(status_or, lhs, expression)   \
  auto status_or = (expression);                             \
  if (!status_or.ok()) return std::move(status_or).status(); \
  lhs = *std::move(status_or)
