#!/usr/bin/env bash
# What a machine with a GPU should do first, in three parts of under ten minutes each:
#   tools/first_gpu_hour.sh 1|2|3 [FOLDER]
# Part 1: is it sound (what is here, CUPTI, the GPU tests, a first sweep by events).
# Part 2: sweeps in graphs, their maps, the two timers side by side, counters at the edges.
# Part 3: attention, disputes, speed, a survey.
# Every step has a time limit and a log, and the next one runs whatever became of it: the folder
# (default runs/first-gpu-hour) holds them and steps.tsv, with each step's exit code and seconds.
# A machine without network: put wheels for its Python into .whl/ (pydantic, pydantic-core,
# annotated-types, typing-inspection, typing-extensions, rich, typer, pytest, ncu-report, … and
# nvidia-cuda-cupti>=13.1 to try beside the CUPTI of torch). PYTHON names the interpreter.
set -u
cd "$(dirname "$0")/.." || exit 1
part=${1:?"which part: 1, 2 or 3"}
out=$(realpath -m "${2:-runs/first-gpu-hour}")
python=${PYTHON:-python3}
packages=$out/.packages
mkdir -p "$out"
export PYTHONPATH=$PWD:$packages${PYTHONPATH:+:$PYTHONPATH}
gacprof() { "$python" -m gacprof "$@"; }
export -f gacprof
export python out

step() {  # NAME SECONDS COMMAND…: run with a limit, keep what it says and how it ended
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  echo "== $name (at most $limit s): $*"
  timeout --kill-after=10 "$limit" bash -c '"$@"' _ "$@" >"$out/$name.log" 2>&1
  code=$?
  printf '%s\t%s\t%s\t%s\n' "$part" "$name" "$code" "$((SECONDS - begun))" >>"$out/steps.tsv"
  tail -n 5 "$out/$name.log" | cut -c 1-200
}

install_wheels() {
  local wheels=()
  for wheel in .whl/*.whl; do
    case $wheel in
      *cupti*) "$python" -m zipfile -e "$wheel" "$out/.cupti" ;;
      *) wheels+=("$wheel") ;;
    esac
  done
  [ ${#wheels[@]} -eq 0 ] || [ -d "$packages" ] ||
    "$python" -m pip install --quiet --no-index --no-deps --target "$packages" "${wheels[@]}"
}
if compgen -G '.whl/*.whl' >/dev/null; then install_wheels; fi

part1() {  # 550 s at most
  step nvidia-smi 15 nvidia-smi -q
  step doctor 90 gacprof doctor
  step cupti-probe 45 "$python" tools/cupti_probe.py
  local newer
  newer=$(find "$out/.cupti" -name 'libcupti.so.*' 2>/dev/null | head -n 1)
  [ -z "$newer" ] || step cupti-probe-newer 45 env LD_PRELOAD="$newer" "$python" tools/cupti_probe.py
  step gpu-tests 250 "$python" -m pytest -q -rA -m gpu -p no:cacheprovider tests/gpu tests/kernels
  step sweep-quick-events 100 gacprof sweep quick --device cuda --timer cuda-events \
    --budget 60s --out "$out/quick-events"
}

part2() {  # 575 s at most
  step sweep-quick-graph 100 gacprof sweep quick --device cuda --timer cuda-graph \
    --budget 60s --out "$out/quick-graph"
  [ -d "$out/quick-events" ] ||
    step sweep-quick-events 75 gacprof sweep quick --device cuda --timer cuda-events \
      --budget 45s --out "$out/quick-events"
  step map-quick-graph 20 gacprof map build "$out/quick-graph" --out "$out/quick-graph.json"
  step map-quick-events 20 gacprof map build "$out/quick-events" --out "$out/quick-events.json"
  step timers-side-by-side 20 gacprof map diff "$out/quick-graph.json" "$out/quick-events.json"
  step sweep-full 220 gacprof sweep full --device cuda --budget 180s --out "$out/full"
  step map-full 20 gacprof map build "$out/full" --out "$out/full.json"
  step ncu-edges 100 gacprof evidence ncu "$out/quick-graph" --edges --timeout 90
}

part3() {  # 560 s at most
  step fa2 20 gacprof evidence fa2
  step sdpa-107 20 gacprof evidence sdpa --head-dim 107
  step sdpa-107-mask 20 gacprof evidence sdpa --head-dim 107 --mask float
  step disputes 150 "$python" reports/paper/disputes.py --device cuda --out "$out/disputes"
  step sweep-rate 140 "$python" benchmarks/sweep_rate.py --device cuda --repeats 3
  step survey 210 "$python" reports/paper/survey.py --device cuda --budget 2m --out "$out/survey"
}

case $part in
  1 | 2 | 3) "part$part" ;;
  *) echo "which part: 1, 2 or 3" >&2 && exit 2 ;;
esac
echo "== results in $out"
cat "$out/steps.tsv"
