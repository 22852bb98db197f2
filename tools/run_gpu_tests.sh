#!/bin/bash
# Runs the kernels' GPU tests on a machine that has nothing but a driver and, for --sanitizer, the
# CUDA toolkit's compute-sanitizer.
#
#   tools/run_gpu_tests.sh BUILD [--sanitizer | --tool TOOL...] [--repeats N] [--filter GTEST_FILTER]
#
# BUILD is the folder that holds kernels_gpu_tests. --sanitizer: afterwards memcheck, racecheck,
# initcheck and synccheck over the reduced case list, which touches every kernel instance. --tool:
# only that one of the four, and no plain run. --repeats: of the tests that hunt races (200; 10000
# for a release). The last lines are a summary; the exit code is 1 if anything failed or nothing
# could run. Logs stay in BUILD/gpu_tests/.
set -u

build=${1:-}
if [[ ! -x $build/kernels_gpu_tests ]]; then
    echo "usage: $0 BUILD [--sanitizer | --tool TOOL...] [--repeats N] [--filter GTEST_FILTER]" >&2
    echo "error: no program $build/kernels_gpu_tests" >&2
    exit 2
fi
shift
plain=1
tools=()
filter='*'
while (($# > 0)); do
    case $1 in
        --sanitizer) tools=(memcheck racecheck initcheck synccheck) ;;
        --tool) shift; plain=0; tools+=("${1:?--tool needs a name}") ;;
        --repeats) shift; export KDT_GPU_REPEATS=${1:?--repeats needs a number} ;;
        --filter) shift; filter=${1:?--filter needs a pattern} ;;
        *) echo "error: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done

logs=$build/gpu_tests
mkdir -p "$logs"
summary=()
failed=0

# What a log says: "123 passed, 4 skipped, 0 failed".
counts() {
    local passed skipped bad
    passed=$(grep -c '^\[       OK \]' "$1")
    skipped=$(grep -c '^\[  SKIPPED \].*(.* ms)$' "$1")
    bad=$(grep -c '^\[  FAILED  \].*(.* ms)$' "$1")
    echo "$passed passed, $skipped skipped, $bad failed"
}

# run NAME SECONDS COMMAND...: its output goes to the log; failures are shown.
run() {
    local name=$1 seconds=$2 log=$logs/$1.log code start=$SECONDS
    shift 2
    timeout "$seconds" "$@" >"$log" 2>&1
    code=$?
    if ! grep -q '^\[       OK \]' "$log"; then
        failed=1
        echo "$name: no test ran"
    fi
    if ((code != 0)); then
        failed=1
        grep -v '^\[ RUN\|^\[       OK \]\|^\[  SKIPPED \]' "$log" | head -n 100
        if ((code == 124)); then
            echo "$name hung or took longer than $seconds s; it was in:"
            grep '^\[ RUN' "$log" | tail -n 1
        fi
    fi
    summary+=("$name: exit code $code, $(counts "$log"), $((SECONDS - start)) s")
}

if ((plain)); then
    run tests 540 "$build/kernels_gpu_tests" --gtest_filter="$filter"
    # Why variants were skipped, each reason once.
    sed -n '/Skipped$/{n;p}; /^skipped: /p' "$logs/tests.log" | sort | uniq -c | sort -rn |
        head -n 20
fi

if ((${#tools[@]} > 0)); then
    if ! checker=$(command -v compute-sanitizer); then
        checker=/usr/local/cuda/bin/compute-sanitizer
    fi
    if [[ ! -x $checker ]]; then
        echo "error: no compute-sanitizer on this machine" >&2
        exit 2
    fi
    # Steps that only repeat instances in other batches are left out: a sanitizer takes 20 to 100
    # times as long.
    left_out='AttnSplits.*:AttnGraphs.*:AttnDeterministic.*:AttnErrors.*:AttnReferences.*'
    if [[ $filter == *-* ]]; then reduced=$filter:$left_out; else reduced=$filter-$left_out; fi
    for tool in "${tools[@]}"; do
        KDT_GPU_CASES=sanitizer run $tool 540 "$checker" --tool $tool --error-exitcode 9 \
            "$build/kernels_gpu_tests" --gtest_filter="$reduced"
        summary+=("    $(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$logs/$tool.log" | tail -n 1)")
    done
fi

echo "---- summary"
printf '%s\n' "${summary[@]}"
exit $failed
