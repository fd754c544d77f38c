#!/usr/bin/env bash
# Runs everything that needs a GPU, in a plain checkout: all Atari games beside the native library,
# the gpu tests, the sanitizers on a few games, the benchmarks, a profile, and A2C in Pong.
#
#   OUT=gpu_results STEP_LIMIT_S=7200 BUDGET_S=100000 ONLY=. SWEEP=all LEARN=pong_0 PYTHON=python3 \
#       bash scripts/gpu_suite.sh [BENCHMARK ...]
#
# ONLY is a pattern: the steps whose names fit are run, so that a machine that is at hand for
# minutes can do a part. LEARN is another, of the trainings: `.` for all seven, of five games, which
# it is where there is an ONLY. SWEEP names the games that are measured in every use and number of
# environments, which takes most of the time: "pong breakout" for two. All games are measured with
# observations. What checks runs side by side, what measures alone. After BUDGET_S no step goes on,
# so that the report of what was done is there. Before the first step that plays all games their
# kernels are compiled, for minutes, unless the folder rlbatch in XDG_CACHE_HOME holds them.
# RLBATCH_COMMIT names the commit where the checkout comes without its history. Uses what is
# installed, installs nothing. Leaves in $OUT:
#   suite.json      commit, device, versions, and per step its exit code and seconds; written
#                   after every step, so that a run cut short still tells what it did
#   gpu_tests.xml   the tests' own report
#   suite.log       all output
#   learning.tgz    logs and curves of the training runs
# Exits non-zero if any step failed, if a benchmark is missing or ends without its JSON object, or
# if no GPU test passed.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-gpu_results}
PYTHON=${PYTHON:-python3}
STEP_LIMIT_S=${STEP_LIMIT_S:-7200}
BUDGET_S=${BUDGET_S:-100000}
LEARN=${LEARN:-${ONLY:+.}}
LEARN=${LEARN:-pong_0}
ONLY=${ONLY:-.}
benchmarks=("$@")
[ $# -gt 0 ] || benchmarks=("atari_gpu --sweep-games ${SWEEP:-all}" acquisition
    "a2c_atari --n-envs 256 --n-threads $(nproc) --rounds 3" dicttensor)

