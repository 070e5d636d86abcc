#!/usr/bin/env bash
# install.sh BIN_DIR PREFIX: copies the programs (without debug information), man pages and completion below PREFIX, and
# writes down every file and folder it made in PREFIX/share/regroup/manifest, which uninstall.sh reads. Installing over
# an older version removes what that one had and this one has not.
set -euo pipefail

readonly BIN=$1 PREFIX=$2
readonly MANIFEST=$PREFIX/share/regroup/manifest
readonly PROGRAMS=(regroup regroup-agent regroup-shim regroup-worker)

fail() {
  printf 'error: %s\nbecause: %s\ntry: %s\n' "$1" "$2" "$3" >&2
  exit 1
}

# folder PATH: makes a folder and those above it, and notes the ones that were not there.
folder() {
  local path=$1 missing=()
  while [[ ! -d $path ]]; do
    missing=("$path" "${missing[@]}")
    path=$(dirname "$path")
  done
  for path in "${missing[@]}"; do
    mkdir "$path"
    folders+=("$path")
  done
}

# put SOURCE TARGET MODE: a file appears whole or not at all, also over a running program.
put() {
  folder "$(dirname "$2")"
  install -m "$3" "$1" "$2.new"
  mv -f "$2.new" "$2"
  files+=("$2")
}

files=() folders=()
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT

for program in "${PROGRAMS[@]}"; do
  [[ -x $BIN/$program ]] || fail "cannot install $program" "$BIN/$program is not there" './dev build'
  strip -o "$staging/$program" "$BIN/$program"
done
mkdir "$staging/man"
"$BIN/regroup" __man "$staging/man"
"$BIN/regroup-worker" __man "$staging/man"
for shell in bash zsh fish; do
  "$BIN/regroup" __completion "$shell" >"$staging/completion.$shell"
done

existing=$PREFIX
while [[ ! -e $existing ]]; do existing=$(dirname "$existing"); done
[[ -d $existing && -w $existing ]] || fail "cannot install below $PREFIX" "$existing is not a folder you may write to" \
  "./dev install --prefix DIR, or as root"

declare -A before=()
if [[ -e $MANIFEST ]]; then
  while IFS=' ' read -r kind path; do
    case $kind in
      file) before[$path]=1 ;;
      folder) folders+=("$path") ;;
    esac
  done <"$MANIFEST"
fi

for program in "${PROGRAMS[@]}"; do
  put "$staging/$program" "$PREFIX/bin/$program" 755
done
folder "$PREFIX/bin"
ln -sfn regroup "$PREFIX/bin/regroup-torchrun.new" # One program under two names.
mv -fT "$PREFIX/bin/regroup-torchrun.new" "$PREFIX/bin/regroup-torchrun"
files+=("$PREFIX/bin/regroup-torchrun")
for page in "$staging"/man/*.1; do
  put "$page" "$PREFIX/share/man/man1/$(basename "$page")" 644
done
put "$staging/completion.bash" "$PREFIX/share/bash-completion/completions/regroup" 644
put "$staging/completion.zsh" "$PREFIX/share/zsh/site-functions/_regroup" 644
put "$staging/completion.fish" "$PREFIX/share/fish/vendor_completions.d/regroup.fish" 644
folder "$(dirname "$MANIFEST")"
files+=("$MANIFEST")
{
  [[ ${#folders[@]} -eq 0 ]] || printf 'folder %s\n' "${folders[@]}"
  printf 'file %s\n' "${files[@]}"
} >"$MANIFEST.new"
mv -f "$MANIFEST.new" "$MANIFEST"

for path in "${files[@]}"; do
  unset "before[$path]"
done
for path in "${!before[@]}"; do
  rm -f "$path"
done

printf 'installed %d files below %s (list: %s)\n' "${#files[@]}" "$PREFIX" "$MANIFEST"
case :$PATH: in
  *:"$PREFIX/bin":*) printf 'try: regroup --help\n' ;;
  *) printf 'try: export PATH=%s:"%sPATH"\n' "$PREFIX/bin" '$' ;;
esac
