#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gates. tools/check.sh --fast: what reads the text of the repository, in seconds. --full: also each header alone, and the
# unit tests under address, undefined-behaviour and thread sanitizers.
set -uo pipefail
cd "$(dirname "$0")/.."
mode=${1:---fast}
failed=""

gate() {
  local name=$1 begin=$SECONDS
  shift
  if "$@"; then echo "ok      $name ($((SECONDS - begin)) s)"; else echo "FAILED  $name"; failed="$failed $name"; fi
}

# sanitized PRESET PATTERN: builds and runs the unit programs whose name matches.
sanitized() {
  local preset=$1 programs
  scripts/build "$preset" help >/dev/null || return 1
  programs=$(.venv/bin/ninja -C "build/$preset" -t targets all | sed -n 's/^\([a-z_]*_test\): phony$/\1/p' | grep -Ex "$2" | sort -u)
  [ -n "$programs" ] || { echo "no test program matches $2"; return 1; }
  scripts/build "$preset" $programs >/dev/null || return 1
  OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$PWD/tools/tsan.supp halt_on_error=1" UBSAN_OPTIONS="print_stacktrace=1 halt_on_error=1" \
    ASAN_OPTIONS="detect_leaks=1" PATH="$PWD/.venv/bin:$PATH" \
    ctest --test-dir "build/$preset" -R "^($(tr '\n' '|' <<<"$programs" | sed 's/|$//'))\$" -j2 --output-on-failure
}

case $mode in
  --fast | --full) ;;
  *) echo "usage: tools/check.sh [--fast | --full]" >&2; exit 2 ;;
esac
for name in text layers sizes platform_if forbidden doc_symbols; do gate "$name" python3 "tools/$name.py"; done
if [ "$mode" = --full ]; then
  gate headers python3 tools/headers.py
  # The modules without libtorch, whose library is built without sanitizers and would answer for its own code.
  gate asan sanitized asan "(base|monitor|sample_store|data|text|reward|board|planner).*_test"
  gate tsan sanitized tsan "(monitor|queue|comm|runtime).*_test"
fi
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
