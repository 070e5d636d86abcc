#!/usr/bin/env bash
# bundle.sh BUILD TO: what a machine with a GPU needs of a build, in the folder TO and as TO.tar.gz.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.."
readonly BUILD=$1 TO=$2 LIMIT=$((48 << 20))

rm -rf "$TO" "$TO.tar.gz"
mkdir -p "$TO"/{bin,lib,golden}
for program in regroup regroup-agent regroup-shim regroup-worker gpu-kernels-test gpu-nccl-test; do
  strip -o "$TO/bin/$program" "$BUILD/bin/$program"
  # Libraries of this distribution that a bare machine lacks, or has older; glibc is the machine's own.
  { ldd "$BUILD/bin/$program" 2>/dev/null || true; } |  # The shim has none.
    awk '$3 ~ /^\// && $3 !~ /\/(libc|libm|libdl|librt|libpthread)\.so/ { print $3 }' | xargs -r cp -Lnt "$TO/lib"
done
strip "$TO"/lib/*
cp tests/worker/golden/*.safetensors "$TO/golden"
cp tests/worker/gpu/{gpu_suite,torch_race}.py "$TO"
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[[ -z $(git status --porcelain 2>/dev/null) ]] || commit+=-dirty
echo "$commit" >"$TO/commit"
cat >"$TO/run" <<'RUN'
#!/usr/bin/env bash
exec python3 "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/gpu_suite.py" "$@"
RUN
chmod +x "$TO/run"
tar czf "$TO.tar.gz" -C "$(dirname "$TO")" "$(basename "$TO")"
bytes=$(stat -c %s "$TO.tar.gz")
[[ $bytes -le $LIMIT ]] || {
  printf 'error: %s.tar.gz has %d bytes\nbecause: %d are allowed\n' "$TO" "$bytes" "$LIMIT" >&2
  exit 1
}
printf '%s.tar.gz: %d MiB\n' "$TO" $(((bytes + (1 << 20) - 1) >> 20))
