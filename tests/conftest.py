"""Settings and small inputs that the tests share. Nothing here touches the network."""

import gc
import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest
from hub_standin import StandIn

# Fixtures import libraries when they are used: the process that only hands out tests to others
# needs none. So these are set before the first import of torch, transformers or datasets, which
# read them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = (
    "1"  # one worker of pytest-xdist for each core already keeps the cores busy
)
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Runs that are to be bit-identical on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Compiled modules are kept also where the environment says not to: each worker would compile all
# tests again, for 5 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Folders of tests lie in memory where it has room: some disks take 3 ms to delete a file, and
# tests leave thousands.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Files whose models take seconds to make: all tests of each go to one worker.
MADE_ONCE = (
    "model_card.py",
    "cards/test_file.py",
    "zero_shot.py",
    "test_lm_eval.py",
    "test_logs.py",
    "test_clients.py",
)

gc.disable()  # until the first test: modules are no garbage
TESTS = itertools.count(1)
MODULES_AT_LAST_FREEZE = 0


@pytest.hookimpl(tryfirst=True)  # before that which hands out the tests
def pytest_runtestloop():
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by `xdist_group`: pytest-xdist 3.8 groups nothing under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda test: (
        file if (file := test.partition("::")[0]).endswith(MADE_ONCE) else test
    )
    return scheduler


def pytest_runtest_setup(item):
    """Skip what needs a GPU where there is none, and leave what stays out of garbage collections.

    `Trainer` asks for a collection in each training, which takes up to 0.4 s with all that is
    imported by then: again whenever a test has imported a large library, and now and then, since
    pytest and caches of libraries keep more and more objects.
    """
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
    global MODULES_AT_LAST_FREEZE
    if next(TESTS) % 50 == 0 or len(sys.modules) > MODULES_AT_LAST_FREEZE + 100:
        gc.collect()
        gc.freeze()
        MODULES_AT_LAST_FREEZE = len(sys.modules)


def pytest_unconfigure():
    # The process ends, and nothing is worth a collection, but triton 3.9 writes lines about what is
    # not collected, below the summary.
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def each_picture_once():
    """Pictures that differ in their numbers alone are drawn once: drawing is a quarter of the time
    of a tiny run.
    """
    import numpy as np

    from headless_trainer.presentation import pictures

    to_png, drawn = pictures.to_png, {}

    def look(axis):
        lines = [
            (line.get_label(), np.isfinite(line.get_xydata().astype(float)).all())
            for line in axis.lines
        ]
        return [axis.get_title(), axis.get_xlabel(), axis.get_ylabel(), lines]

    def draw_once(figure):
        kind = str([figure.get_size_inches(), *map(look, figure.axes)])
        if kind not in drawn:
            drawn[kind] = to_png(figure)
        return drawn[kind]

    pictures.to_png = draw_once
    yield
    pictures.to_png = to_png


SUBJECTS = [
    "the miller",
    "a grey heron",
    "my sister",
    "the old clock",
    "every student",
    "a small boat",
]
VERBS = ["crossed", "watched", "mended", "counted", "painted", "forgot"]
OBJECTS = [
    "the river",
    "three red apples",
    "a broken wheel",
    "the winter sky",
    "her letter",
    "the narrow bridge",
]


@pytest.fixture(scope="session")
def text_lines() -> list[str]:
    """216 different short sentences, the same in every run."""
    return [
        f"{subject} {verb} {thing}." for subject in SUBJECTS for verb in VERBS for thing in OBJECTS
    ]


@pytest.fixture
def text_file(tmp_path, text_lines):
    """A .txt file with one sentence a line."""
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(text_lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def clm_tokenizer(text_lines):
    """300 tokens, GPT-2's way: one special token, <|endoftext|>, nothing added around a text."""
    from builders import byte_level_bpe
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    tokenizer = byte_level_bpe(text_lines, [end])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end
    )


@pytest.fixture(scope="session")
def mlm_tokenizer(text_lines):
    """300 tokens, BERT's way: [CLS] and [SEP] around a text, a mask and a padding token."""
    from builders import byte_level_bpe
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = byte_level_bpe(text_lines, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Where `datasets` keeps files when it is told nothing: not in the home of whoever runs the
    tests.
    """
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "library_cache")


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def few_tasks(monkeypatch) -> None:
    """The index of everything takes seconds: the harness's own tasks become those of a few of its
    folders.
    """
    import lm_eval.tasks

    from headless_trainer.scoring import harness_tasks

    manager, root = lm_eval.tasks.TaskManager, Path(lm_eval.tasks.__file__).parent
    folders = [root / name for name in ("lambada", "arc", "qasper", "crows_pairs")]

    def few(include_path=None, include_defaults=True):
        own = [include_path] if include_path else []
        return manager(
            include_path=[*(folders if include_defaults else []), *own], include_defaults=False
        )

    monkeypatch.setattr(harness_tasks, "TaskManager", few)
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")  # the harness's bootstrap in this process


@pytest.fixture(params=["clm", "mlm"])
def task(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(request, task):
    """That of the task."""
    return request.getfixturevalue(f"{task}_tokenizer")


@pytest.fixture
def sharded(monkeypatch) -> None:
    """The launcher cuts the model into shards."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")


@pytest.fixture
def weights_in_several_files(monkeypatch) -> None:
    """Models of 4 kB are split as those of 50 GB are."""
    from functools import partialmethod

    from transformers import PreTrainedModel

    in_shards = partialmethod(PreTrainedModel.save_pretrained, max_shard_size=4096)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", in_shards)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the Hub, which this process and those started from here talk to; no push of
    this process outlives it.
    """
    from huggingface_hub import close_session, constants

    from headless_trainer.hub.pushes import HubPushes

    made, init = [], HubPushes.__init__

    def record(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(HubPushes, "__init__", record)
    with StandIn() as server:
        for name, value in server.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        for name, value in (
            ("ENDPOINT", server.endpoint),
            ("HF_HUB_OFFLINE", False),
            ("HF_HUB_DISABLE_XET", True),
        ):
            monkeypatch.setattr(constants, name, value)  # read from the environment once
        close_session()  # which may have a proxy
        yield server
        for pushes in made:
            pushes.stop()
    for pushes in made:
        # Those that the server left without an answer have ended by now.
        pushes._api._thread_pool.shutdown()
