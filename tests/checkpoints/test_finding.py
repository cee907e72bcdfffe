"""Manifests of checkpoints, and which checkpoint a run resumes from, replaces and deletes."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from builders import flip
from safetensors.torch import save_file

from headless_trainer.checkpoints.finding import (
    check_output_dir,
    checkpoint_to_resume,
    last_whole_checkpoint,
)
from headless_trainer.checkpoints.writing import CheckpointAside, rotate_checkpoints
from headless_trainer.files import manifest
from headless_trainer.files.manifest import MANIFEST_NAME, find_fault, read_facts, write_manifest

FILES = {
    "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "shards/part_0.pth", "token_counts.safetensors",
    "trainer_state.json",
}  # fmt: skip


def fill(folder: Path) -> Path:
    """What a checkpoint holds, in small: weights, states, counts, and a folder in it."""
    (folder / "shards").mkdir(parents=True)
    save_file({"weight": torch.arange(6.0)}, folder / "model.safetensors")
    save_file({"token_counts": torch.arange(6)}, folder / "token_counts.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"step": 3}, folder / name)
    torch.save([1, 2], folder / "shards" / "part_0.pth")
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    return folder


def checkpoint(run_dir: Path, step: int, **facts) -> Path:
    folder = fill(run_dir / f"checkpoint-{step}")
    write_manifest(folder, **facts)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def test_names_sizes_checksums_and_facts(tmp_path):
    folder = checkpoint(tmp_path, 3, processes=1, rows_a_step=64)
    written = json.loads((folder / MANIFEST_NAME).read_text())
    assert set(written["files"]) == FILES
    for name, entry in written["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"size": len(content), "checksum": hashlib.sha256(content).hexdigest()}
    assert written["files"]["trainer_state.json"]["checksum"].startswith("076e9758")
    assert read_facts(folder) == {"algorithm": "sha256", "processes": 1, "rows_a_step": 64}
    (folder / "README.md").write_text(
        "a card, which people edit, and to which scores are added later"
    )
    assert find_fault(folder) is None


def test_everything_reaches_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    folder = checkpoint(tmp_path, 1)
    assert sorted(synced) == sorted(path.stat().st_ino for path in [folder, *folder.rglob("*")])
    # After the files, before the two folders.
    assert synced[-3] == (folder / MANIFEST_NAME).stat().st_ino


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "shards/part_0.pth"])
def test_every_kind_of_damage_is_named(tmp_path, name):
    size = (fill(tmp_path / "a") / name).stat().st_size
    for step, damage, fault in (
        (1, cut, f"{name} has {size - 5:,} bytes instead of {size:,}"),
        (2, flip, f"{name} has changed since it was written: its sha256 differs"),
        (3, Path.unlink, f"{name} is missing"),
    ):
        folder = checkpoint(tmp_path, step)
        damage(folder / name)
        assert find_fault(folder) == fault


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path, 1)
    assert find_fault(folder) is None
    monkeypatch.setattr(manifest, "_measure", lambda path: "read again")
    assert find_fault(folder) is None
    os.utime(folder / "optimizer.pt", (1, 1))
    assert "differs" in find_fault(folder)


def test_no_flipped_bit_of_a_manifest_goes_unseen(tmp_path):
    """In a name or a number it would switch off the check of what a resume depends on."""
    folder = checkpoint(tmp_path, 1, processes=1, rows_a_step=64, stream=False)
    path = folder / MANIFEST_NAME
    content = path.read_bytes()
    assert len(content) > 1000
    for at in range(len(content)):
        spoiled = bytearray(content)
        spoiled[at] ^= 1 << at % 7
        path.write_bytes(spoiled)
        manifest._find_fault.cache_clear()
        assert find_fault(folder), spoiled


STATES = ["scheduler.pt", "rng_state.pth"]
LAYOUTS = {
    "one process": ["model.safetensors", "optimizer.pt", *STATES],
    "a bin file": ["pytorch_model.bin", "optimizer.pt", *STATES],
    "an adapter": ["adapter_model.safetensors", "optimizer.pt", *STATES],
    "shards of weights": ["model-00001-of-00001.safetensors", "optimizer.pt", *STATES],
    "FSDP": ["model.safetensors", "optimizer.bin", *STATES],
    "FSDP in shards": ["pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp", *STATES],
    "DeepSpeed": [
        *(
            "global_step3/mp_rank_00_model_states.pt",
            "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ),
        "rng_state.pth",
    ],
}


def lay_out(folder: Path, names: list[str], without: str = "", **facts) -> str | None:
    """The fault of a checkpoint with files of these names, whatever they hold."""
    for name in {*names, "token_counts.safetensors", "trainer_state.json"} - {without}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    write_manifest(folder, **facts)
    return find_fault(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_whole_and_nothing_of_it_may_be_missing(tmp_path, layout):
    """Two runs that shared a folder once wrote checkpoints without weights that called themselves
    whole.
    """
    assert lay_out(tmp_path / "whole", LAYOUTS[layout]) is None
    for name in [*LAYOUTS[layout], "token_counts.safetensors", "trainer_state.json"]:
        if layout == "DeepSpeed" and "optim" in name:  # it may be within its other files
            continue
        assert "it lacks " in lay_out(tmp_path / name.replace("/", "_"), LAYOUTS[layout], name), (
            name
        )


def test_of_several_processes_and_of_a_stream_each_has_its_file(tmp_path):
    names = [
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state_0.pth",
        "stream_0.json",
    ]
    two = {"processes": 2, "stream": True}
    assert lay_out(tmp_path / "a", names, **two) == "it lacks stream_1.json"
    assert lay_out(tmp_path / "b", [*names, "stream_1.json"], **two) == "it lacks rng_state_1.pth"
    assert lay_out(tmp_path / "c", [*names, "stream_1.json", "rng_state_1.pth"], **two) is None


def test_all_shards_of_an_index(tmp_path):
    folder, first, second = (
        tmp_path / "a",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": first, "b": second}})
    )
    assert lay_out(folder, ["optimizer.pt", *STATES, first]) == f"it lacks {second}"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "token_counts.safetensors"])
def test_what_lacks_something_never_gets_its_name(tmp_path, name):
    with (
        pytest.raises(
            OSError, match=r"checkpoint-5' could not be written to \(FileNotFoundError: it lacks "
        ),
        CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside,
    ):
        (fill(aside.folder) / name).unlink()
        aside.publish(processes=1)
    assert names(tmp_path) == []


CONTENTS = (
    b"", b"\0", b"\xff\xfe", b"null", b"[]", b"1e999", b"{}", b"[" * 100_000, b"9" * 100_000, b'"\\ud800"',
    b'{"files": null, "checksum": 1}', b'{"files": {"a": {"size": 1e999, "checksum": 1}}, "algorithm": "sha256"}',
)  # fmt: skip


@pytest.mark.parametrize("name", [MANIFEST_NAME, "model.safetensors.index.json"])
def test_any_content_has_a_fault_and_no_error(tmp_path, name):
    folder = checkpoint(tmp_path, 1)
    for content in CONTENTS:
        (folder / name).write_bytes(content)
        manifest._find_fault.cache_clear()
        if name != MANIFEST_NAME:
            write_manifest(folder)
        assert find_fault(folder), content


@pytest.mark.parametrize("name", [MANIFEST_NAME, "trainer_state.json", "model.safetensors"])
def test_folders_loops_and_pipes_in_the_place_of_files(tmp_path, name):
    for number, put in enumerate((Path.mkdir, lambda path: path.symlink_to(path.name), os.mkfifo)):
        folder = checkpoint(tmp_path, number)
        (folder / name).unlink()
        put(folder / name)
        assert find_fault(folder)
        shutil.rmtree(folder)


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for folder in (
        tmp_path / "loop",
        tmp_path / "missing",
        "a\0b",
        tmp_path / ("a" * 300),
        fill(tmp_path / "a"),
    ):
        assert find_fault(folder)


def test_the_one_before_a_damaged_one_with_a_warning(tmp_path, caplog):
    for step in (2, 9, 10):  # by number, not by name
        checkpoint(tmp_path, step)
    for name in ("checkpoint-x", "my-checkpoint-77", "checkpoint-77-old"):
        fill(tmp_path / name)
    (tmp_path / "checkpoint-88").touch()
    assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-10")
    assert not caplog.records
    cut(tmp_path / "checkpoint-10" / "model.safetensors")
    flip(tmp_path / "checkpoint-9" / "optimizer.pt")
    assert checkpoint_to_resume(True, tmp_path) == str(tmp_path / "checkpoint-2")
    assert (
        "checkpoint-10 is incomplete and was skipped: model.safetensors has 91 bytes instead of 96"
        in caplog.text
    )
    assert (
        "checkpoint-9 is incomplete and was skipped: optimizer.pt has changed since it was written"
        in caplog.text
    )


def test_none_whole_is_an_error_that_names_each(tmp_path):
    for step in (1, 2):
        cut(checkpoint(tmp_path, step) / "model.safetensors")
    for value in ("last", "auto", True):
        with pytest.raises(
            ValueError,
            match=r"no checkpoint in output_dir .*checkpoint-2: model.*checkpoint-1: model",
        ):
            checkpoint_to_resume(value, tmp_path)
    assert last_whole_checkpoint(tmp_path) is None


def test_auto_starts_where_there_is_none(tmp_path):
    assert checkpoint_to_resume("auto", tmp_path) is None
    assert checkpoint_to_resume("auto", tmp_path / "missing") is None
    with pytest.raises(FileNotFoundError, match="'last' but output_dir .* no checkpoint.*auto"):
        checkpoint_to_resume("last", tmp_path)
    folder = checkpoint(tmp_path, 4)
    assert checkpoint_to_resume("auto", tmp_path) == str(folder)
    for nothing in (None, False, "", "false"):
        assert checkpoint_to_resume(nothing, tmp_path) is None


def test_a_named_one_is_never_exchanged_for_another(tmp_path):
    folder = [checkpoint(tmp_path, step) for step in (1, 2)][1]
    assert checkpoint_to_resume(str(folder), tmp_path) == str(folder)
    flip(folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"checkpoint-2' is not a complete checkpoint: model.safetensors.*last"
    ):
        checkpoint_to_resume(str(folder), tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint-3' is not .* not a folder"):
        checkpoint_to_resume(str(tmp_path / "checkpoint-3"), tmp_path)


def test_one_that_was_killed_before_its_rename_is_published(tmp_path):
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path / ".incomplete", 2)
    cut(checkpoint(tmp_path / ".incomplete", 3) / "model.safetensors")
    fill(tmp_path / ".incomplete" / "checkpoint-4")  # no manifest yet, so nobody knows
    assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-2")
    assert names(tmp_path) == [".incomplete", "checkpoint-1", "checkpoint-2"]


def test_killed_between_the_two_renames_nothing_is_lost(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    replace, calls = os.replace, []

    def dies_second(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise Killed
        replace(source, target)

    checkpoint(tmp_path, 5)
    monkeypatch.setattr(os, "replace", dies_second)
    with pytest.raises(Killed), CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside:
        fill(aside.folder)
        aside.publish()
    assert names(tmp_path) == [".incomplete"]
    assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-5")


def test_another_process_neither_cleans_nor_renames(tmp_path):
    fill(tmp_path / ".incomplete" / "checkpoint-5")
    with CheckpointAside(str(tmp_path), "checkpoint-5", False) as aside:
        aside.publish()
    assert names(tmp_path / ".incomplete") == ["checkpoint-5"]


def rotate(tmp_path, limit, written, best=None) -> list[int]:
    keep = {str(tmp_path / f"checkpoint-{step}") for step in (written, best) if step is not None}
    rotate_checkpoints(tmp_path, limit, keep)
    return [
        int(path.removeprefix("checkpoint-")) for path in names(tmp_path) if path != ".incomplete"
    ]


def test_the_oldest_go_and_not_the_one_just_written(tmp_path, monkeypatch):
    for step in (8, 9, 10, 11):
        checkpoint(tmp_path, step)
    assert (
        rotate(tmp_path, None, 11)
        == rotate(tmp_path, 0, 11)
        == rotate(tmp_path, -1, 11)
        == [10, 11, 8, 9]
    )
    assert rotate(tmp_path, 3, 11) == [10, 11, 9]
    assert rotate(tmp_path, 2, 11, best=9) == [11, 9]
    assert rotate(tmp_path, 1, 11, best=9) == [11, 9]
    assert rotate(tmp_path, 1, 9) == [9] and names(tmp_path) == ["checkpoint-9"]
    # Another program has it open, on a network file system.
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    for step in (12, 13):
        checkpoint(tmp_path, step)
        assert rotate(tmp_path, 1, step) == [step]


def test_killed_while_deleting_nothing_half_is_left(tmp_path, monkeypatch):
    checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)

    def killed(folder, **_):
        if os.path.isdir(folder):
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        rotate(tmp_path, 1, 2)
    assert names(tmp_path) == [".incomplete", "checkpoint-2"]


def linked(tmp_path, step: int) -> Path:
    """A whole checkpoint that was moved to another disk, with a link in its place; return where it
    went.
    """
    checkpoint(tmp_path, step)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-disk" / f"checkpoint-{step}"
    elsewhere.parent.mkdir(exist_ok=True)
    (tmp_path / elsewhere.name).rename(elsewhere)
    (tmp_path / elsewhere.name).symlink_to(elsewhere)
    return elsewhere


def test_rotation_deletes_a_link_and_not_the_checkpoint_behind_it(tmp_path):
    elsewhere = linked(tmp_path, 1)
    checkpoint(tmp_path, 2), checkpoint(tmp_path, 3)
    assert rotate(tmp_path, 2, 3) == [2, 3]
    assert find_fault(elsewhere) is None


def test_a_checkpoint_of_the_same_step_replaces_a_link(tmp_path):
    elsewhere = linked(tmp_path, 5)
    with CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside:
        fill(aside.folder)
        aside.publish()
    assert names(tmp_path) == ["checkpoint-5"] and not (tmp_path / "checkpoint-5").is_symlink()
    assert find_fault(elsewhere) is None


def test_a_linked_checkpoint_is_resumed_from(tmp_path):
    checkpoint(tmp_path, 2)
    linked(tmp_path, 4)
    assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-4")


@pytest.mark.parametrize("value", [None, "last", "auto"])
def test_a_link_to_a_checkpoint_on_a_missing_disk_is_refused_before_the_run(tmp_path, value):
    checkpoint(tmp_path, 2)
    (tmp_path / "checkpoint-4").symlink_to("/mnt/away/checkpoint-4")
    with pytest.raises(ValueError, match="output_dir .*'checkpoint-4'.*'/mnt/away/checkpoint-4'"):
        check_output_dir(tmp_path, checkpoint_to_resume(value, tmp_path))


@pytest.mark.parametrize("value", [None, "last", "auto"])
@pytest.mark.parametrize("kind", ["file", "link to a folder", "link to nothing"])
def test_a_temporary_folder_that_is_none_is_refused_before_the_run(tmp_path, value, kind):
    aside = tmp_path / "run" / ".incomplete"
    checkpoint(aside.parent, 2)
    if kind == "file":
        aside.touch()
    else:
        aside.symlink_to(tmp_path if kind == "link to a folder" else tmp_path / "away")
    with pytest.raises(ValueError, match=r"output_dir .*'\.incomplete'"):
        check_output_dir(aside.parent, checkpoint_to_resume(value, aside.parent))
