"""Which column holds the texts: one for all files and splits, or a refusal, streamed or not."""

import json

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet
from row_files import write_jsonl

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.columns import TextColumn
from headless_trainer.corpus.texts import find_texts, load_texts

BOTH = pytest.mark.parametrize("streaming", [False, True])
CHAT = [{"role": "user", "content": "How deep?"}, {"role": "assistant", "content": "Very."}]
SHAREGPT = [{"from": "human", "value": "How deep?"}, {"from": "gpt", "value": "Very."}]


def arguments(tmp_path, parts, **settings):
    """The arguments of a run on files, given by argument as lists of their rows."""
    names = {}
    for argument, files in parts.items():
        names[argument] = [
            write_jsonl(tmp_path / f"{argument}_{number}.jsonl", rows)
            for number, rows in enumerate(files)
        ]
    return DataArguments(**names, **settings)


def documents(args, cache):
    parts = load_texts(args, cache_dir=cache)
    return sorted(row["text"] for part in parts.values() for row in part)


REFUSED = {
    "conversations beside names": ([{"source": "web", "messages": CHAT}], r"'messages'.*'source'"),
    "ShareGPT beside ids": (
        [{"id": "1", "conversations": SHAREGPT}],
        r"--text_column conversations .*row\[\"conversations\"\]",
    ),
    "conversations alone": ([{"messages": CHAT}], "--text_column messages"),
    "a struct beside ids": ([{"id": "1", "content": {"text": "a"}}], r"'content' rather than 'id'"),
    "two columns": ([{"body": "a", "title": "b"}], "2 columns hold text"),
    "prompts": (
        [{"prompt": "a", "completion": "b"}],
        r"row\[\"prompt\"\] \+ row\[\"completion\"\]",
    ),
    "chats of prompts": (
        [{"prompt": CHAT[:1], "completion": CHAT[1:]}],
        r"\"messages\": row\[\"prompt\"\] \+ row\[\"completion\"\].*--text_column messages",
    ),
    "no text": ([{"id": 1, "length": 2.5}], "no column holds plain text"),
    "a column that may come to hold text": (
        [{"id": "1", "body": None}],
        r"'body' rather than 'id'",
    ),
    "text in a list": ([{"text": ["a", "b"]}], r"'text' is list"),
}


@BOTH
@pytest.mark.parametrize("case", REFUSED)
def test_no_column_is_guessed(case, streaming, tmp_path):
    rows, message = REFUSED[case]
    args = arguments(tmp_path, {"train_file": [rows * 3]}, streaming=streaming)
    with pytest.raises(ValueError, match=f"^text_column is None .*{message}"):
        find_texts(args)


def test_a_column_of_numbers_is_no_doubt(tmp_path):
    rows = [{"id": 1, "length": 2.5, "vector": [0.5], "ok": True, "phrase": "a"}]
    assert find_texts(arguments(tmp_path, {"train_file": [rows]})).column.name == "phrase"


def write_categories(path, **columns) -> str:
    """Write columns of texts as categories, each text once and its number in every row."""
    encoded = {name: pa.array(texts).dictionary_encode() for name, texts in columns.items()}
    parquet.write_table(pa.table(encoded), path)
    return str(path)


@BOTH
def test_a_column_of_categories_may_hold_the_texts(streaming, tmp_path, cache):
    body = [f"text {number % 200}" for number in range(400)]
    file = write_categories(tmp_path / "a.parquet", body=body, source=["web", "book"] * 200)
    args = DataArguments(train_file=[file], streaming=streaming)
    with pytest.raises(ValueError, match="2 columns hold text"):
        find_texts(args)
    args.text_column = "body"
    assert documents(args, cache) == sorted(body)
    alone = write_categories(tmp_path / "b.parquet", phrase=body)
    args = DataArguments(train_file=[alone], streaming=streaming)
    assert documents(args, cache) == sorted(body)


@pytest.mark.parametrize("values", [pa.string_view(), pa.large_string(), pa.string()])
def test_categories_of_every_type_of_strings_are_read(values):
    """Also where a row has no category, or one that is null."""
    numbers = pa.array([2, 0, None, 1, 0], pa.uint32())
    categories = pa.DictionaryArray.from_arrays(numbers, pa.array(["deep", None, ""], values))
    column = pa.chunked_array([categories.slice(0, 2), categories.slice(2), categories.slice(0, 0)])
    texts = TextColumn("text").texts(pa.table({"text": column}), "a file", 1)
    assert texts.type == pa.string()
    assert texts.to_pylist() == ["", "deep", None, None, "deep"]
    none = pa.table({"text": column.slice(5)})
    assert TextColumn("text").texts(none, "a file", 6).to_pylist() == []


def test_a_type_that_a_later_row_shows_is_refused_with_the_rows():
    numbers = pa.table({"text": pa.array([1, 2, 3])})
    said = "'text' must hold text everywhere in a file, not int64, as in its rows 7 to 9"
    with pytest.raises(ValueError, match=said):
        TextColumn("text").texts(numbers, "a file", 7)


