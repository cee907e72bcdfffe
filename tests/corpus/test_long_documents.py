"""Documents that are longer than is held at a time: the same tokens, one side of the split, and every place found again."""

import gzip
import io
import itertools
import json

import datasets
import numpy as np
import pytest
import torch

from headless_trainer import PackedStream
from headless_trainer.arguments import DataArguments
from headless_trainer.corpus import encoding, packing, pieces, streaming, text_stream
from headless_trainer.corpus.packing import tokenize_and_pack
from headless_trainer.corpus.streaming import PLACE
from headless_trainer.corpus.text_files import read_documents
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer

DOCUMENTS = [" ".join(f"word{i * j % 97}" for j in range(1 + (i * 7) % 5 + 60 * (i % 9 == 4))) for i in range(40)]


@pytest.fixture(autouse=True)
def small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library_cache")
    monkeypatch.setattr(pieces, "LONGEST", 60)
    monkeypatch.setattr(encoding, "_AT_ONCE", 40)
    monkeypatch.setattr(packing, "_BATCH_BYTES", 100)


@pytest.fixture(scope="module", params=["clm", "mlm"])
def tokenizer(request):
    return train_tokenizer(DOCUMENTS, vocab_size=300, task=request.param)


@pytest.fixture
def clm():
    return train_tokenizer(DOCUMENTS, vocab_size=300)


@pytest.fixture(params=["txt", "txt.gz", "jsonl"])
def path(request, tmp_path):
    path = tmp_path / f"a.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    else:
        content = "\n".join(DOCUMENTS).encode()
        path.write_bytes(gzip.compress(content) if request.param == "txt.gz" else content)
    return path


def load(path, held_out=None, **settings):
    held_out = [str(path)] if held_out else None
    return load_texts(DataArguments(train_file=[str(path)], validation_file=held_out, **settings))


def naive_tokens(tokenizer, documents) -> list[int]:
    ends = [[tokenizer.eos_token_id] if tokenizer.sep_token_id is None else []] * len(documents)
    return [i for text, end in zip(documents, ends, strict=True) for i in [*tokenizer(text)["input_ids"], *end]]


def joined(rows) -> list[str]:
    documents = []
    for row in rows:
        documents += [""] if row.get("begins", True) else []
        documents[-1] += row["text"]
    return documents


class Counted(io.StringIO):
    def read(self, size=-1):
        assert 0 < size <= 60, "a file is read in bounded blocks"
        return super().read(size)


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
@pytest.mark.parametrize("text", ["\n\n".join(DOCUMENTS) + "\n", "0" * 1000, "a\n" + "b c\n" * 100 + "\n\nd", ""])
def test_files_are_read_in_bounded_blocks(sample_by, text):
    rows = [row for some in read_documents(Counted(text), sample_by, 60) for row in some]
    got = joined([{"text": row[0], "begins": row[1]} for row in rows])
    paragraphs = [part for part in text.rstrip("\n").split("\n\n") if part]
    want = {"line": text.removesuffix("\n").split("\n"), "paragraph": paragraphs, "document": [text]}[sample_by]
    assert got == (want if text else [])
    assert all(len(row[0]) <= 60 for row in rows)


def test_rows_in_memory_are_those_of_whole_documents(tokenizer, path, tmp_path):
    texts = load(path, held_out=True)["train"]
    assert joined(texts) == DOCUMENTS and max(map(len, texts["text"])) <= 60
    rows = tokenize_and_pack(texts, tokenizer, max_seq_length=16, cache_dir=str(tmp_path))
    tokens = naive_tokens(tokenizer, DOCUMENTS)
    assert rows[:]["input_ids"].flatten().tolist() == tokens[: len(tokens) - len(tokens) % 16]
    lines = tokenize_and_pack(texts, tokenizer, max_seq_length=8, line_by_line=True, cache_dir=str(tmp_path))
    want = [naive_tokens(tokenizer, [text]) for text in DOCUMENTS]
    assert [row["input_ids"].tolist() for row in lines] == [
        ids if len(ids) <= 8 else ids[:7] + ids[-1:] for ids in want
    ]
    stream = tokenize_and_pack(load(path, held_out=True, streaming=True)["train"], tokenizer, max_seq_length=16)
    assert [row["input_ids"] for row in stream] == rows[:]["input_ids"].tolist()


