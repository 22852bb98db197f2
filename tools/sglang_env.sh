#!/usr/bin/env bash
# The environment that tests/sglang run in: SGLang's real wheels, without a GPU. See usage below.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

VERSIONS=(0.5.14 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.23)
# torch without its CUDA packages wants a CUDA toolkit's libraries on the machine, and these three.
TORCH=(torch==2.11.0 triton==3.6.0 torchvision==0.26.0)
TORCH_EXTRAS=(nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5)
REQUIREMENTS=$kd_root/tools/sglang_requirements.txt

SCRIPT_SECONDS=900 # that a script of tests/sglang may take: far more than any does

usage() {
    cat <<END
usage: tools/sglang_env.sh [VERSION...]
       tools/sglang_env.sh --test VERSION

Makes a Python environment with torch and what SGLang imports, and unpacks SGLang's wheels, below
\$KDTREE_CACHE/sglang (default: ~/.cache/kdtree/sglang): about 4 minutes and 3.3 GB the first time,
nothing afterwards. Versions: ${VERSIONS[*]} (default: all of them).
--test: every tests/sglang/test_*.py with a version that is there already.

Checkouts share the folder: an environment's name says what is pinned in it, and one at a time makes
something; those of older pins (venv-*) may be deleted. It needs Python 3.11 and network access;
what could not be downloaded after three tries is named. Where no CUDA 13 toolkit is installed,
torch comes with its own CUDA libraries, 2 GB more.
END
}

kd_sglang_cache() {
    printf '%s/sglang\n' "${KDTREE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kdtree}"
}

kd_sglang_pins() {
    printf '%s\n' "${TORCH[*]} ${TORCH_EXTRAS[*]} $(sha256sum <"$REQUIREMENTS")"
}

# The environment's folder: one for each set of pins.
kd_sglang_venv() {
    local digits
    digits=$(kd_sglang_pins | sha256sum)
    printf '%s/venv-%s\n' "$(kd_sglang_cache)" "${digits:0:8}"
}

kd_sglang_python() {
    printf '%s/bin/python\n' "$(kd_sglang_venv)"
}

# kd_sglang_check VERSION...: all of them are known.
kd_sglang_check() {
    local version
    for version in "$@"; do
        [[ " ${VERSIONS[*]} " == *" $version "* ]] ||
            kd_die "SGLang $version is not one of the tested versions: ${VERSIONS[*]}"
    done
}

# kd_pip WHAT ARGUMENT...: pip of the environment, tried three times; the end of its output if it
# fails.
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

# kd_sglang_make_venv: made anew if it was interrupted.
kd_sglang_make_venv() {
    local venv
    venv=$(kd_sglang_venv)
    [[ ! -e $venv/.complete ]] || return 0
    # The pins are for 3.11.
    python3.11 -c 'import ensurepip' 2>/dev/null || kd_ensure_packages python3.11-venv
    rm -rf -- "$venv"
    python3.11 -m venv "$venv" || kd_die "python3.11 -m venv $venv failed"
    if kd_find_nvcc >/dev/null; then
        kd_pip "torch (0.9 GB)" install --no-deps "${TORCH[@]}" "${TORCH_EXTRAS[@]}"
    else
        kd_pip "torch with its CUDA libraries (3 GB)" install "${TORCH[@]}"
    fi
    kd_pip "what SGLang imports" install --no-deps -r "$REQUIREMENTS"
    "$(kd_sglang_python)" -c 'import torch' || kd_die "torch cannot be imported, see above"
    touch -- "$venv/.complete"
}

# kd_sglang_has VERSION: it is unpacked.
kd_sglang_has() {
    [[ -f $(kd_sglang_cache)/$1/sglang/version.py ]]
}

# kd_sglang_wheel VERSION: unpacked, and only then under its name.
kd_sglang_wheel() {
    local version=$1 cache folder
    ! kd_sglang_has "$version" || return 0
    cache=$(kd_sglang_cache)
    rm -rf -- "$cache"/unpacking.* "${cache:?}/$version" # what an interrupted run left
    folder=$(mktemp -d -- "$cache/unpacking.XXXXXX")
    kd_pip "the wheel of $version" download -q --no-deps --only-binary :all: -d "$folder" \
        "sglang==$version"
    "$(kd_sglang_python)" -m zipfile -e "$folder"/sglang-*.whl "$folder/files" ||
        kd_die "the wheel of $version could not be unpacked (disk: $cache)"
    mv -T -- "$folder/files" "$cache/$version" || kd_die "$cache/$version could not be made"
    rm -rf -- "$folder"
}

# kd_sglang_environment [VERSION...]: everything that the tests of these versions need. Not to be
# called where bash ignores a failure (before && or ||).
kd_sglang_environment() {
    local version cache
    kd_sglang_check "$@"
    (($#)) || set -- "${VERSIONS[@]}"
    cache=$(kd_sglang_cache)
    mkdir -p -- "$cache"
    (
        flock -n 9 || { kd_say "SGLang environment: waiting for another run ..." && flock 9; }
        kd_sglang_make_venv
        for version in "$@"; do kd_sglang_wheel "$version"; done
    ) 9>"$cache/.lock"
}

# kd_sglang_test VERSION: every tests/sglang/test_*.py; their names as they begin, their output at
# the end, in one piece. A script that does not find this version fails.
kd_sglang_test() {
    local version=$1 script name failed=() cache log status
    cache=$(kd_sglang_cache)
    kd_sglang_has "$version" ||
        kd_die "SGLang $version is not in $cache: tools/sglang_env.sh $version"
    log=$(mktemp)
    for script in "$kd_root"/tests/sglang/test_*.py; do
        name=$(basename -- "$script")
        kd_say "SGLang $version: $name"
        printf 'SGLang %s: %s\n' "$version" "$name" >>"$log"
        status=0
        PYTHONPATH=$cache/$version:$kd_root/python KDTREE_LIBRARY_PATH=$kd_root/build/cpu \
            KDTREE_SGLANG_REQUIRED=$version timeout -k 10 "$SCRIPT_SECONDS" \
            "$(kd_sglang_python)" "$script" >>"$log" 2>&1 || status=$?
        ((status != 124 && status != 137)) || name+=" (stopped after $SCRIPT_SECONDS s)"
        ((status == 0)) || failed+=("$name")
    done
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
    --test)
        kd_sglang_check "${2-}"
        kd_sglang_test "$2"
        ;;
    *)
        kd_sglang_environment "$@"
        kd_say "SGLang environment: $(kd_sglang_cache)"
        ;;
    esac
fi
