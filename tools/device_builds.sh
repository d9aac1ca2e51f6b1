#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles and links the program for CUDA and for Ascend on a machine that has neither: tools/device_builds.sh [cuda] [npu]. Fetches the
# wheels once (5 GB for CUDA, 1 GB for Ascend) into build/cuda_python and build/venv-npu, unless TANDEM_CUDA_PYTHON or TANDEM_NPU_PYTHON names
# a Python that has them. Some ten minutes each on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

# A Python of its own with the wheels for Ascend.
npu_python() {
  local folder=build/venv-npu python
  python=$PWD/$folder/bin/python
  if [ ! -e "$folder/whole" ]; then
    python3 -m venv "$folder" && "$python" -m pip install -q --disable-pip-version-check torch==2.13.0+cpu torch-npu==2.13.0 numpy && touch "$folder/whole"
  fi >&2
  echo "$python"
}

for each in ${*:-cuda npu}; do
  case $each in
    cuda) export TANDEM_CUDA_PYTHON=${TANDEM_CUDA_PYTHON:-$(scripts/cuda_python 2.13.0)}
          scripts/build cuda tandem comm_device_test
          build/cuda/tandem doctor | grep -i c10d ;;
    npu)  export TANDEM_NPU_PYTHON=${TANDEM_NPU_PYTHON:-$(npu_python)}
          scripts/build npu tandem
          echo "build/npu/tandem: $(stat -c %s build/npu/tandem) bytes; it starts where CANN is" ;;
    *)    echo "device_builds: $each is no device: cuda or npu" >&2; exit 2 ;;
  esac
done
