"""A trained model, its texts and tasks on them, for the tests of zero-shot scoring."""

from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def _few_tasks(few_tasks):
    """Only a few of the harness's tasks are indexed, in every test."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory, clm_tokenizer, text_lines):
    """A trained model's folder, its texts, and a folder of task definitions on them."""
    # Here, so that the process that only hands out tests to others imports no library.
    from builders import save
    from harness_inputs import train, write_tasks
    from row_files import write_jsonl

    folder = tmp_path_factory.mktemp("zero_shot")
    model = train(clm_tokenizer, text_lines)
    texts = [line for line in text_lines[::7]] + [
        "the miller crossed the river. a grey heron crossed"
    ]
    documents = write_jsonl(folder / "texts.jsonl", [{"text": text} for text in texts])
    path, tasks = (
        save(folder / "lm", model, clm_tokenizer),
        write_tasks(folder / "tasks", documents),
    )
    return SimpleNamespace(model=model, path=path, texts=texts, documents=documents, tasks=tasks)
