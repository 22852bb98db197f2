#!/bin/bash
# Runs the kernels' GPU tests on a machine that has nothing but a driver and, for --sanitizer, the
# CUDA toolkit's compute-sanitizer.
#
#   tools/run_gpu_tests.sh BUILD [--sanitizer | --tool TOOL...] [--jobs N] [--repeats N]
#                          [--filter GTEST_FILTER]
#
# BUILD is the folder that holds kernels_gpu_tests. --sanitizer: afterwards memcheck, racecheck,
# initcheck and synccheck over the reduced case list, which touches every kernel instance; --tool:
# only that one of the four, and no plain run. racecheck runs the program of BUILD-racecheck (preset
# cuda-racecheck), where every lane of a warp arrives at a barrier. --jobs: processes of a sanitizer
# side by side (4). --repeats: of the tests that hunt races (200; 10000 for a release). The last
# lines are a summary; the exit code is 1 if anything failed or nothing could run. Logs stay in
# BUILD/gpu_tests/.
set -u

build=${1:-}
build=${build%/}
if [[ ! -x $build/kernels_gpu_tests ]]; then
    sed -n '5,6s/^#   //p' "$0" >&2
    echo "error: no program $build/kernels_gpu_tests" >&2
    exit 2
fi
shift
plain=1
tools=()
filter='*'
jobs=4
while (($# > 0)); do
    case $1 in
        --sanitizer) tools=(memcheck racecheck initcheck synccheck) ;;
        --tool) shift; plain=0; tools+=("${1:?--tool needs a name}") ;;
        --jobs) shift; jobs=${1:?--jobs needs a number} ;;
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

# run NAME SHARDS SECONDS COMMAND...: the command once for each shard of its tests, side by side;
# the output goes to the log, shard after shard; failures are shown.
run() {
    local name=$1 shards=$2 seconds=$3 log=$logs/$1.log start=$SECONDS code worst=0 i
    shift 3
    local pids=()
    for ((i = 0; i < shards; ++i)); do
        GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout "$seconds" "$@" >"$log.$i" 2>&1 &
        pids+=($!)
    done
    : >"$log"
    for ((i = 0; i < shards; ++i)); do
        wait "${pids[i]}"
        code=$?
        if ((code != 0)); then
            worst=$code
            grep -v '^\[ RUN\|^\[       OK \]\|^\[  SKIPPED \]' "$log.$i" | head -n 100
        fi
        if ((code == 124)); then
            echo "$name hung or took longer than $seconds s; it was in:"
            grep '^\[ RUN' "$log.$i" | tail -n 1
        fi
        cat "$log.$i" >>"$log"
        rm "$log.$i"
    done
    if ! grep -q '^\[       OK \]' "$log"; then
        worst=1
        echo "$name: no test ran"
    fi
    ((worst == 0)) || failed=1
    summary+=("$name: exit code $worst, $(counts "$log"), $((SECONDS - start)) s")
}

if ((plain)); then
    run tests 1 540 "$build/kernels_gpu_tests" --gtest_filter="$filter"
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
    # times as long. The references, which take longest, are not checked.
    left_out='AttnSplits.*:AttnGraphs.*:AttnDeterministic.*:AttnErrors.*:AttnReferences.*'
    left_out+=':AttnNan.*:AttnRaces.*:AttnOverlap.*'
    for tool in "${tools[@]}"; do
        program=$build/kernels_gpu_tests
        left_out_here=$left_out
        options=(--kernel-name-exclude kernel_substring=reference)
        if [[ $tool == racecheck ]]; then
            program=$build-racecheck/kernels_gpu_tests
            # It sees races in shared memory only: the kernels that have some, where they work.
            options=()
            for kernel in attn_verify attn_combine attn_plan rope_append; do
                options+=(--kernel-name kernel_substring=$kernel)
            done
            left_out_here+=':AttnPlanGpu.OfLengths*:KvMoveCuda.*'
            if [[ ! -x $program ]]; then
                echo "error: no program $program (cmake --preset cuda-racecheck)" >&2
                exit 2
            fi
        fi
        if [[ $filter == *-* ]]; then reduced=$filter:$left_out_here
        else reduced=$filter-$left_out_here; fi
        KDT_GPU_CASES=sanitizer run $tool "$jobs" 540 "$checker" --tool $tool --error-exitcode 9 \
            "${options[@]}" "$program" --gtest_filter="$reduced"
        summary+=("$(grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$logs/$tool.log" | sort | uniq -c)")
    done
fi

echo "---- summary"
printf '%s\n' "${summary[@]}"
exit $failed
