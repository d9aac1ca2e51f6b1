#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gates. tools/check.sh --fast: what reads the text of the repository, in seconds. --full: also each header alone, tests
# under address, undefined-behaviour and thread sanitizers, and a minute for each fuzz target (TANDEM_FUZZ_SECONDS). Names of
# gates after the mode run those of it alone.
set -uo pipefail
cd "$(dirname "$0")/.."
mode=${1:---fast}
wanted=${*:2}
ran="" failed=""

gate() {
  local name=$1 begin=$SECONDS
  shift
  [ -z "$wanted" ] || [[ " $wanted " == *" $name "* ]] || return
  ran="$ran $name"
  if "$@"; then echo "ok      $name ($((SECONDS - begin)) s)"; else echo "FAILED  $name"; failed="$failed $name"; fi
}

# quietly COMMAND...: its output is shown only if it fails.
quietly() {
  local output
  output=$("$@" 2>&1) || { tail -n 40 <<<"$output"; return 1; }
}

# sanitized PRESET MODULE...: builds and runs the test programs of these modules.
sanitized() {
  local preset=$1 programs
  shift
  quietly scripts/build "$preset" help || return 1
  programs=$(.venv/bin/ninja -C "build/$preset" -t targets all | python3 tools/test_programs.py "$@") || return 1
  quietly scripts/build "$preset" $programs || return 1
  OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$PWD/tools/tsan.supp halt_on_error=1" UBSAN_OPTIONS="print_stacktrace=1 halt_on_error=1" \
    ASAN_OPTIONS="detect_leaks=1" PATH="$PWD/.venv/bin:$PATH" \
    ctest --test-dir "build/$preset" -R "^($(tr '\n' '|' <<<"$programs" | sed 's/|$//'))\$" -j2 --output-on-failure
}

# runs_under_tsan CHECK...: these checks of free runs, whose ranks are threads. Open MPI is built without it, and processes that borrow
# memory until they start a program (reward/backend/process.cpp) confuse it.
runs_under_tsan() {
  local check
  quietly scripts/build tsan tandem || return 1
  for check in "$@"; do
    OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$PWD/tools/tsan.supp halt_on_error=1" \
      quietly .venv/bin/python tests/run/free_test.py --build build/tsan --only "$check" || return 1
  done
}

# fuzzed SECONDS: each program of tests/fuzz for so long, from its seeds; what breaks it stays in build/fuzz/found.
fuzzed() {
  local program name dict
  command -v clang++ >/dev/null || { echo "        no clang++: nothing is fuzzed (apt-get install clang libclang-rt-dev)"; return 0; }
  quietly scripts/build fuzz fuzz_programs || return 1
  for program in build/fuzz/fuzz/*; do
    name=${program##*/} dict=()
    [ -f "tests/fuzz/$name.dict" ] && dict=("-dict=tests/fuzz/$name.dict")
    mkdir -p "build/fuzz/grown/$name" build/fuzz/found
    UBSAN_OPTIONS="print_stacktrace=1 halt_on_error=1" "$program" -max_total_time="$1" -timeout=10 -max_len=16384 \
      -rss_limit_mb=2048 "${dict[@]}" \
      -verbosity=0 -print_funcs=0 -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/grown/$name" "tests/fuzz/corpus/$name" || return 1
  done
}

case $mode in
  --fast | --full) ;;
  *) echo "usage: tools/check.sh [--fast | --full]" >&2; exit 2 ;;
esac
for name in text layers graph sizes methods platform_if forbidden fuzz_includes doc_symbols links; do gate "$name" python3 "tools/$name.py"; done
if [ "$mode" = --full ]; then
  gate headers python3 tools/headers.py
  # What parses bytes of others, and all else that is quickly built; libtorch itself is built without sanitizers.
  gate asan sanitized asan base monitor sample_store data text reward board checkpoint
  # Without the queue's random interleavings, 160,000 of them: each is one thread's, and they would take minutes.
  GTEST_FILTER="-*Interleaving*" gate tsan sanitized tsan monitor queue pull worker comm rollout
  gate tsan_runs runs_under_tsan two layouts mixed offloaded filtered
  gate fuzz fuzzed "${TANDEM_FUZZ_SECONDS:-60}"
fi
for name in $wanted; do [[ " $ran " == *" $name "* ]] || { echo "no gate $name in $mode"; failed="$failed $name"; }; done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
