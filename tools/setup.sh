# Shell functions of ./quickstart, ./check and .ci/run: packages, configure and build, the model.
# Sourced by bash with `set -euo pipefail`; kd_root is the repository. Messages go to stderr.

kd_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

# Debian 12 packages: what the program needs, and what the tests need on top.
KD_BUILD_PACKAGES=(g++ cmake ninja-build pkg-config libfmt-dev libspdlog-dev nlohmann-json3-dev
    libcli11-dev libhwy-dev libpcre2-dev libutf8proc-dev libedit-dev python3 python3-pip
    ca-certificates)
KD_TEST_PACKAGES=(libgtest-dev zlib1g-dev)
# The oldest nvcc that compiles sm_120a as this project uses it.
KD_NVCC_MAJOR=13

kd_say() { printf '%s\n' "$*" >&2; }

kd_die() {
    kd_say "error: $*"
    exit 1
}

# kd_quiet LOG COMMAND...: output to LOG; on a terminal the last line is shown in place, so that a
# person sees progress. The command's exit status.
kd_quiet() {
    local log=$1 status=0
    shift
    if [[ -t 2 ]]; then
        "$@" 2>&1 | tee -i -- "$log" | kd_show_in_place || status=$?
        printf '\r\033[K' >&2
    else
        "$@" >"$log" 2>&1 || status=$?
    fi
    return "$status"
}

kd_show_in_place() {
    local line width
    width=$(tput cols 2>/dev/null || echo 80)
    trap '' INT # ends with its input, after the command that was interrupted
    while IFS= read -r line; do
        printf '\r\033[K%s' "${line:0:width-1}" >&2
    done
}

# --- packages -------------------------------------------------------------------------------------

# Prints those of the packages that are not installed.
kd_missing_packages() {
    local name
    for name in "$@"; do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] ||
            printf '%s\n' "$name"
    done
}

