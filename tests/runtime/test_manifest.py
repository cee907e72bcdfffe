"""Manifests of checkpoints, and which checkpoint a run resumes from, replaces and deletes."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from random import Random

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
    """What a checkpoint holds, in small: weights, states, counts, and a folder in it."""
    (folder / "shards").mkdir(parents=True)
    save_file({"weight": torch.arange(6.0)}, folder / "model.safetensors")
    save_file({"token_counts": torch.arange(6)}, folder / "token_counts.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"step": 3}, folder / name)
    torch.save([1, 2], folder / "shards" / "part_0.pth")
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
            "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "shards/part_0.pth",
            "token_counts.safetensors", "trainer_state.json",
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

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "shards/part_0.pth"])
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
        assert find_fault(folder) is None
        monkeypatch.setattr(manifest, "_content_fault", lambda *_: pytest.fail("read again"))
        assert find_fault(folder) is None
        os.utime(folder / "optimizer.pt", (1, 1))
        with pytest.raises(pytest.fail.Exception, match="read again"):
            find_fault(folder)

    def test_its_own_facts_are_protected(self, tmp_path):
        """A bit flipped in a name or a number would switch off the check of what a resume depends on."""
        write_manifest(fill(tmp_path / "a"), processes=1, rows_a_step=64, stream=False)
        path, facts = tmp_path / "a" / MANIFEST_NAME, read_facts(tmp_path / "a")
        content = path.read_bytes()
        assert len(content) > 1000
        for at in range(0, len(content), 2):
            spoiled = bytearray(content)
            spoiled[at] ^= 1 << at % 7
            path.write_bytes(spoiled)
            manifest._found.clear()
            seen = find_fault(tmp_path / "a", contents=False) is not None
            assert seen or facts.items() <= read_facts(tmp_path / "a").items(), spoiled

    def test_an_older_one_without_a_checksum_of_its_own_is_read(self, tmp_path):
        path = checkpoint(tmp_path, 1) / MANIFEST_NAME
        older = {name: value for name, value in json.loads(path.read_text()).items() if name != "checksum"}
        path.write_text(json.dumps(older | {"processes": 1}))
        assert find_fault(path.parent) is None
        path.write_text(json.dumps(older | {"processes": "1"}))
        assert find_fault(path.parent) == "manifest.json cannot be read (ValueError: its processes is '1')"

    @pytest.mark.parametrize("name", ["../other", "/etc/hostname", "shards/../../other"])
    def test_it_names_nothing_outside_of_its_folder(self, tmp_path, name):
        (tmp_path / "other").write_text("")
        folder = checkpoint(tmp_path, 1)
        entry = {"size": 0, "checksum": hashlib.sha256(b"").hexdigest()}
        content = json.loads((folder / MANIFEST_NAME).read_text())
        del content["checksum"]
        content["files"][name] = entry
        (folder / MANIFEST_NAME).write_text(json.dumps(content))
        assert "which is not in the folder" in find_fault(folder)

    def test_everything_reaches_the_disk(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
        folder = checkpoint(tmp_path, 1)
        assert sorted(synced) == sorted(path.stat().st_ino for path in [folder, *folder.rglob("*")])
        assert synced[-3] == (folder / MANIFEST_NAME).stat().st_ino  # after the files, before the two folders


LAYOUTS = {
    "one process": ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
    "a bin file": ["pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
    "an adapter": ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
    "shards of weights": ["model-00001-of-00001.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
    "FSDP": ["model.safetensors", "optimizer.bin", "scheduler.pt", "rng_state.pth"],
    "FSDP in shards": [
        "pytorch_model_fsdp_0/__0_0.distcp",
        "optimizer_0/__0_0.distcp",
        "scheduler.pt",
        "rng_state.pth",
    ],
    "DeepSpeed": [
        "global_step3/mp_rank_00_model_states.pt",
        "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "rng_state.pth",
    ],
}


class TestWhatIsNeeded:
    """Two runs that shared a folder once wrote checkpoints without weights that called themselves whole."""

    def lay_out(self, folder: Path, names: list[str]) -> Path:
        for name in [*names, "token_counts.safetensors", "trainer_state.json"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        return folder

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_layout_is_whole_and_nothing_of_it_may_be_missing(self, tmp_path, layout):
        folder = self.lay_out(tmp_path / "whole", LAYOUTS[layout])
        write_manifest(folder)
        assert find_fault(folder) is None
        for name in [*LAYOUTS[layout], "token_counts.safetensors", "trainer_state.json"]:
            if layout == "DeepSpeed" and "optim" in name:  # it may be within its other files
                continue
            folder = self.lay_out(tmp_path / name.replace("/", "_"), LAYOUTS[layout])
            (folder / name).unlink()
            write_manifest(folder)
            assert (find_fault(folder) or "").startswith("it lacks "), name

    def test_of_several_processes_and_of_a_stream_each_has_its_file(self, tmp_path):
        names = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "stream_0.json"]
        folder = self.lay_out(tmp_path / "a", names)
        write_manifest(folder, processes=2, stream=True)
        assert find_fault(folder) == "it lacks stream_1.json"
        folder = self.lay_out(tmp_path / "b", [*names, "stream_1.json"])
        write_manifest(folder, processes=2, stream=True)
        assert find_fault(folder) == "it lacks rng_state_1.pth"
        folder = self.lay_out(tmp_path / "c", [*names, "stream_1.json", "rng_state_1.pth"])
        write_manifest(folder, processes=2, stream=True)
        assert find_fault(folder) is None

    def test_all_shards_of_an_index(self, tmp_path):
        names = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model-00001-of-00002.safetensors"]
        folder = self.lay_out(tmp_path / "a", names)
        shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        write_manifest(folder)
        assert find_fault(folder) == "it lacks model-00002-of-00002.safetensors"

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "token_counts.safetensors"])
    def test_what_lacks_something_never_gets_its_name(self, tmp_path, name):
        with (
            pytest.raises(OSError, match=r"checkpoint-5' could not be written \(FileNotFoundError: it lacks "),
            CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside,
        ):
            (fill(aside.aside / "checkpoint-5") / name).unlink()
            aside.publish(processes=1)
        assert names(tmp_path) == []

    def test_auto_passes_over_it_with_a_warning(self, tmp_path, caplog):
        checkpoint(tmp_path, 1)
        (fill(tmp_path / "checkpoint-2") / "model.safetensors").unlink()
        write_manifest(tmp_path / "checkpoint-2")
        assert checkpoint_to_resume("auto", tmp_path) == str(tmp_path / "checkpoint-1")
        assert "checkpoint-2 is not whole, so it is passed over: it lacks its weights" in caplog.text

    def test_a_model_alone_is_written_and_not_gone_on_from(self, tmp_path):
        with CheckpointAside(str(tmp_path), "checkpoint-5", True) as aside:
            fill(aside.aside / "checkpoint-5")
            for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
                (aside.folder / name).unlink()
            aside.publish(True, processes=2)
        with pytest.raises(
            ValueError, match="lacks the state of its optimizer, as with save_only_model: .* --model_name_or_path"
        ):
            checkpoint_to_resume("last", tmp_path)


class TestHostileFolders:
    """`find_fault` decides what a run resumes from, so it has an answer for everything."""

    CONTENTS = (
        b"", b"\0", b"\xff\xfe", b"null", b"[]", b"1e999", b"{}", b"[" * 100_000, b"9" * 100_000, b'"\\ud800"',
        b'{"files": null}', b'{"files": [], "algorithm": 3}', b'{"files": {}, "algorithm": ["sha256"]}',
        b'{"files": {"a": {"size": 1e999, "checksum": 1}}, "algorithm": "sha256"}',
        b'{"files": {"a": {"size": "1", "checksum": null}}, "algorithm": "sha256"}',
        b'{"files": {"model.safetensors": {"size": "x", "checksum": 1}}, "algorithm": "sha256"}',
        b'{"files": {"\\u0000": {"size": 1, "checksum": ""}}, "algorithm": "sha256"}',
        b'{"files": {"\\ud800": {"size": 1, "checksum": ""}}, "algorithm": "sha256"}',
        b'{"files": {"model.safetensors": {"size": 96, "checksum": ""}}, "algorithm": "shake_128"}',
        b'{"files": {"shards": {"size": 96, "checksum": ""}}, "algorithm": "sha256", "processes": 1' + b"0" * 999 + b"}",
    )  # fmt: skip

    @pytest.mark.parametrize(
        "name", [MANIFEST_NAME, "trainer_state.json", "model.safetensors.index.json", "optimizer.pt"]
    )
    def test_any_content_has_a_fault_and_no_error(self, tmp_path, name):
        folder = fill(tmp_path / "a")
        for content in self.CONTENTS:
            (folder / name).write_bytes(content)
            manifest._found.clear()
            assert find_fault(folder), content
            if name != MANIFEST_NAME:
                write_manifest(folder)
                find_fault(folder)
                (folder / MANIFEST_NAME).unlink()

    def test_random_bytes(self, tmp_path):
        random = Random(0)
        folder = checkpoint(tmp_path, 1)
        content = (folder / MANIFEST_NAME).read_bytes()
        for _ in range(300):
            spoiled = bytearray(content)
            for _ in range(random.randrange(1, 30)):
                spoiled[random.randrange(len(spoiled))] = random.randrange(256)
            (folder / MANIFEST_NAME).write_bytes(spoiled)
            manifest._found.clear()
            assert find_fault(folder)

    @pytest.mark.parametrize("name", [MANIFEST_NAME, "trainer_state.json", "model.safetensors", "optimizer.pt"])
    def test_folders_loops_and_pipes_in_the_place_of_files(self, tmp_path, name):
        for number, put in enumerate((Path.mkdir, lambda path: path.symlink_to(path.name), os.mkfifo)):
            for has_manifest in (True, False):
                folder = (checkpoint if has_manifest else lambda run, step: fill(run / str(step)))(tmp_path, number)
                (folder / name).unlink(missing_ok=True)
                put(folder / name)
                assert find_fault(folder)
                shutil.rmtree(folder)

    def test_a_folder_that_is_none(self, tmp_path):
        (tmp_path / "loop").symlink_to("loop")
        for folder in (tmp_path / "loop", tmp_path / "missing", "a\0b", tmp_path / ("a" * 300)):
            assert find_fault(folder)

    def test_what_may_not_be_read(self, tmp_path, monkeypatch):
        """Not by permissions, which do not hold for root."""

        def refused(path, *args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        folder = checkpoint(tmp_path, 1)
        for name in ("read_text", "stat", "is_dir", "is_file", "rglob"):
            with monkeypatch.context() as patch:
                patch.setattr(Path, name, refused)
                assert find_fault(folder)


class TestWithoutManifest:
    """As `transformers.Trainer` writes them."""

    def test_a_sound_structure_is_accepted(self, tmp_path):
        assert find_fault(fill(tmp_path / "a")) is None

    @pytest.mark.parametrize(
        "name, damage, words",
        [
            ("model.safetensors", cut, r"model.safetensors cannot be read \(SafetensorError"),
            ("optimizer.pt", cut, "optimizer.pt is cut short"),
            ("shards/part_0.pth", cut, "shards/part_0.pth is cut short"),
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
            aside.publish(rows_a_step=3)
        assert names(tmp_path) == ["checkpoint-5"] and find_fault(old) is None and read_facts(old)["rows_a_step"] == 3

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
