#!/usr/bin/env bash
# Builds the fuzzers and runs them; see usage below.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage() {
    cat <<'END'
usage: tools/fuzz.sh [TARGET...] [--files] [--seconds N] [--coverage]

Builds build/fuzz with clang-16, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each
target (tests/fuzz/fuzz_TARGET.cpp; default: all) on what it found before and on its seeds.

  --files       the targets that read files and texts: they need src/formats alone, so they are
                built in a fraction of the time
  --seconds N   how long each target runs (default 60)
  --coverage    afterwards, line coverage of src/formats, src/core and src/engine/api by all that
                these targets have kept so far; fails where they leave more than 10 % of a parser

Inputs that reached new code are kept in build/fuzz/corpus/TARGET, findings in
build/fuzz/findings/TARGET. Exit code 1 if there is a finding.
END
}

seconds=60 coverage=no files=no
targets=()
while (($#)); do
    case "$1" in
    -h | --help)
        usage
        exit 0
        ;;
    --files) files=yes ;;
    --coverage) coverage=yes ;;
    --seconds)
        [[ ${2-} =~ ^[1-9][0-9]*$ ]] || kd_die "--seconds needs a number, not '${2-}'"
        seconds=$2
        shift
        ;;
    -*) kd_die "unknown flag $1 (see tools/fuzz.sh --help)" ;;
    *) targets+=("$1") ;;
    esac
    shift
done

sources=$kd_root/tests/fuzz
build=$kd_root/build/fuzz
if ((${#targets[@]} == 0)); then
    for source in "$sources"/fuzz_*.cpp; do
        name=$(basename -- "$source" .cpp)
        [[ $files == yes && $name =~ ^fuzz_(abi|model)$ ]] || targets+=("${name#fuzz_}")
    done
fi
for target in "${targets[@]}"; do
    [[ -f $sources/fuzz_$target.cpp ]] || kd_die "there is no target '$target' in tests/fuzz"
done

packages=("${KD_BUILD_PACKAGES[@]}" "${KD_TEST_PACKAGES[@]}" clang-16 libclang-rt-16-dev)
[[ $coverage == no ]] || packages+=(llvm-16)
kd_ensure_packages "${packages[@]}"
kd_configure fuzz
kd_build fuzz fuzz_seeds "${targets[@]/#/fuzz_}"

# Seconds for one input, MiB of one allocation and of all. No input is worth more: most are a few
# KiB. chat_template: the interpreter may make 128 MiB of strings, and 4,000,000 steps take a while
# in an instrumented build.
limits_of() {
    case "$1" in
    chat_template) echo -timeout=60 -malloc_limit_mb=512 -rss_limit_mb=2048 -max_len=8192 ;;
    gguf | model | safetensors) echo -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=2048 -max_len=65536 ;;
    tokenizer_json | config) echo -timeout=10 -malloc_limit_mb=256 -rss_limit_mb=2048 -max_len=8192 ;;
    # Its first request measures the cost table.
    abi) echo -timeout=60 -malloc_limit_mb=256 -rss_limit_mb=2048 -max_len=4096 ;;
    *) echo -timeout=10 -malloc_limit_mb=256 -rss_limit_mb=2048 -max_len=4096 ;;
    esac
}

# Last number behind a word of libFuzzer's log, as in "cov: 123".
last_of() { grep -o "$1 [0-9]*" -- "$2" | tail -n 1 | grep -o '[0-9]*$' || true; }

# What the sanitizers and libFuzzer say of a finding, in one line.
reason_of() { grep -m 1 -E 'ERROR: |runtime error: |check failed: ' -- "$1" || echo "no message"; }