@pytest.mark.parametrize("line_by_line", [False, True])
@pytest.mark.parametrize("size", [0, 6])
def test_the_next_row_from_every_place(tokenizer, path, line_by_line, size, monkeypatch):
    monkeypatch.setattr(streaming, "_ENCODED_AT_ONCE", 4)
    monkeypatch.setattr(text_stream, "_BLOCK_BYTES", 90)
    texts = load(path, held_out=True, streaming=True)["train"]
    settings = {"max_seq_length": 8, "line_by_line": line_by_line, "shuffle_buffer_size": size}

    def rows(stream, count):
        return [(row["input_ids"].tolist(), row[PLACE]) for row in itertools.islice(stream, count)]

    expected = rows(PackedStream(texts, tokenizer, **settings), 250)
    assert expected[-1][1][1] > 0, "the rows end in a later pass"
    if size == 0 and not line_by_line:
        got = [token for ids, _ in expected for token in ids]
        assert got == (naive_tokens(tokenizer, DOCUMENTS) * 3)[: len(got)]
    for count in range(1, 250, 23):
        resumed = PackedStream(texts, tokenizer, **settings)
        resumed.advance(torch.tensor(expected[count - 1][1]))
        resumed.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert rows(resumed, 12) == expected[count : count + 12]


def test_several_readers_read_every_document_once(clm, path, monkeypatch):
    monkeypatch.setattr(text_stream, "_BLOCK_BYTES", 200)
    texts, got = load(path, held_out=True, streaming=True)["train"], []
    for process in range(3):
        stream = PackedStream(texts, clm, max_seq_length=8, shuffle_buffer_size=4)
        stream.deal(process, 3)
        for _, documents, begins, _ in stream._documents(streaming.Place(), 0):
            got += documents if begins else [got.pop() + documents[0]]
    assert sorted(got) == sorted(DOCUMENTS)


def test_pieces_lie_on_one_side_of_the_split(path):
    memory, stream = load(path, validation_split_percentage=40), load(path, validation_split_percentage=40,
                                                                      streaming=True)  # fmt: skip
    sides = [joined(memory[name]) for name in ("train", "validation")]
    assert sides == [joined(stream[name]) for name in ("train", "validation")]
    assert sorted(sum(sides, [])) == sorted(DOCUMENTS)
    assert all(any(len(text) > 60 for text in side) for side in sides)


def test_places_of_an_earlier_version_are_valid_if_blocks_are_the_same(clm, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"short {i}" for i in range(40)))
    texts = load(path, held_out=True, streaming=True)["train"]
    stream = PackedStream(texts, clm, max_seq_length=8, shuffle_buffer_size=6)
    for row in itertools.islice(stream, 15):
        stream.advance(torch.tensor(row[PLACE]))
    state = stream.state_dict()
    del state["settings"]["blocks end by"]
    stream.load_state_dict(state)
    expected = next(iter(stream))["input_ids"]
    stream.load_state_dict(state)
    assert np.array_equal(next(iter(stream))["input_ids"], expected)
    monkeypatch.setattr(text_stream, "_BLOCK_BYTES", 30)
    stream.load_state_dict(state)
    with pytest.raises(ValueError, match="place in the stream cannot be found.*--ignore_data_skip"):
        next(iter(stream))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_in_another_encoding_is_named(streaming, tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("Der M\u00fcller\n".encode("latin-1"))
    with pytest.raises(OSError, match=r"train_file .*latin.txt.* cannot be read as .*can't decode byte 0xfc"):
        load(path, held_out=True, streaming=streaming)


def test_the_last_paragraph_has_no_newline_at_its_end(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    texts = load(tmp_path / "a.txt", held_out=True, sample_by="paragraph")["train"]
    assert texts["text"] == ["one\ntwo", "three"]
