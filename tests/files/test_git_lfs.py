"""Git LFS pointers in place of a model's or tokenizer's files."""

import pytest

from headless_trainer.files.git_lfs import pointer_in_model
from headless_trainer.files.sources import source

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model-00002-of-00003.safetensors",
        "adapter_model.safetensors",
        "tokenizer.json",
        "spiece.model",
        "vocab.txt",
        "merges.txt",
    ],
)
def test_a_pointer_in_place_of_a_needed_file_is_named(name, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00003.safetensors").write_bytes(b"weights")
    (tmp_path / name).write_bytes(POINTER)
    assert pointer_in_model(tmp_path) == tmp_path / name
    with pytest.raises(ValueError, match=f"^model_name_or_path .*{name}.*git lfs pull"):
        with source("model_name_or_path", str(tmp_path)):
            pytest.fail("nothing is loaded from a pointer")


def test_weights_that_nothing_reads_may_stay_pointers(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for name in ("pytorch_model.bin", "tf_model.h5", "model.onnx", "training_args.bin"):
        (tmp_path / name).write_bytes(POINTER)
    assert pointer_in_model(tmp_path) is None
    (tmp_path / "model.safetensors").unlink()
    assert pointer_in_model(tmp_path) == tmp_path / "pytorch_model.bin"
