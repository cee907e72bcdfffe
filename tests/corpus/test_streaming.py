"""Streams of packed rows: every document once in a pass, whoever reads it, and the next row from
any place.
"""

import copy
import itertools
import json
import pickle
from collections import Counter
from functools import partial

import pytest
import torch
from datasets import Dataset, IterableDataset, concatenate_datasets
from row_files import naive_stream
from tokenizers.normalizers import Lowercase
from torch.utils.data import DataLoader

from headless_trainer import PackedStream
from headless_trainer.arguments import DataArguments
from headless_trainer.corpus import streaming
from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.corpus.documents import TextStream
from headless_trainer.corpus.streaming import POSITION, ReaderPosition, collate_with_position
from headless_trainer.corpus.texts import load_texts

DOCUMENTS = [f"document {i}" + " word" * (i % 5) for i in range(50)]
WHOLE = {"max_seq_length": 99, "line_by_line": True}  # each document is a row


def source(documents=DOCUMENTS, files: int = 3):
    """A stream whose files are as equal as they can be, or are given as lists."""
    if isinstance(documents[0], list):
        return concatenate_datasets([source(part, 1) for part in documents])
    return Dataset.from_dict({"text": documents}).to_iterable_dataset(
        num_shards=min(files, len(documents))
    )


def stream(tokenizer, texts=None, dealt=(), **settings) -> PackedStream:
    settings = {"max_seq_length": 8, "shuffle_buffer_size": 6} | settings
    packed = PackedStream(source() if texts is None else texts, tokenizer, **settings)
    if dealt:
        packed.deal(*dealt)
    return packed


def first(count: int, rows) -> list[tuple[list[int], tuple]]:
    return [
        (row["input_ids"].tolist(), row[POSITION]) for row in itertools.islice(iter(rows), count)
    ]


def documents_of(rows, tokenizer) -> list[str]:
    return [tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in rows]


def one_pass(packed: PackedStream, epoch: int = 0) -> list[dict]:
    """The rows of the first reader in a pass."""
    rows = itertools.takewhile(lambda row: row[1].epoch <= epoch, packed._rows(0))
    return [{"input_ids": ids} for ids, place in rows if place.epoch == epoch]


@pytest.mark.parametrize("size", [0, 1])
def test_unshuffled_rows_are_the_texts_cut_at_equal_lengths(clm_tokenizer, size):
    """Across documents, files and passes: nothing is left over at the end of one."""
    tokens = naive_stream(clm_tokenizer, DOCUMENTS)
    count = 2 * len(tokens) // 8
    rows = [ids for ids, _ in first(count, stream(clm_tokenizer, shuffle_buffer_size=size))]
    assert sum(rows, []) == (tokens + tokens)[: 8 * count] and len(tokens) % 8


@pytest.mark.parametrize(
    "documents", [DOCUMENTS, DOCUMENTS[:1], [["a"], ["b"], ["c"], ["d"]], [DOCUMENTS[:40], ["x"]]]
)
@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("size", [0, 6, 1000])
@pytest.mark.parametrize("files_each", [16, 1])
def test_every_document_once_in_a_pass(
    clm_tokenizer, monkeypatch, documents, processes, workers, size, files_each
):
    monkeypatch.setattr(streaming, "_FILES_FOR_EACH_READER", files_each)
    texts = source(documents)
    seen, readers = {0: Counter(), 1: Counter()}, 0
    for process in range(processes):
        packed = stream(
            clm_tokenizer, texts, (process, processes, workers), shuffle_buffer_size=size, **WHOLE
        )
        for reader in range(workers):
            rows = itertools.takewhile(lambda row: row[1].epoch < 2, packed._rows(reader))
            try:
                for ids, place in rows:
                    seen[place.epoch].update(documents_of([{"input_ids": ids}], clm_tokenizer))
                readers += 1
            except ValueError as error:  # more readers than documents
                assert "finds 0 tokens" in str(error)
    want = Counter(documents if isinstance(documents[0], str) else sum(documents, []))
    assert seen[0] == want
    if readers == processes * workers:
        assert seen[1] == want


def test_small_files_go_round(clm_tokenizer):
    """Where each file is one document, no reader gets them all."""
    texts = source([[text] for text in DOCUMENTS[:24]])
    for process in range(3):
        assert len(one_pass(stream(clm_tokenizer, texts, (process, 3), **WHOLE))) == 8


SHARING = {"line_by_line": True, "share_rows": True, "max_seq_length": 64}


