#!/usr/bin/env bash
# Runs everything that needs a GPU, in a plain checkout: the gpu tests, all Atari games beside the
# native library, the sanitizers on a few of them, then the benchmarks.
#
#   OUT=gpu_results STEP_LIMIT_S=300 PYTHON=python3 bash scripts/gpu_suite.sh [BENCHMARK ...]
#
# RLBATCH_COMMIT names the commit where the checkout comes without its git history.
# Uses whatever PyTorch, CuPy, NumPy and pytest are installed; installs nothing. Leaves in $OUT:
#   suite.json      commit, device, versions, and per step its exit code and seconds; written
#                   after every step, so that a run cut short still tells what it did
#   gpu_tests.xml   the tests' own report
#   suite.log       all output
# Exits non-zero if any step failed, if a benchmark is missing or ends without its JSON object, or
# if no GPU test passed.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-gpu_results}
PYTHON=${PYTHON:-python3}
STEP_LIMIT_S=${STEP_LIMIT_S:-300}
benchmarks=("$@")
[ $# -gt 0 ] || benchmarks=(atari_gpu a2c_atari batcher dicttensor)

"$PYTHON" -c 'import torch, pytest' || exit 2
mkdir -p "$OUT"
rm -f "$OUT"/{suite.json,suite.log,gpu_tests.xml}
steps=$(mktemp -d)
trap 'rm -rf "$steps"' EXIT
export LC_ALL=C.UTF-8
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 RLBATCH_REQUIRE_GPU=1

step() { # NAME COMMAND...: runs the command under the time limit and rewrites suite.json.
    local name=$1 start=$EPOCHREALTIME
    shift
    echo "== $name" | tee -a "$OUT/suite.log"
    timeout --kill-after=10 "$STEP_LIMIT_S" "$@" 2>&1 | tee "$steps/$name.out" | tee -a "$OUT/suite.log"
    printf '%s\t%s\t%s\t%s\n' "$name" "${PIPESTATUS[0]}" "$start" "$EPOCHREALTIME" >>"$steps/table"
    "$PYTHON" scripts/gpu_summary.py "$OUT" "$steps"
}

benchmark() { # NAME: runs benchmarks/NAME.py, on the GPU if it can choose.
    local options=()
    if [ ! -e "benchmarks/$1.py" ] && [ ! -e "benchmarks/$1/__main__.py" ]; then
        echo "benchmarks.$1: no such module"
        return 127
    fi
    if "$PYTHON" -m "benchmarks.$1" --help | grep -q -e --device; then
        options=(--device cuda)
    fi
    "$PYTHON" -m "benchmarks.$1" "${options[@]}"
}
export -f benchmark
export PYTHON

# It compiles all kernels, which the tests then find.
step gpu_equality "$PYTHON" -m scripts.gpu_equality
step gpu_tests "$PYTHON" -m pytest tests -m gpu --continue-on-collection-errors \
    -p no:cacheprovider -o "faulthandler_timeout=$((STEP_LIMIT_S / 2))" --junit-xml="$OUT/gpu_tests.xml"
if command -v compute-sanitizer >/dev/null; then
    short=(--games pong pitfall2 --n-envs 40 --n-steps 3 --n-games-at-once 1)
    for tool in memcheck racecheck; do
        step "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
            "$PYTHON" -m scripts.gpu_equality "${short[@]}"
    done
fi
for name in "${benchmarks[@]}"; do
    step "benchmark_$name" bash -c "benchmark $name"
done
# The scores are those that the paper on CuLE gives times for (its table 3); it names none for Breakout.
on_gpu="--device cuda --batcher-device cuda --evaluation-device cuda --no-torch-deterministic"
learn() { # GAME SCORE SEEDS: trains A2C until it has the score.
    step "learning_${1,,}" "$PYTHON" -m benchmarks.learning --algorithm a2c \
        --env-id "$1NoFrameskip-v4" --n-seeds "$3" \
        --options="$on_gpu --n-envs 1200 --total-steps 8000000 --target-return $2"
}
learn Pong 18 3
learn MsPacman 1500 1
learn Asterix 1000 1
learn Assault 800 1
learn Breakout 300 1
"$PYTHON" scripts/gpu_summary.py "$OUT" "$steps" --verdict
