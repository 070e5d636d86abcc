#!/usr/bin/env bash
# uninstall.sh PREFIX: removes what install.sh wrote down, and nothing else; says where state remains.
set -euo pipefail

readonly PREFIX=$1
readonly MANIFEST=$PREFIX/share/regroup/manifest

if [[ ! -e $MANIFEST ]]; then
  printf 'error: nothing is installed below %s\nbecause: %s is not there\n' "$PREFIX" "$MANIFEST" >&2
  printf 'try: ./dev uninstall --prefix DIR, with the folder given to ./dev install\n' >&2
  exit 1
fi

removed=0 folders=()
while IFS=' ' read -r kind path; do
  case $kind in
    folder) folders+=("$path") ;;
    file)
      [[ ! -e $path ]] || removed=$((removed + 1))
      rm -f "$path"
      ;;
  esac
done <"$MANIFEST"
# Only folders that install made, deepest first, and only if nobody put anything else in them.
while IFS= read -r path; do
  [[ -z $path ]] || rmdir --ignore-fail-on-non-empty "$path" 2>/dev/null || true
done < <(printf '%s\n' "${folders[@]}" | sort -ru)
printf 'removed %d files below %s\n' "$removed" "$PREFIX"

for state in /var/lib/regroup "${XDG_STATE_HOME:-$HOME/.local/state}/regroup" "/var/tmp/regroup-$EUID"; do
  [[ ! -e $state ]] || printf 'jobs and logs remain in %s\n' "$state"
done
