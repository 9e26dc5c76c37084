#!/usr/bin/env bash
# Everything of the loader that needs a GPU, on a machine where ingest itself need not be installed.
#
#   tests/gpu/run.sh [OUT_DIR]      needs torch, DALI, pyarrow, fsspec, pytest; Pillow or simplejpeg
#
# Runs the tests (those of the order only where hypothesis is installed), the example and the benchmark;
# goes on after a failure, and ends with 1 if there was one.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0
step() { echo "== $*"; "$@" || failed=1; }

# -c /dev/null: an older pytest stops at settings that it does not know.
step python3 -m pytest -q -rs -c /dev/null --rootdir . --import-mode importlib -p no:cacheprovider \
  tests/unit/test_loader.py tests/unit/test_resume.py tests/unit/test_epoch.py tests/unit/test_readers.py

data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
step python3 -c "from pathlib import Path; from tests.datasets import make_dataset
make_dataset(Path('$data/dataset'), samples=16384, shard_size=2048)"
step python3 examples/train.py "$data/dataset" --device cuda --batch-size 256 --epochs 3
step python3 benchmarks/loader.py "$data/dataset" --device cuda --batch-size 256 --threads 8 >"$out/loader.log"
cat "$out/loader.log"
exit "$failed"
