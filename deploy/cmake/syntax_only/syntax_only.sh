#!/bin/sh
# syntax_only.sh COMMAND…: a compiler that only reads makes nothing. This makes what follows -o, once it has read.
"$@" || exit
while [ "$1" != -o ]; do shift; done
touch "$2"
