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

Makes a Python environment with torch and what SGLang imports, and unpacks SGLang's wheels, below
\$KDTREE_CACHE/sglang (default: ~/.cache/kdtree/sglang): about 4 minutes and 3.3 GB the first time,
nothing afterwards. Versions: ${VERSIONS[*]} (default: all of them).

It needs Python 3.11 and network access. Where no CUDA 13 toolkit is installed, torch comes with its
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

# kd_pip WHAT ARGUMENT...: pip of the environment; the end of its output if it fails.
kd_pip() {
    local what=$1 log status=0
    shift
    log=$(mktemp)
    kd_say "SGLang environment: $what ..."
    kd_quiet "$log" "$(kd_sglang_python)" -m pip --disable-pip-version-check "$@" || status=$?
    ((status == 0)) || tail -n 15 -- "$log" >&2
    rm -f -- "$log"
    ((status == 0)) || kd_die "pip could not install $what (network? disk: $(kd_sglang_cache))"
}

# kd_sglang_venv: made anew if it was interrupted or its pins have changed.
kd_sglang_venv() {
    local cache stamp pins
    cache=$(kd_sglang_cache)
    stamp=$cache/venv/.pins
    pins="${TORCH[*]} ${TORCH_EXTRAS[*]} $(sha256sum <"$REQUIREMENTS")"
    [[ $(cat -- "$stamp" 2>/dev/null) != "$pins" ]] || return 0
    command -v python3.11 >/dev/null ||
        kd_die "the tests' pins are for Python 3.11, which is not installed (Debian: python3.11-venv)"
    rm -rf -- "$cache/venv"
    mkdir -p -- "$cache"
    python3.11 -m venv "$cache/venv" ||
        kd_die "python3.11 -m venv failed (Debian: apt-get install python3.11-venv)"
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

# kd_sglang_tests [VERSION...]: every tests/sglang/test_*.py with each version; fails at the end.
kd_sglang_tests() {
    local version script failed=() cache
    (($#)) || set -- "${VERSIONS[@]}"
    kd_sglang_environment "$@"
    cache=$(kd_sglang_cache)
    for version in "$@"; do
        for script in "$kd_root"/tests/sglang/test_*.py; do
            kd_say "SGLang $version: $(basename -- "$script" .py) ..."
            PYTHONPATH=$cache/$version:$kd_root/python KDTREE_LIBRARY_PATH=$kd_root/build/cpu \
                "$(kd_sglang_python)" "$script" || failed+=("$version/$(basename -- "$script")")
        done
    done
    ((${#failed[@]} == 0)) || kd_die "failed with SGLang: ${failed[*]}"
    kd_say "SGLang: all tests passed with $*"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    case ${1-} in
    -h | --help) usage ;;
    *) kd_sglang_environment "$@" && kd_say "SGLang environment: $(kd_sglang_cache)" ;;
    esac
fi