@pytest.mark.parametrize("rows", [{}, {"begin_rows": True}, {"line_by_line": True}, SHARING])
@pytest.mark.parametrize("size", [0, 6, 1000])
@pytest.mark.parametrize("files", [1, 3])
def test_the_next_row_from_every_place(mlm_tokenizer, rows, size, files, monkeypatch):
    monkeypatch.setattr(streaming, "_ENCODED_AT_ONCE", 10 if rows == SHARING else 4)
    texts, settings = source(files=files), rows | {"shuffle_buffer_size": size}
    rows = first(190, stream(mlm_tokenizer, texts, **settings))
    assert rows[149][1][1] > 0, "the rows end in a later pass"
    for count in range(1, 150, 7):
        resumed = stream(mlm_tokenizer, texts, **settings)
        resumed.advance(torch.tensor(rows[count - 1][1]))
        resumed.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert first(40, resumed) == rows[count : count + 40]


def test_rows_begin_as_documents_do_and_lose_no_token(mlm_tokenizer):
    tokens = naive_stream(mlm_tokenizer, DOCUMENTS)
    begin = mlm_tokenizer.cls_token_id
    packed = stream(mlm_tokenizer, shuffle_buffer_size=0, begin_rows=True)
    rows = [ids for ids, _ in first(len(tokens) // 4, packed)]
    assert all(row[0] == begin and len(row) == 8 for row in rows)
    # What stands at the start of a row alone is no part of the texts, which come again and again.
    text = [token for row in rows for token in row if token != begin]
    passes = [token for token in tokens if token != begin] * 3
    assert text == passes[: len(text)] and len(text) > len(tokens)


def test_a_stream_of_an_earlier_version_goes_on_if_its_rows_began_with_nothing(mlm_tokenizer):
    state = stream(mlm_tokenizer).state_dict()
    del state["settings"]["beginning of each row"]
    stream(mlm_tokenizer).load_state_dict(state)
    message = r"beginning of each row is \[\d\] but .* was read with \[\].*--ignore_data_skip"
    with pytest.raises(ValueError, match=message):
        stream(mlm_tokenizer, begin_rows=True).load_state_dict(state)


@pytest.mark.parametrize("processes", [1, 2])
def test_documents_that_share_rows_come_once_in_a_pass(clm_tokenizer, processes):
    """Whole, in rows that are nearly full."""
    seen, rows = Counter(), []
    for process in range(processes):
        packed = stream(
            clm_tokenizer, dealt=(process, processes), shuffle_buffer_size=1000, **SHARING
        )
        rows += [row["input_ids"].tolist() for row in one_pass(packed)]
    end = clm_tokenizer.eos_token_id
    assert all(row[-1] == end and len(row) <= 64 for row in rows)
    for row in rows:
        seen.update(clm_tokenizer.decode(row).split("<|endoftext|>")[:-1])
    assert seen == Counter(DOCUMENTS)
    assert len(rows) < len(DOCUMENTS) / 1.5


def order(tokenizer, epoch: int = 0, files: int = 1, **settings) -> list[int]:
    packed = stream(tokenizer, source(files=files), **WHOLE, **settings)
    return [
        DOCUMENTS.index(text) for text in documents_of(one_pass(packed, epoch=epoch), tokenizer)
    ]


def test_documents_are_shuffled_inside_their_blocks(clm_tokenizer):
    shuffled = order(clm_tokenizer, shuffle_buffer_size=10)
    assert shuffled != list(range(50)) and [number // 10 for number in shuffled] == [
        i // 10 for i in range(50)
    ]
    within = [
        tuple(number % 10 for number in shuffled[start : start + 10]) for start in range(0, 50, 10)
    ]
    assert len(set(within)) == 5, "each block has an order of its own"
    assert shuffled == order(clm_tokenizer, shuffle_buffer_size=10)
    assert shuffled != order(clm_tokenizer, shuffle_buffer_size=10, seed=1)
    assert shuffled != order(clm_tokenizer, shuffle_buffer_size=10, epoch=1)


def test_files_are_shuffled_anew_in_each_pass(clm_tokenizer):
    orders = {
        tuple(
            number // 10
            for number in order(clm_tokenizer, epoch=epoch, files=5, shuffle_buffer_size=100)
        )
        for epoch in range(3)
    }
    assert len(orders) == 3 and all(
        len(list(itertools.groupby(numbers))) == 5 for numbers in orders
    )
    assert order(clm_tokenizer, files=5, shuffle_buffer_size=0) == list(range(50))


def test_many_files_are_shared_out_whole(clm_tokenizer, monkeypatch):
    read, blocks = [], TextStream.blocks
    monkeypatch.setattr(
        TextStream,
        "blocks",
        lambda self, file, *args: read.append(file) or blocks(self, file, *args),
    )
    for process in range(2):
        one_pass(stream(clm_tokenizer, source(files=32), (process, 2), **WHOLE))
        assert len(set(read)) == 16 * (process + 1)
    read.clear()
    one_pass(stream(clm_tokenizer, source(files=31), (0, 2), **WHOLE))
    assert set(read) == set(range(31))


def test_what_was_used_is_not_encoded_again(clm_tokenizer, monkeypatch):
    encoded, encode = [], streaming.DocumentEncoder.__call__

    def counted(self, documents):
        encoded.extend(documents)
        return encode(self, documents)

    monkeypatch.setattr(streaming.DocumentEncoder, "__call__", counted)
    packed = stream(clm_tokenizer, source(files=1), **WHOLE)
    packed.advance(torch.tensor((0, *ReaderPosition(block=4, document=3))))
    resumed = documents_of(one_pass(packed), clm_tokenizer)
    assert encoded[: len(resumed)] == resumed and len(resumed) == 50 - 4 * 6 - 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_workers_go_on_in_turn(clm_tokenizer, workers):
    def taken(packed, count):
        collate = partial(collate_with_position, PaddingCollator(clm_tokenizer))
        batches = list(
            itertools.islice(DataLoader(packed, 4, num_workers=workers, collate_fn=collate), count)
        )
        for batch in batches:
            packed.advance(batch[POSITION])
        return [batch["input_ids"].tolist() for batch in batches]

    def dealt():
        # As a worker that is not forked gets it.
        packed = pickle.loads(pickle.dumps(stream(clm_tokenizer)))
        packed.deal(workers=max(1, workers))
        return packed

    whole = taken(dealt(), 40)
    for count in (1, 2, 5, 24):
        packed = dealt()
        assert taken(packed, count) == whole[:count]
        resumed = dealt()
        resumed.load_state_dict(packed.state_dict())
        assert taken(resumed, 40 - count) == whole[count:]
        assert resumed.state_dict()["next_reader"] == (40 % workers if workers else 0)


LINES = ["".join(f"{document}\n" for document in DOCUMENTS[start::2]) for start in (0, 1)]
LINES[0] = (
    LINES[0] * (300_000 // len(LINES[0]))
    + "in the middle\n"
    + LINES[0] * (300_000 // len(LINES[0]))
)
CHANGES = {
    "cut": {"0.txt": LINES[0][:-1], "1.txt": LINES[1]},
    "altered": {"0.txt": LINES[0].replace("in the middle", "IN THE MIDDLE"), "1.txt": LINES[1]},
    "renamed": {"0.txt": LINES[0], "2.txt": LINES[1]},
    "swapped": {"0.txt": LINES[1], "1.txt": LINES[0]},
    "emptied": {"0.txt": LINES[0], "1.txt": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_goes_on_over_the_same_files_alone(change, tmp_path, clm_tokenizer):
    """Names, order, sizes and contents, wherever the folder is."""

    def over(folder, files, kind="train_file"):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
        named = {
            kind: str(tmp_path / folder) if kind == "dataset_name" else [str(tmp_path / folder)]
        }
        args = DataArguments(**named, validation_split_percentage=20, streaming=True)
        return stream(clm_tokenizer, load_texts(args)["train"])

    saved = over("a", {"0.txt": LINES[0], "1.txt": LINES[1]}).state_dict()
    over("same", {"0.txt": LINES[0], "1.txt": LINES[1]}).load_state_dict(saved)
    with pytest.raises(
        ValueError, match="hash of the files is .* but the checkpoint.s stream was read with"
    ):
        over(change, CHANGES[change]).load_state_dict(saved)
    assert saved["settings"]["sample_by and text_column"] == ["line", None]
    saved = over("folder", {"0.txt": LINES[0], "1.txt": LINES[1]}, "dataset_name").state_dict()
    with pytest.raises(ValueError, match="hash of the files is"):
        over(f"{change} folder", CHANGES[change], "dataset_name").load_state_dict(saved)


def test_a_stream_ends_where_it_finds_less_than_a_row(clm_tokenizer):
    tokens = len(naive_stream(clm_tokenizer, DOCUMENTS))
    message = (
        f"max_seq_length is 4096 but a reader of the stream finds {tokens} tokens in all texts"
    )
    with pytest.raises(ValueError, match=message):
        next(iter(stream(clm_tokenizer, max_seq_length=4096)))
    assert len(next(iter(stream(clm_tokenizer, max_seq_length=tokens)))["input_ids"]) == tokens
    packed = stream(clm_tokenizer, source(["a"], 1), (1, 2), line_by_line=True)
    with pytest.raises(
        ValueError, match="a reader of the stream finds 0 tokens.*--dataloader_num_workers"
    ):
        next(iter(packed))


def test_a_stream_may_be_made_of_a_dataset_that_is_none(clm_tokenizer):
    rows = Dataset.from_dict({"text": DOCUMENTS})
    order = {"max_seq_length": 8, "shuffle_buffer_size": 0}
    of_rows = PackedStream(rows, clm_tokenizer, **order)
    of_stream = PackedStream(rows.to_iterable_dataset(), clm_tokenizer, **order)
    assert first(9, of_rows) == first(9, of_stream)


def test_what_is_no_stream_of_texts_is_refused(clm_tokenizer):
    with pytest.raises(ValueError, match="texts must be a dataset with a column 'text', got list"):
        PackedStream(["a"], clm_tokenizer, max_seq_length=8)
    with pytest.raises(ValueError, match="tokenizer must be one of transformers, got NoneType"):
        PackedStream(source(), None, max_seq_length=8)
    other = Dataset.from_dict({"body": DOCUMENTS}).to_iterable_dataset()
    with pytest.raises(
        ValueError, match="'text' is missing in the dataset, whose columns are body"
    ):
        next(iter(PackedStream(other, clm_tokenizer, max_seq_length=8)))

    def texts():
        for text in [*DOCUMENTS, None]:
            yield {"text": text}

    mixed = PackedStream(IterableDataset.from_generator(texts), clm_tokenizer, max_seq_length=8)
    with pytest.raises(ValueError, match="differ in type .* an empty one for no text"):
        list(itertools.islice(iter(mixed), 200))


OTHERS = [
    ((0, 2, 1), {}, "number of processes is 2 but the checkpoint.s stream was read with 1"),
    ((0, 1, 3), {}, "dataloader_num_workers is 3 but the checkpoint.s stream was read with 1"),
    ((0, 1, 1), {"max_seq_length": 9}, "max_seq_length is 9 but .* was read with 8"),
    ((0, 1, 1), {"line_by_line": True}, "line_by_line is True but .* was read with False"),
    (
        (0, 1, 1),
        {"share_rows": True},
        "isolate_documents with line_by_line is True but .* was read with False",
    ),
    ((0, 1, 1), {"shuffle_buffer_size": 7}, "shuffle_buffer_size is 7 but .* was read with 6"),
    ((0, 1, 1), {"seed": 4}, "data_seed is 4 but .* was read with 0"),
    ((0, 1, 1), {"texts": source(files=2)}, "number of files is 2 but .* was read with 3"),
    (
        (0, 1, 1),
        {"texts": TextStream(source(), share=0.1)},
        "validation_split_percentage is 10.0 but .* read with 0.0",
    ),
]


@pytest.mark.parametrize(("dealt", "settings", "message"), OTHERS)
def test_a_place_means_nothing_under_other_settings(clm_tokenizer, dealt, settings, message):
    state, other = (
        stream(clm_tokenizer).state_dict(),
        stream(clm_tokenizer, dealt=dealt, **settings),
    )
    lower = copy.deepcopy(clm_tokenizer)
    lower.backend_tokenizer.normalizer = Lowercase()  # the same vocabulary, but other tokens
    with pytest.raises(ValueError, match="hash of the tokenizer is"):
        stream(lower).load_state_dict(state)
    with pytest.raises(ValueError, match=message + ".*add --ignore_data_skip"):
        other.load_state_dict(state)


def test_a_stream_marks_documents_once_and_one_reader_warns(mlm_tokenizer, caplog):
    marked = [f"[CLS]{document}" for document in DOCUMENTS]
    for process in range(2):
        doubled = stream(mlm_tokenizer, source(marked), (process, 2), shuffle_buffer_size=0)
        plain = stream(mlm_tokenizer, source(), (process, 2), shuffle_buffer_size=0)
        assert first(60, doubled) == first(60, plain)
    warnings = [each for each in caplog.messages if "[CLS]" in each]
    assert len(warnings) == 1


def test_readers_take_turns_and_the_turn_is_stored(clm_tokenizer):
    packed = stream(clm_tokenizer, dealt=(0, 1, 2))
    for reader, following in ((0, 1), (1, 0)):
        packed.advance(torch.tensor([reader, 0, 0, 0, 3, 0]))
        assert packed.state_dict()["next_reader"] == following
