#!/bin/sh
# mpi.sh COMPILER STARTER...: compiles mpi.c in a folder of its own, starts it with what is given, and clears up.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" OMPI_MCA_rmaps_base_oversubscribe=1
compiler=$1
shift
"$compiler" -o "$folder/program" "$(dirname "$0")/mpi.c" || exit 1
"$@" "$folder/program"