@BOTH
def test_an_arrow_file_of_categories_that_are_views_is_read(streaming, tmp_path, cache):
    """As Polars writes them."""
    body = [f"text {number}" for number in range(20)]
    numbers = pa.array([number % 20 for number in range(2_500)], pa.uint32())
    categories = pa.DictionaryArray.from_arrays(numbers, pa.array(body, pa.string_view()))
    table = pa.table({"text": categories})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    file = str(tmp_path / "a.arrow")
    args = DataArguments(train_file=[file], validation_file=[file], streaming=streaming)
    assert documents(args, cache) == sorted(body * 250)


def test_the_column_text_is_chosen_among_others(tmp_path):
    rows = [{"id": "1", "text": "a", "title": "b", "meta": {"url": "c"}, "messages": CHAT}]
    assert find_texts(arguments(tmp_path, {"train_file": [rows]})).column.name == "text"


@BOTH
@pytest.mark.parametrize("part", ["validation_file", "eval_old_file"])
def test_one_column_is_chosen_for_all_parts(part, streaming, tmp_path):
    parts = {
        "train_file": [[{"text": f"a {number}", "id": "x"} for number in range(40)]],
        part: [[{"id": "dev", "body": {"text": "b"}}]],
    }
    args = arguments(tmp_path, parts, streaming=streaming)
    with pytest.raises(ValueError, match=rf"'text' is a column of train_file .*{part}.* id .*body"):
        find_texts(args)


def test_a_file_beyond_the_first_decides_too(tmp_path):
    files = [[{"phrase": "a"}], [{"phrase": "b"}], [{"phrase": "c", "content": {"text": "d"}}]]
    with pytest.raises(ValueError, match="'content' rather than 'phrase'"):
        find_texts(arguments(tmp_path, {"train_file": files}))
    files = [[{"phrase": "a"}], [{"phrase": ["b"]}]]
    args = arguments(tmp_path, {"train_file": files}, text_column="phrase")
    with pytest.raises(ValueError, match=r"'phrase' is list.*train_file_1.jsonl"):
        find_texts(args)


