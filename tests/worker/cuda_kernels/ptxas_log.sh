#!/bin/sh
# ptxas_log.sh LOG NVCC…: runs nvcc with what ptxas says of each kernel in LOG; when it fails, shown and no LOG.
log=$1
shift
if "$@" -Xptxas -v >"$log.part" 2>&1; then
  mv "$log.part" "$log"
else
  cat "$log.part" >&2
  exit 1
fi
