#!/usr/bin/env bash
# package.sh FOLDER: builds the Python package `regroup` (worker/python) as a wheel in FOLDER. Needs no network; the same
# sources give the same bytes.
set -euo pipefail
TARGET=$(realpath -m "$1")
readonly TARGET
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

python=/usr/bin/python3  # Debian's own: the one that its packages pip, setuptools and wheel belong to.
[[ -x $python ]] || python=python3

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/source/regroup" "$staging/wheel" "$TARGET"
cp LICENSE worker/python/pyproject.toml worker/python/README.md "$staging/source"
cp worker/python/regroup/*.py worker/python/regroup/py.typed "$staging/source/regroup"
chmod -R u=rwX,go=rX "$staging/source"
SOURCE_DATE_EPOCH=315532800 "$python" -m pip --quiet --disable-pip-version-check wheel --no-deps --no-index \
  --no-build-isolation --no-cache-dir --wheel-dir "$staging/wheel" "$staging/source"
rm -f "$TARGET"/regroup-*.whl
mv "$staging"/wheel/regroup-*.whl "$TARGET"
printf '%s\n' "$TARGET"/regroup-*.whl
