"""Folders that `datasets` wrote with ``save_to_disk``, by every argument, streamed or not."""

import datasets
import pytest
from row_files import DOCUMENTS

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.files import expand
from headless_trainer.corpus.texts import find_texts, load_texts

BOTH = pytest.mark.parametrize("streaming", [False, True])


@pytest.fixture
def saved(tmp_path):
    """A dataset in three files, and a dictionary of two datasets."""
    rows = datasets.Dataset.from_dict({"text": DOCUMENTS, "id": list(range(60))})
    rows.save_to_disk(tmp_path / "one", num_shards=3)
    # A mapped dataset leaves a cache beside the data, which is not part of it.
    loaded = datasets.load_from_disk(str(tmp_path / "one"))
    loaded.map(
        lambda row: {"text": "mapped"}, cache_file_name=str(tmp_path / "one" / "cache-1.arrow")
    )
    splits = {"train": rows, "validation": rows.select([5, 3]), "test": rows.select([7])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "three")
    return tmp_path


def load(cache, **settings):
    parts = load_texts(DataArguments(**settings), cache_dir=cache)
    return {name: [row["text"] for row in part] for name, part in parts.items()}


@BOTH
def test_a_saved_dataset_is_read_by_name_and_as_files(streaming, saved, cache):
    folder = str(saved / "one")
    by_name = load(cache, dataset_name=folder, streaming=streaming)
    assert load(cache, train_file=[folder], streaming=streaming) == by_name
    assert sorted(by_name["train"] + by_name["validation"]) == sorted(DOCUMENTS)
    assert by_name["validation"]


@BOTH
def test_saved_splits_are_those_of_the_run(streaming, saved, cache, caplog):
    folder = str(saved / "three")
    expected = {"train": DOCUMENTS, "validation": [DOCUMENTS[5], DOCUMENTS[3]]}
    assert load(cache, dataset_name=folder, streaming=streaming) == expected
    named = {"train_file": [folder], "validation_file": [folder]}
    assert load(cache, **named, streaming=streaming) == expected
    assert not caplog.records
    held_out = load(cache, train_file=[folder], streaming=streaming)["validation"]
    assert 0 < len(held_out) < 20 and "'validation'" in caplog.text


def test_a_folder_with_saved_datasets_in_it_is_read_whole(saved):
    (saved / "three").rename(saved / "aside")
    (saved / "aside").rename(saved.parent / f"{saved.name}_aside")
    (saved / "more.jsonl").write_text('{"text": "a"}\n')
    names = [path.name for path in expand("train_file", [str(saved)])]
    assert names == ["more.jsonl"] + [f"data-0000{number}-of-00003.arrow" for number in range(3)]


def test_saved_splits_are_never_mixed(saved):
    with pytest.raises(ValueError, match=r"three' holds splits"):
        expand("train_file", [str(saved)])


def test_what_a_saved_folder_lacks_is_refused(saved):
    splits = datasets.load_from_disk(str(saved / "three"))
    splits.pop("train")
    splits.pop("validation")
    splits.save_to_disk(saved / "tests")
    folder = str(saved / "tests")
    with pytest.raises(ValueError, match="dataset_name .*tests' has no split 'train', only test"):
        find_texts(DataArguments(dataset_name=folder))
    for argument, split in (("train_file", "train"), ("validation_file", "validation")):
        with pytest.raises(
            ValueError, match=f"^{argument} .*tests' has no split '{split}', only test"
        ):
            expand(argument, [folder])
    args = DataArguments(dataset_name=str(saved / "one"), dataset_config_name="en")
    with pytest.raises(ValueError, match="dataset_config_name is 'en'"):
        find_texts(args)


@pytest.mark.parametrize("pattern", ["rows/*", "rows/state.json", "splits/*"])
def test_a_file_that_describes_a_saved_dataset_is_no_text(pattern, tmp_path):
    """A shell, or a pattern of one's own, may name each file of a folder."""
    rows = datasets.Dataset.from_dict({"text": DOCUMENTS})
    rows.save_to_disk(str(tmp_path / "rows"))
    datasets.DatasetDict(train=rows).save_to_disk(str(tmp_path / "splits"))
    folder = (tmp_path / pattern).parent
    with pytest.raises(ValueError, match=f"train_file names .* name the folder '{folder}'"):
        expand("train_file", [str(tmp_path / pattern)])
    (rows_file,) = expand("train_file", [str(tmp_path / "rows" / "*.arrow")])
    assert rows_file.name == "data-00000-of-00001.arrow"


@pytest.mark.parametrize("setting", ["train_file", "dataset_name"])
def test_a_saved_dataset_that_lacks_a_file_is_named(setting, tmp_path):
    folder = tmp_path / "rows"
    datasets.Dataset.from_dict({"text": DOCUMENTS}).save_to_disk(str(folder))
    (missing,) = folder.glob("*.arrow")
    missing.unlink()
    value = [str(folder)] if setting == "train_file" else str(folder)
    with pytest.raises(FileNotFoundError, match=f"'{folder}' .*'{missing.name}'"):
        find_texts(DataArguments(**{setting: value}))