# Installs what is missing, after printing it; without the right to, prints the one command that
# does and exits. Touches neither network nor disk when nothing is missing.
kd_ensure_packages() {
    if ! command -v dpkg-query >/dev/null; then
        kd_say "not a Debian system: the counterparts of these packages are needed: $*"
        return
    fi
    local missing
    mapfile -t missing < <(kd_missing_packages "$@")
    ((${#missing[@]})) || return 0
    kd_say "missing packages: ${missing[*]}"

    local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    local -a as_root=()
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null; then
            kd_die "install them with: su -c '$command'"
        elif ! sudo -n true 2>/dev/null; then
            kd_die "install them with: sudo sh -c '$command'"
        fi
        as_root=(sudo -n)
    fi
    kd_say "installing them with apt-get ..."
    kd_apt_install "${missing[@]}"
}

# kd_apt_install PACKAGES...: fetches the package lists only if they are absent or stale. Uses the
# caller's `as_root`.
kd_apt_install() {
    local log name lists=usable
    log=$(mktemp)
    local -a install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q
        --no-install-recommends -o DPkg::Lock::Timeout=120 "$@")
    local -a update=("${as_root[@]}" apt-get update -q -o DPkg::Lock::Timeout=120)
    for name in "$@"; do
        [[ $(apt-cache policy "$name" 2>/dev/null) =~ Candidate:\ [^\(] ]] || lists=absent
    done
    if [[ $lists == usable ]] && kd_quiet "$log" "${install[@]}"; then
        rm -f -- "$log"
        return
    fi
    if kd_quiet "$log" "${update[@]}" && kd_quiet "$log" "${install[@]}"; then
        rm -f -- "$log"
        return
    fi
    tail -n 20 -- "$log" >&2
    rm -f -- "$log"
    kd_die "apt-get could not install: $*"
}

# --- build ----------------------------------------------------------------------------------------

# kd_cache_value BUILD_FOLDER NAME: a value of the CMake cache, empty if there is none.
kd_cache_value() {
    sed -n "s|^$2:[A-Z]*=||p" "$1/CMakeCache.txt" 2>/dev/null || true
}

# Whether the preset's build folder is configured, for this checkout: one that was moved or copied
# together with its build folder starts anew.
kd_is_configured() {
    [[ -f $kd_root/build/$1/build.ninja &&
        $(kd_cache_value "$kd_root/build/$1" CMAKE_HOME_DIRECTORY) == "$kd_root" ]]
}

# kd_configure PRESET [-DNAME=VALUE...]: only if the folder is not configured so yet. Afterwards
# Ninja itself runs CMake when a CMake file changes.
kd_configure() {
    local preset=$1 build=$kd_root/build/$1 option name log needed=no
    shift
    local -a arguments=("$@")
    if ! kd_is_configured "$preset"; then
        needed=yes
        arguments+=(--fresh)
    elif [[ $kd_root/CMakePresets.json -nt $build/build.ninja ]]; then
        needed=yes
    fi
    for option in "$@"; do
        name=${option#-D}
        [[ $(kd_cache_value "$build" "${name%%=*}") == "${name#*=}" ]] || needed=yes
    done
    [[ $needed == yes ]] || return 0

    if command -v ccache >/dev/null; then
        arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    mkdir -p -- "$build"
    log=$build/configure.log
    kd_say "configuring build/$preset ..."
    if ! (cd -- "$kd_root" && kd_quiet "$log" cmake --preset "$preset" "${arguments[@]}"); then
        grep -A 12 'CMake Error' -- "$log" >&2 || tail -n 20 -- "$log" >&2
        kd_die "configuring build/$preset failed; the whole log: $log"
    fi
    touch -- "$build/build.ninja" # newer than the presets, even if CMake left it as it was
}

# kd_build PRESET [TARGET...]: builds what is out of date; shows the compiler's words if it fails.
kd_build() {
    local preset=$1 build=$kd_root/build/$1 log
    shift
    log=$build/build.log
    [[ -t 2 ]] || kd_say "building build/$preset ..."
    if ! NINJA_STATUS="build/$preset [%f/%t] " kd_quiet "$log" ninja -C "$build" "$@"; then
        sed -n '/FAILED:/,$p' -- "$log" | head -n 60 >&2
        grep -q 'FAILED:' -- "$log" || tail -n 20 -- "$log" >&2
        kd_die "building build/$preset failed; the whole log: $log"
    fi
}

# Prints the path of an nvcc that is new enough; otherwise says what is missing and returns 1.
kd_find_nvcc() {
    local nvcc version
    for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        [[ -n $nvcc && -x $nvcc ]] || continue
        version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
        if ((${version%%.*} >= KD_NVCC_MAJOR)); then
            printf '%s\n' "$nvcc"
            return 0
        fi
        kd_say "CUDA: $nvcc is version $version, $KD_NVCC_MAJOR.0 or newer is needed"
        return 1
    done
    kd_say "CUDA: no nvcc found (NVIDIA's CUDA toolkit $KD_NVCC_MAJOR is not installed)"
    return 1
}

# kd_find_cuobjdump NVCC: prints the path of a disassembler of device code; without one in the
# toolkit, NVIDIA's package for Python has it (6 MB). Otherwise says so and returns 1.
kd_find_cuobjdump() {
    local folder=$kd_root/build/cuda/disassembler program log=$kd_root/build/cuda/disassembler.log
    for program in "$(dirname -- "$1")/cuobjdump" "$(command -v cuobjdump || true)" \
        "$folder/nvidia/cu$KD_NVCC_MAJOR/bin/cuobjdump"; do
        [[ -n $program && -x $program ]] && "$program" --version >/dev/null 2>&1 || continue
        printf '%s\n' "$program"
        return 0
    done
    if python3 -m pip --disable-pip-version-check install --no-deps --upgrade --target "$folder" \
        "nvidia-cuda-cuobjdump==$KD_NVCC_MAJOR.*" "nvidia-cuda-nvdisasm==$KD_NVCC_MAJOR.*" \
        >"$log" 2>&1; then
        printf '%s\n' "$program"
        return 0
    fi
    kd_say "CUDA: no cuobjdump in the toolkit, and pip could not fetch one (see $log)"
    return 1
}

# --- model ----------------------------------------------------------------------------------------

# kd_fetch_model NAME: prints the file's path. build/cpu/kdtree is there.
kd_fetch_model() {
    "$kd_root/build/cpu/kdtree" fetch "$1"
}
