#!/bin/sh
# syntax_only.sh COMMAND…: a compiler that only reads makes nothing. This makes what follows -o, once it has read.
export CCACHE_DEPEND=1 # What the cache lacks is read once. No use to unity sources, which name parts by absolute path.
"$@" || exit
until [ "$1" = -o ]; do shift || exit; done
touch "$2"
