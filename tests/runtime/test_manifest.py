"""Manifests of checkpoints, and which checkpoint a run resumes from, replaces and deletes."""

import errno
import hashlib
import json
import logging
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headless_trainer.runtime import manifest
from headless_trainer.runtime.checkpoint_aside import CheckpointAside, rotate_checkpoints
from headless_trainer.runtime.checkpoints import checkpoint_to_resume, last_whole_checkpoint
from headless_trainer.runtime.manifest import MANIFEST_NAME, find_fault, read_facts, write_manifest


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(manifest, "_found", {})


def fill(folder: Path) -> Path:
    """What a checkpoint holds, in small: weights, states, and a folder in it."""
    (folder / "shards").mkdir(parents=True)
    save_file({"weight": torch.arange(6.0)}, folder / "model.safetensors")
    torch.save({"step": 3}, folder / "optimizer.pt")
    torch.save([1, 2], folder / "shards" / "rng_state_0.pth")
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    return folder


def checkpoint(run_dir: Path, step: int) -> Path:
    folder = fill(run_dir / f"checkpoint-{step}")
    write_manifest(folder)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    """One bit in the middle: the length, and what a parser looks at, stay as they were."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


class TestManifest:
    def test_names_sizes_and_checksums_of_all_files(self, tmp_path):
        folder = checkpoint(tmp_path, 3)
        written = json.loads((folder / MANIFEST_NAME).read_text())
        assert sorted(written["files"]) == [
            "model.safetensors", "optimizer.pt", "shards/rng_state_0.pth", "trainer_state.json"
        ]  # fmt: skip
        for name, entry in written["files"].items():
            content = (folder / name).read_bytes()
            assert entry == {"size": len(content), "checksum": hashlib.sha256(content).hexdigest()}
        assert written["files"]["trainer_state.json"]["checksum"].startswith("076e9758")
        assert find_fault(folder) is None

    def test_a_card_may_change(self, tmp_path):
        """Scores are added to it later, and people edit it."""
        (fill(tmp_path / "checkpoint-3") / "README.md").write_text("a card")
        write_manifest(tmp_path / "checkpoint-3")
        (tmp_path / "checkpoint-3" / "README.md").write_text("a card with scores")
        assert find_fault(tmp_path / "checkpoint-3") is None

    def test_facts_are_kept(self, tmp_path):
        write_manifest(fill(tmp_path / "a"), processes=2, rows_a_step=64)
        facts = read_facts(tmp_path / "a")
        assert (facts["processes"], facts["rows_a_step"]) == (2, 64)
        assert read_facts(fill(tmp_path / "b")) == {}

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "shards/rng_state_0.pth"])
    def test_every_kind_of_damage_is_named(self, tmp_path, name):
        for step, damage, words in (
            (1, cut, f"{name} has .* bytes instead of"),
            (2, flip, f"{name} is not what was written: its sha256 differs"),
            (3, Path.unlink, f"{name} is missing"),
        ):
            folder = checkpoint(tmp_path, step)
            damage(folder / name)
            fault = find_fault(folder)
            assert fault and re.match(words, fault), fault

    @pytest.mark.parametrize("content", ["", "[]", '{"files": {"a": 1}, "algorithm": "sha256"}', '{"algorithm": '])
    def test_a_manifest_that_cannot_be_read(self, tmp_path, content):
        folder = checkpoint(tmp_path, 1)
        (folder / MANIFEST_NAME).write_text(content)
        assert find_fault(folder).startswith("manifest.json cannot be read (")

    def test_a_checksum_that_this_python_lacks(self, tmp_path):
        folder = checkpoint(tmp_path, 1)
        path = folder / MANIFEST_NAME
        path.write_text(path.read_text().replace('"sha256"', '"sha999"'))
        assert "cannot be read (ValueError" in find_fault(folder)

    def test_without_contents_a_flipped_bit_goes_unseen_but_not_for_good(self, tmp_path):
        folder = checkpoint(tmp_path, 1)
        flip(folder / "model.safetensors")
        assert find_fault(folder, contents=False) is None
        assert "differs" in find_fault(folder)
        assert "differs" in find_fault(folder, contents=False)  # known by now

    def test_what_has_not_changed_is_not_read_again(self, tmp_path, monkeypatch):
        folder = checkpoint(tmp_path, 1)
        monkeypatch.setattr(manifest, "_content_fault", lambda *_: pytest.fail("read again"))
        assert find_fault(folder) is None
        os.utime(folder / "optimizer.pt", (1, 1))
        with pytest.raises(pytest.fail.Exception, match="read again"):
            find_fault(folder)

    def test_everything_reaches_the_disk(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
        folder = checkpoint(tmp_path, 1)
        assert sorted(synced) == sorted(path.stat().st_ino for path in [folder, *folder.rglob("*")])
        assert synced[-3] == (folder / MANIFEST_NAME).stat().st_ino  # after the files, before the two folders


class TestWithoutManifest:
    """As `transformers.Trainer` writes them."""

    def test_a_sound_structure_is_accepted(self, tmp_path):
        assert find_fault(fill(tmp_path / "a")) is None

    @pytest.mark.parametrize(
        "name, damage, words",
        [
            ("model.safetensors", cut, r"model.safetensors cannot be read \(SafetensorError"),
            ("optimizer.pt", cut, "optimizer.pt is cut short"),
            ("shards/rng_state_0.pth", cut, "shards/rng_state_0.pth is cut short"),
            ("trainer_state.json", cut, r"trainer_state.json cannot be read \(JSONDecodeError"),
            ("trainer_state.json", Path.unlink, "trainer_state.json is missing"),
        ],
    )
    def test_a_broken_one_is_not(self, tmp_path, name, damage, words):
        folder = fill(tmp_path / "a")
        damage(folder / name)
        with pytest.raises(ValueError, match=f"a' is not a whole checkpoint: {words}"):
            checkpoint_to_resume(str(folder), tmp_path)


class TestWhichToResume:
    def test_the_one_before_a_damaged_one_with_a_warning(self, tmp_path, caplog):
        for step in (2, 9, 10):  # by number, not by name
            checkpoint(tmp_path, step)
        assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-10")
        assert not caplog.records
        cut(tmp_path / "checkpoint-10" / "model.safetensors")
        flip(tmp_path / "checkpoint-9" / "optimizer.pt")
        assert checkpoint_to_resume(True, tmp_path) == str(tmp_path / "checkpoint-2")
        text = caplog.text
        assert "checkpoint-10 is not whole, so it is passed over: model.safetensors has 91 bytes instead of 96" in text
        assert "checkpoint-9 is not whole, so it is passed over: optimizer.pt is not what was written" in text

    def test_none_whole_is_an_error_that_names_each(self, tmp_path):
        for step in (1, 2):
            cut(checkpoint(tmp_path, step) / "model.safetensors")
        for value in ("last", "auto", True):
            with pytest.raises(
                ValueError, match=r"no checkpoint in output_dir .*checkpoint-2: model.*checkpoint-1: model"
            ):
                checkpoint_to_resume(value, tmp_path)
        assert last_whole_checkpoint(tmp_path) is None

    def test_auto_starts_where_there_is_none(self, tmp_path):
        assert checkpoint_to_resume("auto", tmp_path) is None
        assert checkpoint_to_resume("auto", tmp_path / "missing") is None
        with pytest.raises(
            FileNotFoundError, match="'last' but output_dir .* no checkpoint.*resume_from_checkpoint auto"
        ):
            checkpoint_to_resume("last", tmp_path)
        folder = checkpoint(tmp_path, 4)
        assert checkpoint_to_resume("auto", tmp_path) == str(folder)

    @pytest.mark.parametrize("value", [None, False, "", "false"])
    def test_nothing_asked(self, tmp_path, value):
        checkpoint(tmp_path, 4)
        assert checkpoint_to_resume(value, tmp_path) is None

    def test_a_named_one_is_never_exchanged_for_another(self, tmp_path):
        checkpoint(tmp_path, 1)
        folder = checkpoint(tmp_path, 2)
        assert checkpoint_to_resume(str(folder), tmp_path) == str(folder)
        flip(folder / "model.safetensors")
        with pytest.raises(ValueError, match=r"checkpoint-2' is not a whole checkpoint: model.safetensors.*last"):
            checkpoint_to_resume(str(folder), tmp_path)
        with pytest.raises(FileNotFoundError, match=r"checkpoint-3' is not a folder. The last checkpoint .*-2'"):
            checkpoint_to_resume(str(tmp_path / "checkpoint-3"), tmp_path)

    def test_one_that_was_killed_before_its_rename_is_published(self, tmp_path):
        checkpoint(tmp_path, 1)
        checkpoint(tmp_path / ".incomplete", 2)
        cut(checkpoint(tmp_path / ".incomplete", 3) / "model.safetensors")
        fill(tmp_path / ".incomplete" / "checkpoint-4")  # no manifest yet, so nobody knows
        assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-2")
        assert names(tmp_path) == [".incomplete", "checkpoint-1", "checkpoint-2"]


class TestWriting:
    def test_one_of_the_same_step_is_replaced(self, tmp_path):
        old = checkpoint(tmp_path, 5)
        cut(old / "model.safetensors")
        with CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside:
            fill(aside.aside / "checkpoint-5")
            aside.publish(processes=3)
        assert names(tmp_path) == ["checkpoint-5"] and find_fault(old) is None and read_facts(old)["processes"] == 3

    def test_killed_between_the_two_renames_nothing_is_lost(self, tmp_path, monkeypatch):
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
            fill(aside.aside / "checkpoint-5")
            aside.publish()
        assert names(tmp_path) == [".incomplete"]
        assert checkpoint_to_resume("last", tmp_path) == str(tmp_path / "checkpoint-5")

    def test_a_full_disk_is_told_what_a_whole_one_takes(self, tmp_path):
        (checkpoint(tmp_path, 4) / "large").write_bytes(
            bytes(3 << 20)
        )  # more than the half that was written of the next
        write_manifest(tmp_path / "checkpoint-4")
        with (
            pytest.raises(
                OSError, match=r"A checkpoint of this run takes 3\.0 MiB; .* last whole checkpoint is '.*-4'"
            ),
            CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside,
        ):
            (fill(aside.aside / "checkpoint-5") / "large").write_bytes(bytes(1 << 20))
            raise OSError(errno.ENOSPC, "No space left on device")
        assert names(tmp_path) == ["checkpoint-4"]

    def test_another_process_neither_cleans_nor_renames(self, tmp_path):
        fill(tmp_path / ".incomplete" / "checkpoint-5")
        with CheckpointAside(str(tmp_path), "checkpoint-5", False) as aside:
            aside.publish()
        assert names(tmp_path / ".incomplete") == ["checkpoint-5"]


class TestRotation:
    def rotate(self, tmp_path, limit, written, best=None):
        keep = {str(tmp_path / f"checkpoint-{step}") for step in (written, best) if step is not None}
        rotate_checkpoints(tmp_path, limit, keep)
        return [int(path.removeprefix("checkpoint-")) for path in names(tmp_path) if path != ".incomplete"]

    def test_the_oldest_go(self, tmp_path):
        for step in (8, 9, 10, 11):
            checkpoint(tmp_path, step)
        assert self.rotate(tmp_path, None, 11) == self.rotate(tmp_path, 0, 11) == [10, 11, 8, 9]
        assert self.rotate(tmp_path, 3, 11) == [10, 11, 9]
        assert self.rotate(tmp_path, 2, 11, best=9) == [11, 9]
        assert self.rotate(tmp_path, 1, 11, best=9) == [11, 9]
        assert self.rotate(tmp_path, 1, 11) == [11] and names(tmp_path) == ["checkpoint-11"]

    def test_the_one_just_written_outlives_those_with_more_steps(self, tmp_path):
        for step in (10, 13, 20):
            checkpoint(tmp_path, step)
        cut(tmp_path / "checkpoint-20" / "model.safetensors")
        assert self.rotate(tmp_path, 2, 13) == [10, 13]  # not 20, although it has the most steps
        assert self.rotate(tmp_path, 1, 13) == [13]

    def test_killed_while_deleting_nothing_half_is_left(self, tmp_path, monkeypatch):
        checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)

        def killed(folder, **_):
            if os.path.isdir(folder):
                raise KeyboardInterrupt

        monkeypatch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            self.rotate(tmp_path, 1, 2)
        assert names(tmp_path) == [".incomplete", "checkpoint-2"]


def test_other_folders_are_no_checkpoints(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for name in ("checkpoint-x", "my-checkpoint-7", "checkpoint-7-old"):
        fill(tmp_path / name)
    (tmp_path / "checkpoint-8").touch()
    assert last_whole_checkpoint(tmp_path) is None and not caplog.records
