#!/usr/bin/env bash
# Runs the tests on small cases under valgrind; see usage below.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage() {
    cat <<'END'
usage: tools/memcheck.sh [SUITE...]

Builds build/cpu and runs tests under valgrind's memcheck: the CPU kernels on their case lists, the
models and the engine on tiny ones. SUITE is kernels, models or engine; default: all. Exit code 1 if
a read of what was never written, an access outside a block or a leak is found, if a test fails, or if
a part of a suite's filter chooses no test.

AddressSanitizer does not see reads of what was never written. Here they are seen in memory of the
heap and the stack; packed weights, caches and workspaces are pages of the operating system, which
count as written and have no bounds. valgrind knows no AVX-512 and says so to the program, so that the
kernels take AVX2 and what is below it.
END
}

# CPU code on small shapes: no references of CUDA kernels and their planner, whose cases are large,
# no SmolLM2, no death tests, which end in the middle of everything, no long chains of rows: valgrind
# takes some hundred times as long.
declare -A filters=(
    [kernels]='*-*DeathTest*:AttnPlan*:AttnStep*:AttnValues*:AttnCombine*:Attn*Ref*'
    [models]='DenseGqa.Logits*:DeepseekGguf*'
    [engine]='Engine.*:Choices*:CostCache.R*:CostCache.F*:MeasureCost.*'
)

suites=()
while (($#)); do
    case "$1" in
    -h | --help)
        usage
        exit 0
        ;;
    kernels | models | engine) suites+=("$1") ;;
    *) kd_die "there is no suite '$1' (see tools/memcheck.sh --help)" ;;
    esac
    shift
done
((${#suites[@]})) || suites=(kernels models engine)

kd_ensure_packages "${KD_BUILD_PACKAGES[@]}" "${KD_TEST_PACKAGES[@]}" valgrind
kd_configure cpu -DKDTREE_TESTS=ON
kd_build cpu "${suites[@]/%/_tests}"

failed=()
for suite in "${suites[@]}"; do
    # A renamed test would be left out unseen.
    IFS=: read -ra patterns <<<"${filters[$suite]%%-*}"
    for pattern in "${patterns[@]}"; do
        tests=$("$kd_root/build/cpu/${suite}_tests" --gtest_list_tests --gtest_filter="$pattern")
        [[ $tests == *$'\n  '* ]] || kd_die "memcheck: no test of ${suite}_tests is called $pattern"
    done
    kd_say "memcheck: ${suite}_tests ..."
    valgrind --quiet --error-exitcode=2 --leak-check=full --errors-for-leak-kinds=definite \
        "$kd_root/build/cpu/${suite}_tests" --gtest_filter="${filters[$suite]}" --gtest_brief=1 ||
        failed+=("$suite")
done
((${#failed[@]} == 0)) || kd_die "memcheck: findings in ${failed[*]}"
