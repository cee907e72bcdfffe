"""What a run survives, and how it ends where it cannot: damaged checkpoints, full disks, numbers
that are not finite.
"""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import flip, make_trainer, tiny_model
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState

from headless_trainer import HeadlessTrainer
from headless_trainer.checkpoints.finding import check_processes
from headless_trainer.files.manifest import find_fault, read_facts
from headless_trainer.files.whole import write_whole

ROWS = [{"input_ids": torch.arange(start, start + 8) % 50} for start in range(24)]


def trainer(folder, *, kind=HeadlessTrainer, callbacks=(), **settings):
    settings = {
        "task": "clm", "max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2,
        "optim": "adamw_torch",
    } | settings  # fmt: skip
    model = tiny_model("clm", layers=1, positions=8, dropout=0.1)
    return make_trainer(
        folder, model, ROWS, settings, kind, eval_dataset=ROWS[:4], callbacks=list(callbacks)
    )


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def assert_equal(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys() and len(want) > 5
    assert all(torch.equal(got[name], want[name]) for name in want)


class TestDamage:
    def test_the_run_goes_on_from_the_checkpoint_before_and_ends_the_same(self, tmp_path, caplog):
        trainer(tmp_path).train()
        want = weights(tmp_path / "checkpoint-6")
        for step in (4, 6):
            assert find_fault(tmp_path / f"checkpoint-{step}") is None
            flip(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
        run = trainer(tmp_path)
        run.train(resume_from_checkpoint=True)
        assert (
            "checkpoint-6 is incomplete" in caplog.text
            and "optimizer.pt has changed since it was" in caplog.text
        )
        assert [log["step"] for log in run.state.log_history if "loss" in log] == [1, 2, 3, 4, 5, 6]
        assert_equal(weights(tmp_path / "checkpoint-6"), want)
        # Replaced.
        assert all(find_fault(tmp_path / f"checkpoint-{step}") is None for step in (2, 4, 6))

    def test_going_back_is_refused_where_last_would_take_a_later_one(self, tmp_path):
        trainer(tmp_path).train()
        back = str(tmp_path / "checkpoint-2")
        with pytest.raises(
            ValueError,
            match="checkpoint-2' is of step 2 but output_dir .* holds 'checkpoint-6' too",
        ):
            trainer(tmp_path).train(resume_from_checkpoint=back)
        for step in (4, 6):
            flip(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
        trainer(tmp_path, save_total_limit=1, max_steps=3).train(resume_from_checkpoint=back)
        # It outlives damaged ones.
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]

    def test_a_renamed_run_keeps_its_best_checkpoint(self, tmp_path, caplog):
        settings = {
            "eval_strategy": "steps",
            "eval_steps": 2,
            "load_best_model_at_end": True,
            "save_total_limit": 2,
        }
        settings |= {"eval_full_vocabulary": False, "greater_is_better": True}
        trainer(tmp_path / "a", max_steps=4, **settings).train()  # the first is the best
        best = weights(tmp_path / "a" / "checkpoint-2")
        for before, after in (("a", "b"), ("b", "c")):  # with steps left to train, and with none
            (tmp_path / before).rename(tmp_path / after)
            run = trainer(tmp_path / after, **settings)
            run.train(resume_from_checkpoint=True)
            assert_equal(
                {name: each for name, each in run.model.state_dict().items() if name in best}, best
            )
        assert run.state.global_step == 6 and "no longer exists" not in caplog.text
        shutil.rmtree(tmp_path / "c" / "checkpoint-2")
        trainer(tmp_path / "c", **settings).train(resume_from_checkpoint=True)
        assert (
            "The best checkpoint no longer exists: load_best_model_at_end takes the last weights"
            in caplog.text
        )

    def test_the_best_one_and_the_last_stay_when_the_others_go(self, tmp_path):
        settings = {
            "eval_strategy": "steps",
            "eval_steps": 2,
            "load_best_model_at_end": True,
            "save_total_limit": 1,
        }
        # The first is the best.
        run = trainer(tmp_path, eval_full_vocabulary=False, greater_is_better=True, **settings)
        run.train()
        assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
        # A repeated command goes on from the last.
        assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
            "checkpoint-2",
            "checkpoint-6",
        ]
        assert (
            not (tmp_path / ".incomplete").exists()
            and find_fault(run.state.best_model_checkpoint) is None
        )

    def test_save_only_model_is_not_gone_on_from(self, tmp_path):
        trainer(tmp_path, save_only_model=True, max_steps=2).train()
        assert (tmp_path / "checkpoint-2" / "model.safetensors").is_file()
        for value in ("auto", str(tmp_path / "checkpoint-2")):
            with pytest.raises(
                ValueError, match="lacks the state of its optimizer, as with save_only_model"
            ):
                trainer(tmp_path).train(resume_from_checkpoint=value)


class TestOtherProcesses:
    def test_the_same_rows_a_step_are_accepted_with_a_warning_and_others_refused(self, caplog):
        saved = {"processes": 4, "rows_a_step": 64}
        check_processes(saved, 4, 64)
        assert not caplog.records
        check_processes(saved, 2, 64)
        assert "written by 4 processes and this run has 2: rows and masks" in caplog.text
        with pytest.raises(
            ValueError,
            match=r"64 rows .*: 4\) but .* 32 \(.*: 2\).*_steps 64, or .*ignore_data_skip",
        ):
            check_processes(saved, 2, 32)

    def test_a_checkpoint_knows_its_rows(self, tmp_path):
        trainer(tmp_path, max_steps=2, gradient_accumulation_steps=3).train()
        facts = read_facts(tmp_path / "checkpoint-2")
        assert (facts["processes"], facts["rows_a_step"]) == (1, 12)
        with pytest.raises(
            ValueError, match=r"12 rows per step .* this run has 8 .*gradient_accumulation_steps 12"
        ):
            trainer(tmp_path, gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
        trainer(tmp_path, gradient_accumulation_steps=2, ignore_data_skip=True).train(
            resume_from_checkpoint=True
        )

    def test_the_same_rows_in_other_shares_give_the_same_numbers(self, tmp_path):
        """What is exact of a resume with other processes: the rows.

        Here 3 x 4 are gone on with as 1 x 12.
        """
        settings = {
            "negatives": "step",
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "save_steps": 3,
        }

        def without_dropout(folder, **more):
            run = trainer(tmp_path / folder, **settings | more)
            for module in run.model.modules():
                module.p = 0.0
            return run

        without_dropout("whole", gradient_accumulation_steps=3).train()
        without_dropout("split", gradient_accumulation_steps=3, max_steps=3).train()
        without_dropout("split", per_device_train_batch_size=12).train(resume_from_checkpoint=True)
        got, want = (
            weights(tmp_path / "split" / "checkpoint-6"),
            weights(tmp_path / "whole" / "checkpoint-6"),
        )
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)


class TestFullDisk:
    @pytest.mark.parametrize("writer", ["safetensors.torch.save_file", "torch.save", "json.dump"])
    def test_the_last_checkpoint_stays_and_the_half_written_one_goes(
        self, tmp_path, monkeypatch, writer
    ):
        run = trainer(tmp_path, save_total_limit=1)

        def full(*args, **kwargs):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        class Fill(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    monkeypatch.setattr(writer, full)
                    monkeypatch.setattr("headless_trainer.checkpoints.token_counts.save_file", full)

        run.add_callback(Fill())
        with pytest.raises(
            OSError, match=r"checkpoint-4' could not.*No space left.*MiB are free.*checkpoint-2'.*"
        ):
            run.train()
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
        trainer(tmp_path, save_total_limit=1).train(resume_from_checkpoint="last")
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-6"]

    def test_of_the_model_at_the_end_nothing_half_is_left(self, tmp_path, monkeypatch):
        run = trainer(tmp_path, save_strategy="no", max_steps=1)
        run.train()
        run.save_model()
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert {"model.safetensors", "token_counts.safetensors", "settings.json"} <= before.keys()

        def half(tensors, path, *args, **kwargs):
            Path(path).write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")

        for writer in (
            "transformers.modeling_utils.safe_save_file",
            "headless_trainer.checkpoints.token_counts.save_file",
        ):
            with monkeypatch.context() as patch:
                patch.setattr(writer, half)
                with pytest.raises(
                    OSError,
                    match=r"could not be written to \(SafetensorError: .*No space .* are free",
                ):
                    run.save_model()
                with pytest.raises(OSError, match="new' could not be written"):
                    run.save_model(str(tmp_path / "new"))
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_small_files_are_written_whole_or_not_at_all(self, tmp_path, monkeypatch):
        def half(path, content):
            write(path, content[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        run, write = trainer(tmp_path), Path.write_bytes
        monkeypatch.setattr(
            TrainerState, "save_to_json", lambda state, path: half(Path(path), b"{....}")
        )
        monkeypatch.setattr(Path, "write_bytes", half)
        for save in (run.save_state, lambda: write_whole(tmp_path / "a.json", b"abcdef")):
            with pytest.raises(OSError, match="No space left"):
                save()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("saves", [("--save_steps", "2"), ("--save_strategy", "no")])
    def test_files_that_really_cannot_grow(self, tmp_path, text_file, saves):
        """A limit on the size of files stands in for the disk: the writers of torch and safetensors
        meet a real error.
        """
        flags = f"--model_type gpt2 --train_tokenizer --vocab_size 320 --train_file {text_file} --output_dir {tmp_path}/run "
        flags += "--config_overrides n_embd=32,n_layer=2,n_head=2 --max_seq_length 16 --use_cpu --max_steps 4"
        code = (
            "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.argv = "
            "sys.argv[1:];runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        limited = [sys.executable, "-c", code, "run_pretrain.py", *flags.split(), *saves]
        options = {
            "cwd": Path(__file__).parents[2],
            "env": os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")},
        }
        ended = subprocess.run(limited, **options, capture_output=True, text=True)
        assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
        what = (
            "checkpoint-2' could not be written"
            if "2" in saves
            else "run' could not be written to (SafetensorError"
        )
        assert what in ended.stderr.splitlines()[-1], ended.stderr
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["tokenizer"]


class Spoil(TrainerCallback):
    """Makes the model's last parameter hold a value at the end of a step."""

    def __init__(self, step: int, value: float):
        self.step, self.value = step, value

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            list(model.parameters())[-1].data[0] = self.value


class WithBadGradient(HeadlessTrainer):
    """The loss is finite and its gradient is not, as when a square root or a division
    meets zero.
    """

    bad_step, value = 3, float("nan")

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training and self.state.global_step + 1 == self.bad_step:
            loss.register_hook(lambda grad: grad * self.value)
        return loss


class TestNotFinite:
    @pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"sparse_embedding_updates": True}])
    def test_a_gradient_stops_the_run_before_the_weights_change(
        self, tmp_path, max_grad_norm, value, settings
    ):
        run = trainer(tmp_path, kind=WithBadGradient, max_grad_norm=max_grad_norm, **settings)
        run.value = value
        said = r"gradient is (nan|inf) at step 3, .*checkpoint-2'. Resume with a lower"
        with pytest.raises(FloatingPointError, match=said):
            run.train()
        assert_equal(dict(run.model.state_dict()), weights(tmp_path / "checkpoint-2"))
        assert not (tmp_path / "checkpoint-4").exists()

    def test_weights_that_are_not_finite_are_never_saved(self, tmp_path):
        run = trainer(tmp_path, callbacks=[Spoil(4, float("inf"))])
        with pytest.raises(
            FloatingPointError, match=r"of ln_f.bias are not finite after step 4.*checkpoint-2'"
        ):
            run.train()
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]

    @pytest.mark.parametrize("hidden", [False, True])
    def test_a_loss_stops_the_run_whatever_the_log_leaves_out(self, tmp_path, hidden):
        spoil = Spoil(3, float("nan"))
        run = trainer(
            tmp_path, logging_nan_inf_filter=hidden, callbacks=[spoil], save_strategy="no"
        )
        with pytest.raises(FloatingPointError, match="The loss is nan at step 4"):
            run.train()
        assert torch.tensor(run.evaluate()["eval_loss"]).isnan()  # which an evaluation shows

    def test_steps_that_fp16_skips_are_no_failure_until_there_is_no_end(
        self, tmp_path, monkeypatch
    ):
        run = trainer(tmp_path, max_grad_norm=0.0)
        scale = [2.0**16]
        run.accelerator.scaler = type("Scaler", (), {"get_scale": lambda self: scale[0]})()
        # Also by the launcher, without args.fp16.
        monkeypatch.setattr(type(run.accelerator), "mixed_precision", "fp16")
        assert run._get_grad_norm(run.model, torch.tensor(float("inf"))).isinf()
        scale[0] = 0.5
        assert run._get_grad_norm(run.model, torch.tensor(3.0)) == 3.0
        run.state.global_step = 49
        with pytest.raises(
            FloatingPointError, match="although the fp16 loss scale has fallen to 0.5"
        ):
            run._get_grad_norm(run.model, torch.tensor(float("nan")))
