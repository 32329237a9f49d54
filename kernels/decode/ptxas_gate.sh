#!/bin/sh
# Runs a CUDA compilation (made with -Xptxas=-v) and fails it when ptxas reports that it serialised
# the matrix instructions or spilled registers: both cost a kernel much of its speed and say so only
# here.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" 2>"$log"
status=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' -e '^$' "$log" >&2
if [ $status -eq 0 ] && grep -q -E '\(C75(1[01245]|20)\)|[1-9][0-9]* bytes spill' "$log"; then
  grep -E 'C75(1[01245]|20)|Compiling entry function|bytes spill' "$log" >&2
  echo 'ptxas_gate: wgmma serialised or registers spilled, see above' >&2
  status=1
fi
exit $status