export UBSAN_OPTIONS=print_stacktrace=1
# The programs must not write counters all over the place; --coverage sets another name.
export LLVM_PROFILE_FILE=/dev/null
KDTREE_CACHE=$build/cache
export KDTREE_CACHE
found=no
run_target() {
    local target=$1 corpus=$build/corpus/$1 findings=$build/findings/$1 log=$build/$1.log
    local -a options
    read -ra options <<<"$(limits_of "$target")"
    mkdir -p -- "$corpus" "$findings"
    "$build/fuzz_seeds" "$target" "$build/seeds/$target"
    [[ ! -f $sources/$target.dict ]] || options+=("-dict=$sources/$target.dict")
    kd_say "fuzzing $target for $seconds s ..."
    local status=0
    "$build/fuzz_$target" "${options[@]}" "-max_total_time=$seconds" -use_value_profile=1 \
        -print_final_stats=1 "-artifact_prefix=$findings/" "$corpus" "$build/seeds/$target" \
        >"$log" 2>&1 || status=$?
    printf '%-14s %10s executions, %6s branches covered, %5s inputs kept' "$target" \
        "$(last_of 'stat::number_of_executed_units:' "$log")" "$(last_of 'cov:' "$log")" \
        "$(find "$corpus" -type f | wc -l)"
    if ((status == 0)); then
        printf ', no finding\n'
        return
    fi
    found=yes
    local input
    input=$(grep -o 'Test unit written to .*' -- "$log" | tail -n 1)
    printf '\n  FINDING: %s\n' "$(reason_of "$log")"
    if [[ -n $input ]]; then
        input=${input#Test unit written to }
        printf '  reproduce: %s %s %q\n' "$build/fuzz_$target" "${options[*]}" "$input"
    fi
    printf '  the whole log: %s\n' "$log"
}
for target in "${targets[@]}"; do
    run_target "$target"
done

# --- coverage -------------------------------------------------------------------------------------

# Line coverage of our files by all that the targets have kept, as a table.
show_coverage() {
    local profile=$build/coverage target
    local -a objects=()
    rm -rf -- "$profile"
    mkdir -p -- "$profile"
    for target in "${targets[@]}"; do
        objects+=(-object "$build/fuzz_$target")
        LLVM_PROFILE_FILE=$profile/$target.profraw "$build/fuzz_$target" -runs=0 \
            "$build/corpus/$target" "$build/seeds/$target" >"$profile/$target.log" 2>&1 ||
            kd_say "warning: $target stopped at a finding, its coverage is not complete"
    done
    llvm-profdata-16 merge -sparse "$profile"/*.profraw -o "$profile/all.profdata"
    llvm-cov-16 export -summary-only -instr-profile "$profile/all.profdata" "${objects[@]}" \
        >"$profile/all.json"
    python3 - "$kd_root" "$profile/all.json" "${targets[@]}" <<'END'
import json
import pathlib
import sys

root, path, *targets = sys.argv[1:]
lines = {}
for file in json.load(open(path))["data"][0]["files"]:
    if file["filename"].startswith(root + "/src/"):
        counts = file["summary"]["lines"]
        lines[file["filename"][len(root) + 1:]] = (counts["covered"], counts["count"])
print(f"{'file':<40} {'covered':>8} {'lines':>6} {'share':>7}")
rows = sorted(lines.items())
# The files of a parser, and the targets that read them.
parts = {
    "GGUF": ("gguf gguf_split gguf_values file_tensor", "gguf"),
    "safetensors": ("safetensors safetensors_header", "safetensors"),
    "JSON": ("json_file", "safetensors tokenizer_json config"),
    "config readers": (
        "gguf_config gguf_deepseek hf_config hf_deepseek hf_rope hf_quantisation hf_folder"
        " dflash_config model_config config_readers",
        "gguf config",
    ),
    "tokenizer files": (
        "tokenizer_json tokenizer_tiktoken tokenizer_folder tokenizer_gguf tokenizer_read"
        " added_tokens regex_parse byte_regex split_regex code_point_set",
        "gguf tokenizer_json",
    ),
    "texts": ("tokenizer bpe pretokenize utf8 nfc", "tokenizer tokenizer_json"),
    "template parser": (
        "chat_template jinja_lexer jinja_parser jinja_expressions jinja_ast jinja_letters",
        "chat_template",
    ),
    "template evaluator": (
        "jinja_eval jinja_access jinja_arguments jinja_arithmetic jinja_case jinja_filters"
        " jinja_format jinja_functions jinja_methods jinja_number_filters jinja_print"
        " jinja_sequence_filters jinja_strings jinja_tests jinja_value",
        "chat_template",
    ),
}
parsers = {}
for parser, (stems, readers) in parts.items():
    if set(readers.split()) <= set(targets):
        counts = [each for name, each in rows if pathlib.Path(name).stem in stems.split()]
        parsers[f"parser: {parser}"] = [sum(each) for each in zip(*counts)]
rows += parsers.items()
for name, (covered, count) in rows:
    print(f"{name:<40} {covered:>8} {count:>6} {100 * covered / max(count, 1):>6.1f}%")
thin = [name for name, (covered, count) in parsers.items() if covered < 0.9 * count]
sys.exit(f"error: less than 90 % of {' and of '.join(thin)}" if thin else 0)
END
}
if [[ $coverage == yes ]]; then
    show_coverage || found=yes
fi
[[ $found == no ]]
