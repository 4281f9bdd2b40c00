#!/usr/bin/env bash
# What a machine with a GPU should do first, in three parts of under nine minutes each:
#   tools/first_gpu_hour.sh 1|2|3
# and, on the machine that keeps the results, what makes maps and pages of them:
#   tools/first_gpu_hour.sh read ARCHIVE… --out FOLDER
# first_gpu_hour.py beside this file says what each part does. After every step its archive is
# written anew to runs/first-gpu-hour/archives, so that a limit that cuts the part loses one step.
# A machine without network: carry .whl/, which `make gpu-wheels` fills for Python 3.12. PYTHON
# names the interpreter, DEVICE the device (default cuda).
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [[ ${1:-} != wheels ]] && compgen -G '.whl/*.whl' >/dev/null; then
  packages=${TMPDIR:-/tmp}/gacprof-packages
  [ -d "$packages" ] || for wheel in .whl/*.whl; do
    # one by one: a wheel that does not fit this Python must not cost the others
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade \
      --disable-pip-version-check --root-user-action=ignore --target "$packages" "$wheel" ||
      echo "not installed: $wheel"
  done
  export PYTHONPATH=$PYTHONPATH:$packages
fi
exec "$python" tools/first_gpu_hour.py "$@"
