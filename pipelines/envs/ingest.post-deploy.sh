#!/usr/bin/env bash
# Runs once in the folder of the workflow after Snakemake has made the environment.
set -euo pipefail
if [ "$(uname -sm)" = "Linux x86_64" ]; then
  python -m pip install -c constraints.txt ./pipelines/pillow-shim ".[workflow,simd]"
else
  python -m pip install -c constraints-pillow.txt ".[build]"
fi