@BOTH
@pytest.mark.parametrize("text_column", [None, "text"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_column_that_is_null_in_one_file_is_read_from_the_others(
    order, text_column, streaming, tmp_path, cache, caplog
):
    empty = [{"text": None, "title": None}] * 300
    full = [{"text": f"text {number}", "title": "x"} for number in range(200)]
    args = arguments(
        tmp_path,
        {"train_file": [empty, full][::order]},
        text_column=text_column,
        streaming=streaming,
    )
    assert documents(args, cache) == sorted(row["text"] for row in full)
    rows = "300" if streaming else "500"  # a stream says it at the end of each file
    assert f"300 of {rows} rows have no text in the column 'text'" in caplog.text


def test_the_argument_that_names_rows_without_text_is_that_of_this_run(tmp_path, cache, caplog):
    """A file of an earlier training, whose texts are cached, is replayed."""
    old = tmp_path / "old.csv"
    old.write_text("text,number\n" + "".join(f"text {number},1\n,2\n" for number in range(300)))
    new = tmp_path / "new.txt"
    new.write_text("".join(f"new text {number}\n" for number in range(300)))
    load_texts(DataArguments(train_file=[str(old)]), cache_dir=cache)
    assert "train_file" in caplog.text
    caplog.clear()
    load_texts(DataArguments(train_file=[str(new)], replay_file=[str(old)]), cache_dir=cache)
    assert "300 of 600 rows have no text in the column 'text'" in caplog.text
    assert f"in replay_file {str(old)!r}" in caplog.text
    assert "train_file" not in caplog.text


@BOTH
def test_rows_without_text_are_counted_wherever_they_are(streaming, tmp_path, cache, caplog):
    late = [{"text": f"text {number}"} for number in range(1_100)]
    late += [{"content": "elsewhere"}] * 40 + [{"text": " \n"}, {"text": "\ufeff"}, {"text": ""}]
    early = [{"text": None}] * 2 + [{"text": "more"}]
    args = arguments(tmp_path, {"train_file": [late, early]}, streaming=streaming)
    assert len(documents(args, cache)) == 1_101
    if streaming:
        assert "43 of 1,143 rows" in caplog.text and "train_file_0.jsonl" in caplog.text
        assert "2 of 3 rows" in caplog.text and "train_file_1.jsonl" in caplog.text
        assert len(caplog.messages) == 2  # once, although both sides of the split are read
        return
    assert len(caplog.messages) == 1
    assert "45 of 1,146 rows" in caplog.text and "1 others" in caplog.text
    caplog.clear()
    documents(args, cache)
    assert "45 of 1,146 rows" in caplog.text, "also if the texts come from the cache"


def test_empty_lines_of_text_files_are_no_rows(tmp_path, cache, caplog):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n \n" * 3)
    args = DataArguments(train_file=[str(path)], validation_file=[str(path)])
    assert len(documents(args, cache)) == 12
    assert "no text" not in caplog.text


@BOTH
def test_the_column_of_a_hub_dataset_is_chosen_over_both_splits(streaming, monkeypatch, cache):
    def load_dataset(name, config, streaming=False, **settings):
        parts = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
        if streaming:
            return {name: rows.to_iterable_dataset() for name, rows in parts.items()}
        return datasets.DatasetDict(parts)

    class Builder:
        class config:
            data_files = None

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *names, **settings: Builder)
    args = DataArguments(dataset_name="me/chats", streaming=streaming)
    splits = {"train": [{"text": "a"}], "validation": [{"id": "1", "body": {"text": "b"}}]}
    with pytest.raises(
        ValueError, match="'text' is a column of split 'train' .* not of split 'val"
    ):
        find_texts(args)
    splits = {"train": [{"messages": CHAT, "source": "web"}]}
    with pytest.raises(ValueError, match="text_column is None .*--text_column messages"):
        find_texts(args)
    splits = {
        "train": [{"text": "a"}, {"text": None}, {"text": "b"}],
        "validation": [{"text": "c"}],
    }
    assert documents(args, cache) == ["a", "b", "c"]


@BOTH
def test_what_datasets_cannot_read_is_refused_with_the_way_to_read_it(streaming, tmp_path, cache):
    """It fixes the types of a folder's columns by its first file."""
    write_jsonl(tmp_path / "data" / "0.jsonl", [{"text": None}] * 3)
    write_jsonl(tmp_path / "data" / "1.jsonl", [{"text": "a"}] * 3)
    args = DataArguments(dataset_name=str(tmp_path / "data"), streaming=streaming)
    with pytest.raises(ValueError, match=r"data'.*--train_file"):
        find_texts(args, cache_dir=cache)


@pytest.mark.parametrize("content", ["text;label\nHello, world;1\n", "text;label\na;1\n"])
def test_semicolons_in_a_csv_file_get_a_hint(content, tmp_path):
    (tmp_path / "a.csv").write_text(content)
    args = DataArguments(train_file=[str(tmp_path / "a.csv")])
    with pytest.raises((OSError, ValueError), match="'text;label': separate columns with commas"):
        find_texts(args)


@BOTH
def test_one_long_document_cannot_be_held_out_in_part(streaming, tmp_path, cache, monkeypatch):
    monkeypatch.setattr("headless_trainer.corpus.documents.LONGEST", 1_000)
    path = tmp_path / "a.txt"
    path.write_text("word " * 50_000)
    args = DataArguments(train_file=[str(path)], streaming=streaming)
    with pytest.raises(ValueError, match="validation part .*breaking it.*--validation_file"):
        load_texts(args, cache_dir=cache)
    args.validation_file = [str(path)]
    assert set(load_texts(args, cache_dir=cache)) == {"train", "validation"}


@pytest.mark.parametrize("named", ["text files", "rows"])
def test_pointers_are_refused_before_anything_is_read(named, tmp_path):
    """Also in the last of many files that a stream would reach after days."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    if named == "rows":
        write_jsonl(tmp_path / "data" / "0.jsonl", [{"text": "a"}])
        (tmp_path / "data" / "1.jsonl.gz").write_bytes(pointer)
    else:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "0.txt").write_text("a\n")
        (tmp_path / "data" / "1.txt").write_bytes(pointer)
    for argument in ("train_file", "dataset_name"):
        name = str(tmp_path / "data")
        value = [name] if argument == "train_file" else name
        args = DataArguments(**{argument: value}, streaming=True)
        with pytest.raises(OSError, match=f"^{argument} .*1.(txt|jsonl.gz).*git lfs pull"):
            find_texts(args, cache_dir=str(tmp_path / "cache"))


def test_a_stream_of_tsv_files_that_were_read_with_quotes_is_another_stream(tmp_path):
    """Its checkpoints name the column alone, as those of all other formats still do."""
    for kind, read_by in (("tsv", ["line", "text", "no quotes"]), ("csv", ["line", "text"])):
        (tmp_path / f"a.{kind}").write_text("text\na\nb\n")
        name = str(tmp_path / f"a.{kind}")
        args = DataArguments(train_file=[name], validation_file=[name], streaming=True)
        assert load_texts(args)["train"].read_by == read_by


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("others", [[1, "a"], [{"a": 1}, {"a": "b"}], [[1], "a"]])
def test_fields_of_several_types_that_nobody_reads_do_not_matter(tmp_path, others, streaming):
    rows = [{"text": f"ship {number}", "meta": others[number % 2]} for number in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = find_texts(DataArguments(train_file=[str(path)], streaming=streaming))
    documents = found.read()
    texts = {row["text"] for split in documents.values() for row in split}
    assert texts == {row["text"] for row in rows}


def test_a_text_column_of_several_types_is_refused_with_a_remedy(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": 1}\n' * 20)
    with pytest.raises(OSError, match=r"'text' have different types .*: write them alike"):
        find_texts(DataArguments(train_file=[str(path)])).read()
