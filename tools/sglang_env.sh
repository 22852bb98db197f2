#!/usr/bin/env bash
# The environment that tests/sglang run in: SGLang's real wheels, without a GPU. See usage below.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

VERSIONS=(0.5.14 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.23)
# torch without its CUDA packages wants a CUDA toolkit's libraries on the machine, and these three.
TORCH=(torch==2.11.0 triton==3.6.0 torchvision==0.26.0)
TORCH_EXTRAS=(nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5)
REQUIREMENTS=$kd_root/tools/sglang_requirements.txt

usage() {
    cat <<END
usage: tools/sglang_env.sh [VERSION...]
       tools/sglang_env.sh --test VERSION

Makes a Python environment with torch and what SGLang imports, and unpacks SGLang's wheels, below
\$KDTREE_CACHE/sglang (default: ~/.cache/kdtree/sglang): about 4 minutes and 3.3 GB the first time,
nothing afterwards. Versions: ${VERSIONS[*]} (default: all of them).
--test: every tests/sglang/test_*.py with a version that is there already.

It needs Python 3.11 and network access; what could not be downloaded after three tries is named. Where no CUDA 13 toolkit is installed, torch comes with its
own CUDA libraries, 2 GB more.
END
}

kd_sglang_cache() {
    printf '%s/sglang\n' "${KDTREE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kdtree}"
}

kd_sglang_python() {
    printf '%s/venv/bin/python\n' "$(kd_sglang_cache)"
}

# kd_sglang_check VERSION...: all of them are known.
kd_sglang_check() {
    local version
    for version in "$@"; do
        [[ " ${VERSIONS[*]} " == *" $version "* ]] ||
            kd_die "SGLang $version is not one of the tested versions: ${VERSIONS[*]}"
    done
}

# kd_pip WHAT ARGUMENT...: pip of the environment, tried three times; the end of its output if it fails.
kd_pip() {
    local what=$1 log pause
    shift
    log=$(mktemp)
    kd_say "SGLang environment: $what ..."
    for pause in 10 30 0; do
        if kd_quiet "$log" "$(kd_sglang_python)" -m pip --disable-pip-version-check "$@"; then
            rm -f -- "$log"
            return 0
        fi
        sleep "$pause"
    done
    tail -n 15 -- "$log" >&2
    rm -f -- "$log"
    kd_die "pip could not install $what (network? disk: $(kd_sglang_cache))"
}

# kd_sglang_venv: made anew if it was interrupted or its pins have changed.
kd_sglang_venv() {
    local cache stamp pins
    cache=$(kd_sglang_cache)
    stamp=$cache/venv/.pins
    pins="${TORCH[*]} ${TORCH_EXTRAS[*]} $(sha256sum <"$REQUIREMENTS")"
    [[ $(cat -- "$stamp" 2>/dev/null) != "$pins" ]] || return 0
    # The pins are for 3.11.
    python3.11 -c 'import ensurepip' 2>/dev/null || kd_ensure_packages python3.11-venv
    rm -rf -- "$cache/venv"
    mkdir -p -- "$cache"
    python3.11 -m venv "$cache/venv" || kd_die "python3.11 -m venv $cache/venv failed"
    if kd_find_nvcc >/dev/null; then
        kd_pip "torch (0.9 GB)" install --no-deps "${TORCH[@]}" "${TORCH_EXTRAS[@]}"
    else
        kd_pip "torch with its CUDA libraries (3 GB)" install "${TORCH[@]}"
    fi
    kd_pip "what SGLang imports" install --no-deps -r "$REQUIREMENTS"
    "$(kd_sglang_python)" -c 'import torch' || kd_die "torch cannot be imported, see above"
    printf '%s\n' "$pins" >"$stamp"
}

# kd_sglang_wheel VERSION: unpacked, and only then under its name.
kd_sglang_wheel() {
    local version=$1 cache
    cache=$(kd_sglang_cache)
    [[ ! -d $cache/$version ]] || return 0
    rm -rf -- "$cache/wheels" "$cache/unpacking"
    kd_pip "the wheel of $version" download -q --no-deps --only-binary :all: -d "$cache/wheels" \
        "sglang==$version"
    "$(kd_sglang_python)" -m zipfile -e "$cache"/wheels/sglang-*.whl "$cache/unpacking"
    mv -- "$cache/unpacking" "$cache/$version"
    rm -rf -- "$cache/wheels"
}

# kd_sglang_environment [VERSION...]: everything that the tests of these versions need.
kd_sglang_environment() {
    local version
    kd_sglang_check "$@"
    kd_sglang_venv
    (($#)) || set -- "${VERSIONS[@]}"
    for version in "$@"; do kd_sglang_wheel "$version"; done
}

# kd_sglang_test VERSION: every tests/sglang/test_*.py; their output at the end, in one piece.
kd_sglang_test() {
    local version=$1 script failed=() cache log
    cache=$(kd_sglang_cache)
    log=$(mktemp)
    for script in "$kd_root"/tests/sglang/test_*.py; do
        printf 'SGLang %s: %s\n' "$version" "$(basename -- "$script" .py)"
        PYTHONPATH=$cache/$version:$kd_root/python KDTREE_LIBRARY_PATH=$kd_root/build/cpu \
            "$(kd_sglang_python)" "$script" || failed+=("$(basename -- "$script")")
    done >"$log" 2>&1
    cat -- "$log"
    rm -f -- "$log"
    ((${#failed[@]} == 0)) || kd_die "failed with SGLang $version: ${failed[*]}"
}

# kd_sglang_tests [VERSION...]: as many versions at a time as there are cores.
kd_sglang_tests() {
    (($#)) || set -- "${VERSIONS[@]}"
    kd_sglang_environment "$@"
    kd_say "testing inside SGLang $* ..."
    printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" "$kd_root/tools/sglang_env.sh" --test ||
        kd_die "the plugin's tests failed"
    kd_say "SGLang: all tests passed with $*"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    case ${1-} in
    -h | --help) usage ;;
    --test) kd_sglang_check "${2-}" && kd_sglang_test "$2" ;;
    *) kd_sglang_environment "$@" && kd_say "SGLang environment: $(kd_sglang_cache)" ;;
    esac
fi