tests=$([[ gpu_tests =~ $ONLY ]] && echo tests)
free=$("$PYTHON" - $tests <<'END'
import sys
import ale_py, cupy, gymnasium, numpy, pytest, torch, tyro
assert torch.cuda.is_available(), "expected a GPU, torch finds none"
version = pytest.__version__
assert pytest.version_tuple >= (9,) or not sys.argv[1:], f"expected pytest 9 or newer, got {version}"
print(torch.cuda.mem_get_info()[0] >> 30)
END
) || exit 2
free=${free##*$'\n'}  # GiB; what packages print as they are imported comes before.
mkdir -p "$OUT"
rm -f "$OUT"/{suite.json,suite.log,gpu_tests.xml,learning.tgz}
steps=$(mktemp -d) runs=$(mktemp -d)
touch "$steps/table"
stop() { # Interrupts what is in the background, and waits for its reports.
    for job in $(jobs -p); do pkill -INT -P "$job"; done
    wait
    rm -rf "$steps" "$runs"
}
trap stop EXIT
trap 'exit 130' INT TERM
export LC_ALL=C.UTF-8
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 RLBATCH_REQUIRE_GPU=1
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1  # Those of the machine may be for another pytest.
export CUDA_DEVICE_MAX_CONNECTIONS=32  # As many streams that do not wait for each other.
export PATH=$PATH:/usr/local/cuda/bin

stamped() { # NAME: puts the seconds since the suite began, and a name, before every line.
    local line
    while IFS= read -r line || [ -n "$line" ]; do printf '%4d %s: %s\n' "$SECONDS" "$1" "$line"; done
}

step() { # NAME COMMAND...: runs the command under the time limit and rewrites suite.json.
    local name=$1 start=$EPOCHREALTIME limit=$((BUDGET_S - SECONDS - 35)) code="not run" end=$EPOCHREALTIME
    shift
    [[ $name =~ $ONLY ]] || return 0
    echo "== $name" | tee -a "$OUT/suite.log"
    echo "$name" >>"$steps/begun"
    if ((limit >= 5)); then
        limit=$((limit < STEP_LIMIT_S ? limit : STEP_LIMIT_S))
        # Interrupted, a program still reports what it has; in the background it would not notice.
        env --default-signal=INT timeout --signal=INT --kill-after=30 "$limit" "$@" 2>&1 |
            tee "$steps/$name.out" | stamped "$name" | tee -a "$OUT/suite.log"
        code=${PIPESTATUS[0]} end=$EPOCHREALTIME
    fi
    {
        flock 9
        printf '%s\t%s\t%s\t%s\n' "$name" "$code" "$start" "$end" >>"$steps/table"
        "$PYTHON" scripts/gpu_summary.py "$OUT" "$steps"
    } 9>"$steps/lock"
}

benchmark() { # NAME [OPTION ...]: runs benchmarks/NAME.py, on the GPU if it can choose.
    local options=()
    if [ ! -e "benchmarks/$1.py" ]; then
        echo "benchmarks.$1: no such module"
        return 127
    fi
    grep -q "^    device: " "benchmarks/$1.py" && options=(--device cuda)
    "$PYTHON" -m "benchmarks.$1" "${options[@]}" "${@:2}"
}
export -f benchmark
export PYTHON

compile_before() { # NAME: compiles all kernels, with all cores, before the first such step.
    [[ $1 =~ $ONLY && ! -e $steps/compile.out ]] || return 0
    ONLY=. STEP_LIMIT_S=590 step compile "$PYTHON" -m scripts.gpu_compile
}

beside() { # COMMAND...: runs it beside what comes next, where the GPU has memory for that.
    "$@" &
    ((free > 30)) || wait
}

# Two games first: whether anything runs at all shows within a minute.
two=(--games pong pitfall2 --n-games-at-once 1)
STEP_LIMIT_S=240 beside step smoke "$PYTHON" -m scripts.gpu_equality "${two[@]}" --n-steps 10
STEP_LIMIT_S=240 beside step smoke_spread "$PYTHON" -m scripts.gpu_equality "${two[@]}" \
    --n-steps 10 --n-warps None
wait
if grep -qvP '^\S+\t0\t' "$steps/table"; then  # All else would wait for the same in vain.
    "$PYTHON" scripts/gpu_summary.py "$OUT" "$steps" --verdict
    exit 1
fi
# What checks comes before what measures, side by side. The checkers make the kernels hundreds of times
# slower, so that there are few steps, in full warps and in one that is not.
check() { # NAME TOOL OPTION... -- GAME...: runs a checker, of kernels that the options name.
    local name=$1 tool=()
    shift
    while [ "$1" != -- ]; do
        tool+=("$1")
        shift
    done
    # Without PyTorch's cache a tensor's end is the end of an allocation.
    step "sanitizer_$name" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "${tool[@]}" \
        --error-exitcode 1 "$PYTHON" -m scripts.gpu_equality --n-games-at-once 1 \
        --games "${@:2}"
}
for name in gpu_equality_1 gpu_equality_2 gpu_tests; do
    compile_before $name
done
for part in 1 2; do  # In two processes, each of which has one interpreter for all its threads.
    beside step "gpu_equality_$part" "$PYTHON" -m scripts.gpu_equality --part $part/2
done
# Warnings are those of the PyTorch that is installed, which is not the pinned one. Some tests play every
# game, as gpu_equality does for longer. Few at a time, where pytest-xdist is at hand: others use the GPU, too;
# that may make a test slower than any is allowed to be elsewhere.
side_by_side=()
"$PYTHON" -c "import xdist" 2>/dev/null && side_by_side=(-p xdist.plugin -n 4)
beside step gpu_tests "$PYTHON" -m pytest tests -v -m "gpu and not slow" -k "not every_game" \
    --continue-on-collection-errors "${side_by_side[@]}" -W default -p no:cacheprovider \
    -o faulthandler_timeout="$STEP_LIMIT_S" \
    --junit-xml="$OUT/gpu_tests.xml"
for n in 5000 40000; do  # In warps that are not full, and in full ones.
    beside step "gpu_equality_of_$n" "$PYTHON" -m scripts.gpu_equality --n-games-at-once 1 \
        --games pong klax --n-envs $n --n-steps 5 --n-warps None --states-of-every 50
done
beside check synccheck synccheck --kernel-name kns=rlb_ -- pong pitfall2 --n-envs 136 --n-steps 10
# Of calls that fail, as those do with which PyTorch asks what there is, none is reported.
beside check memcheck memcheck --kernel-name kns=rlb_ --report-api-errors no -- pong pitfall2 \
    --n-envs 136 --n-steps 10
beside check racecheck racecheck --kernel-name kns=rlb_observe --kernel-name kns=rlb_save \
    --kernel-name kns=rlb_restore -- pong klax --n-envs 136 --n-steps 1
# This tool keeps every access between two barriers, of which a step has one: so there are just two warps with
# environments, which share a program. tests/envs/atari/test_sanitizers.py watches more, on a host.
beside check racecheck_step racecheck --kernel-name kns=rlb_step -- pong --n-envs 33 --n-steps 5
wait
# The first figure is how many of a warp's 32 threads work at a time.
metrics=smsp__thread_inst_executed_per_inst_executed.ratio,sm__warps_active.avg.pct_of_peak_sustained_active
metrics+=,smsp__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active
metrics+=,smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio
metrics+=,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio
metrics+=,l1tex__t_sector_hit_rate.pct,dram__bytes.sum,gpu__time_duration.sum
# Two steps of those that are measured: four launches each, after a reset, `observe` and three more.
step kernel_profile ncu --clock-control none --kernel-name "regex:rlb_(step|observe)" --launch-skip 16 \
    --launch-count 8 --metrics "$metrics" "$PYTHON" -m benchmarks.atari_gpu \
    --device cuda --parts games --games pong
for command in "${benchmarks[@]}"; do
    name=$(tr -cs 'a-z0-9\n' _ <<<"benchmark_$command")
    compile_before "$name"
    step "$name" bash -c "benchmark $command"
done
# The scores are those that the paper on CuLE gives times for (its table 3); it names none for Breakout.
# Evaluations play on the CPU, beside the training, which waits for a score until the next one begins.
processes=$(($(nproc) > 11 ? 10 : 1))
on_gpu="--device cuda --batcher-device cuda --no-torch-deterministic --n-threads 1"
on_gpu+=" --evaluation-processes $processes --n-envs 1200 --learning-rate 1.3e-3"
learn() { # GAME SCORE OPTIONS SEED...: trains A2C until it has the score.
    local game=$1 score=$2 options=$3
    for seed in "${@:4}"; do
        [[ ${game,,}_$seed =~ $LEARN ]] || continue
        step "learning_${game,,}_$seed" "$PYTHON" -m benchmarks.learning --algorithm a2c \
            --env-id "${game}NoFrameskip-v4" --n-seeds 1 --first-seed "$seed" \
            --runs "$runs/$game" --options="$on_gpu --target-return $score $options"
    done
    [ -z "$(ls "$runs")" ] || tar czf "$OUT/learning.tgz" --exclude='*.pt' -C "$runs" .
}
shorter="--total-steps 4000000 --evaluate-every 500"
longer="--total-steps 8000000 --evaluate-every 1000"
learn Pong 18 "$shorter" 0
learn MsPacman 1500 "$longer" 0
learn Asterix 1000 "$longer" 0
learn Assault 800 "$longer" 0
learn Breakout 300 "$longer" 0
learn Pong 18 "$shorter" 1 2
"$PYTHON" scripts/gpu_summary.py "$OUT" "$steps" --verdict
