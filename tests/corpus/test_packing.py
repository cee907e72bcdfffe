import copy
import gc
import os
import re

import numpy as np
import pytest
import torch
from builders import tiny_model
from datasets import Dataset
from row_files import DOCUMENTS, naive_stream
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, ByT5Tokenizer, GPT2Config, GPT2Model

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments
from headless_trainer.corpus import packing
from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.corpus.packing import check_token_ids, target_counts, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.trainers.step import TargetMaker

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def clm():
    return train_tokenizer(DOCUMENTS, vocab_size=300)


@pytest.fixture(scope="module")
def mlm():
    return train_tokenizer(DOCUMENTS, vocab_size=300, task="mlm")


def naive_rows(stream: list[int], length: int) -> list[list[int]]:
    return [stream[i : i + length] for i in range(0, len(stream) - length + 1, length)]


def rows_of(dataset) -> list[list[int]]:
    return [np.asarray(row["input_ids"]).tolist() for row in dataset]


@pytest.mark.parametrize("length", [2, 7, 128])
@pytest.mark.parametrize("name", ["clm", "mlm", "python"])
def test_packing_equals_naive_concatenation(name, length, request, cache):
    tokenizer = ByT5Tokenizer() if name == "python" else request.getfixturevalue(name)
    rows = tokenize_and_pack(
        Dataset.from_dict({"text": DOCUMENTS}), tokenizer, max_seq_length=length, cache_dir=cache
    )
    assert rows.column_names == ["input_ids"]
    assert rows.features["input_ids"].feature.dtype == "int32"
    assert rows_of(rows) == naive_rows(naive_stream(tokenizer, DOCUMENTS), length)


@pytest.mark.parametrize(
    ("length", "rows", "bounds"),
    [
        # The first and the last row begin with a document, the others within one.
        (3, [[7, 5, 6], [7, 1, 2], [7, 3, 9], [7, 4, 4]], [0, 3, 5, 7, 10]),
        (4, [[7, 5, 6, 1], [7, 2, 3, 9]], [0, 4, 7]),
        (5, [[7, 5, 6, 1, 2], [7, 3, 9, 7, 4]], [0, 5, 9]),
        (20, [], [0]),
    ],
)
def test_rows_that_begin_as_documents_do(length, rows, bounds):
    ids = np.array([7, 5, 6, 1, 2, 3, 9, 7, 4, 4], np.int32)
    cut, starts = packing.full_rows(ids, [7], length)
    assert cut.tolist() == rows and starts.tolist() == bounds
    assert cut.dtype == np.int32 and cut.shape[1] == length


def naive_begun_rows(stream: list[int], opening: list[int], length: int) -> list[list[int]]:
    rows = []
    while stream:
        part = stream[:length]
        if part[: len(opening)] != opening:
            part = stream[: length - len(opening)]
            stream = stream[len(part) :]
            part = opening + part
        else:
            stream = stream[length:]
        rows.append(part)
    return [row for row in rows if len(row) == length]


@pytest.mark.parametrize("length", [3, 7, 128])
@pytest.mark.parametrize("opening", ["[CLS]", "[CLS][MASK]", ""])
def test_begun_rows_equal_naive_ones(length, opening, mlm, cache, monkeypatch):
    monkeypatch.setattr(packing, "BATCH_BYTES", 300)  # rows run on across batches
    tokenizer = copy.deepcopy(mlm)
    marks = re.findall(r"\[\w+\]", opening)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=" ".join([*marks, "$A", "[SEP]"]),
        special_tokens=[
            (mark, tokenizer.convert_tokens_to_ids(mark)) for mark in {*marks, "[SEP]"}
        ],
    )
    settings = {"max_seq_length": length, "begin_rows": True}
    texts = Dataset.from_dict({"text": DOCUMENTS})
    rows = tokenize_and_pack(texts, tokenizer, cache_dir=cache, **settings)
    ids = tokenizer.convert_tokens_to_ids(marks)
    # A row holds more than its beginning.
    ids = ids if len(ids) < length - 1 else []
    expected = naive_begun_rows(naive_stream(tokenizer, DOCUMENTS), ids, length)
    assert rows_of(rows) == expected
    streamed = tokenize_and_pack(texts.to_iterable_dataset(), tokenizer, **settings)
    assert rows_of(streamed) == expected


@pytest.mark.parametrize(("name", "files"), [("clm", 1), ("mlm", 2)])
def test_rows_that_begin_with_nothing_are_cached_once(name, files, request, tmp_path):
    """The tokenizer of mlm puts a token before a text, that of clm does not."""
    texts = Dataset.from_dict({"text": DOCUMENTS})
    settings = {"max_seq_length": 16, "cache_dir": str(tmp_path)}
    tokenizer = request.getfixturevalue(name)
    for begin_rows in (True, False):
        tokenize_and_pack(texts, tokenizer, begin_rows=begin_rows, **settings)
    assert len(list(tmp_path.rglob("rows-*.arrow"))) == files


def test_only_packed_rows_of_decoders_begin_as_texts_do(tmp_path):
    args = HeadlessTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    lines = DataArguments(train_file=["a"], line_by_line=True)
    packed = DataArguments(train_file=["a"])
    assert packing.row_settings(packed, args, "clm")["begin_rows"]
    assert not packing.row_settings(packed, args, "mlm")["begin_rows"]
    assert not packing.row_settings(lines, args, "clm")["begin_rows"]


@pytest.mark.parametrize("name", ["clm", "mlm"])
def test_line_by_line(name, request, cache):
    tokenizer = request.getfixturevalue(name)
    texts = Dataset.from_dict({"text": ["", *DOCUMENTS, " "]})
    rows = rows_of(
        tokenize_and_pack(texts, tokenizer, max_seq_length=20, line_by_line=True, cache_dir=cache)
    )
    for row, document in zip(rows, DOCUMENTS, strict=True):
        full = naive_stream(tokenizer, [document])
        assert row == (full if len(full) <= 20 else [*full[:19], full[-1]])
    assert {len(row) for row in rows} > {20}


def test_shared_rows_by_hand():
    """Where the least room is left; a full row is handed out at once, the others at the end, the
    fullest first.
    """
    documents = [np.full(length, number) for number, length in enumerate([3, 6, 2, 5, 1, 4])]
    rows = [row.tolist() for row in packing.shared_rows(documents, 8)]
    assert rows == [[1] * 6 + [2] * 2, [0] * 3 + [3] * 5, [4] + [5] * 4]


def test_of_too_many_open_rows_the_fullest_is_handed_out(monkeypatch):
    monkeypatch.setattr(packing, "_OPEN_ROWS", 2)
    rows = packing.shared_rows([np.full(length, length) for length in (5, 6, 7, 1)], 8)
    assert [row.tolist() for row in rows] == [[6] * 6, [7] * 7 + [1], [5] * 5]


@pytest.mark.parametrize("name", ["clm", "mlm"])
@pytest.mark.parametrize("processes", [1, 2])
def test_documents_that_share_rows_are_whole_and_all_there(name, processes, request, cache):
    tokenizer, documents = request.getfixturevalue(name), DOCUMENTS * 40
    texts, settings = (
        Dataset.from_dict({"text": ["", *documents, " "]}),
        {"line_by_line": True, "share_rows": True},
    )
    settings |= {"num_proc": processes, "cache_dir": cache}
    rows = rows_of(tokenize_and_pack(texts, tokenizer, max_seq_length=256, **settings))
    end = tokenizer.sep_token_id if name == "mlm" else tokenizer.eos_token_id
    found = []
    for row in rows:
        assert row[-1] == end and len(row) <= 256
        ends = [0, *(index + 1 for index, token in enumerate(row) if token == end)]
        found += [row[start:stop] for start, stop in zip(ends[:-1], ends[1:], strict=True)]
    cut = [naive_stream(tokenizer, [document]) for document in documents]
    assert sorted(found) == sorted(row if len(row) <= 256 else [*row[:255], row[-1]] for row in cut)
    # A tenth of it where each has a row of its own.
    assert sum(map(len, rows)) > 0.97 * 256 * len(rows)


def test_documents_without_an_end_do_not_share_rows(cache):
    tokenizer = train_tokenizer(DOCUMENTS, vocab_size=300)
    tokenizer.eos_token = None
    settings = {"max_seq_length": 64, "line_by_line": True, "cache_dir": cache}
    said = "isolate_documents is True with line_by_line but the tokenizer has no end-of-text token"
    with pytest.raises(ValueError, match=said):
        tokenize_and_pack(
            Dataset.from_dict({"text": DOCUMENTS}), tokenizer, share_rows=True, **settings
        )
    rows = tokenize_and_pack(
        Dataset.from_dict({"text": DOCUMENTS}), tokenizer, **settings | {"max_seq_length": 5}
    )
    # No token stands beside one that it does not follow in the text.
    assert rows_of(rows) == [tokenizer(text)["input_ids"][:5] for text in DOCUMENTS if text]


@pytest.mark.parametrize(
    "settings", [{}, {"line_by_line": True}, {"line_by_line": True, "share_rows": True}]
)
def test_stream_equals_memory(settings, clm, cache):
    texts = Dataset.from_dict({"text": DOCUMENTS * 40})  # more than are encoded at a time
    memory = tokenize_and_pack(texts, clm, max_seq_length=32, cache_dir=cache, **settings)
    stream = tokenize_and_pack(texts.to_iterable_dataset(), clm, max_seq_length=32, **settings)
    assert rows_of(stream) == rows_of(memory)
    assert rows_of(stream) == rows_of(memory)  # a second epoch


def test_processes_do_not_change_the_rows(clm, cache, monkeypatch):
    monkeypatch.setattr(packing, "BATCH_BYTES", 300)  # so that there is work for all of them
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    texts = Dataset.from_dict({"text": DOCUMENTS}).select(range(59, -1, -1))  # rows found by number
    settings = {"max_seq_length": 16, "cache_dir": cache, "overwrite_cache": True}
    one, three = (tokenize_and_pack(texts, clm, num_proc=n, **settings) for n in (1, 3))
    assert rows_of(one) == rows_of(three) == naive_rows(naive_stream(clm, DOCUMENTS[::-1]), 16)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.parametrize(("marked", "processes", "streamed"), [(3, 1, 0), (4, 2, 0), (5, 1, 1)])
def test_documents_that_are_already_marked_are_warned_of_with_their_number(
    mlm, cache, caplog, monkeypatch, marked, processes, streamed
):
    monkeypatch.setattr(packing, "BATCH_BYTES", 300)  # so that there is work for both processes
    documents = [f"[CLS]{document}" for document in DOCUMENTS[:marked]] + DOCUMENTS[marked:]
    texts = Dataset.from_dict({"text": documents})
    if streamed:
        texts = texts.to_iterable_dataset()
    settings = {"max_seq_length": 16, "cache_dir": cache, "num_proc": processes}
    rows = tokenize_and_pack(texts, mlm, **settings)
    assert rows_of(rows) == naive_rows(naive_stream(mlm, DOCUMENTS), 16)
    (warning,) = [message for message in caplog.messages if "[CLS]" in message]
    assert warning.startswith(f"{marked} of 60 documents")


def test_too_little_text(clm, cache):
    texts = Dataset.from_dict({"text": ["a b"]})
    tokens = len(naive_stream(clm, ["a b"]))
    message = f"max_seq_length is 64 but the texts have only {tokens} tokens.*--max_seq_length, or use --line_by_line"
    with pytest.raises(ValueError, match=message):
        tokenize_and_pack(texts, clm, max_seq_length=64, cache_dir=cache)
    with pytest.raises(ValueError, match=message):
        next(iter(tokenize_and_pack(texts.to_iterable_dataset(), clm, max_seq_length=64)))
    assert len(tokenize_and_pack(texts, clm, max_seq_length=tokens, cache_dir=cache)) == 1


@pytest.fixture
def encodings(monkeypatch):
    """How often documents were encoded."""
    calls = []
    encode = packing._encoded_batches
    monkeypatch.setattr(packing, "_encoded_batches", lambda *args: calls.append(1) or encode(*args))
    return calls


def test_second_call_finds_the_rows(clm, cache, encodings):
    def pack(**settings):
        settings = {"max_seq_length": 16, "cache_dir": cache} | settings
        return tokenize_and_pack(Dataset.from_dict({"text": DOCUMENTS}), clm, **settings)

    first = pack()
    # Leaves its settings on the tokenizer.
    clm("a b c", truncation=True, max_length=2, padding="max_length")
    second = pack(num_proc=2)
    assert len(encodings) == 1 and rows_of(first) == rows_of(second)
    for number, settings in enumerate(
        ({"overwrite_cache": True}, {"max_seq_length": 8}, {"line_by_line": True}), 2
    ):
        pack(**settings)
        assert len(encodings) == number
    # Though its file was replaced.
    assert first[0]["input_ids"].tolist() == second[0]["input_ids"].tolist()


def test_a_saved_tokenizer_finds_the_rows(clm, tmp_path, cache, encodings):
    clm.save_pretrained(tmp_path / "tokenizer")
    for tokenizer in (clm, AutoTokenizer.from_pretrained(tmp_path / "tokenizer")):
        tokenize_and_pack(
            Dataset.from_dict({"text": DOCUMENTS}), tokenizer, max_seq_length=16, cache_dir=cache
        )
    assert len(encodings) == 1


def test_other_texts_tokenizers_and_versions_have_other_rows(
    clm, mlm, cache, encodings, monkeypatch
):
    texts = Dataset.from_dict({"text": DOCUMENTS})
    for number, (part, tokenizer) in enumerate(
        ((texts, clm), (texts, mlm), (texts.select(range(50)), clm)), 1
    ):
        rows = tokenize_and_pack(part, tokenizer, max_seq_length=16, cache_dir=cache)
        assert len(encodings) == number
        assert rows_of(rows) == naive_rows(naive_stream(tokenizer, part["text"]), 16)
    monkeypatch.setattr(packing, "ROWS_VERSION", 0)
    tokenize_and_pack(texts, clm, max_seq_length=16, cache_dir=cache)
    monkeypatch.setattr(clm, "split_special_tokens", True)
    tokenize_and_pack(texts, clm, max_seq_length=16, cache_dir=cache)
    assert len(encodings) == 5


def test_rows_lie_next_to_the_texts_or_in_the_cache(clm, text_file, cache, tmp_path):
    texts = load_texts(DataArguments(train_file=[str(text_file)]), cache_dir=cache)["train"]
    for found, folder in (
        (texts, cache),
        (Dataset.from_dict({"text": DOCUMENTS}), tmp_path / "library_cache"),
    ):
        rows = tokenize_and_pack(found, clm, max_seq_length=16)
        assert rows.cache_files[0]["filename"].startswith(str(folder))


def test_check_token_ids(clm):
    rows = Dataset.from_dict({"input_ids": [[1, 2, 299], [0]]})
    check_token_ids(rows, 300, clm)
    check_token_ids(rows.select([1]), 299, clm)  # rows that are not used do not count
    stream = rows.select([1]).to_iterable_dataset()  # of which the tokenizer counts
    check_token_ids(stream, 300, clm)
    for refused in (rows, stream):
        with pytest.raises(
            ValueError, match="id is 299 .* 299 rows .* has ids up to 299.*--resize_embeddings"
        ):
            check_token_ids(refused, 299, clm)
    gaps = copy.deepcopy(clm)
    gaps.get_vocab = lambda: {"a": 0, "b": 329}
    with pytest.raises(ValueError, match="id is 329 .* 329 rows .* has ids up to 329"):
        check_token_ids(stream, 329, gaps)


@pytest.mark.parametrize("streamed", [False, True])
def test_unknown_tokens_are_said(mlm, clm, streamed, caplog):
    """Of the tokens that are not special: [CLS] and [SEP] are known."""
    unknown, known = mlm.unk_token_id, len(mlm) - 1
    row = [mlm.cls_token_id, mlm.sep_token_id] * 100

    def check(number: int, of: int, tokenizer=mlm, unknown=unknown):
        rows = Dataset.from_dict({"input_ids": [row, [unknown] * number + [known] * (of - number)]})
        caplog.clear()
        check_token_ids(rows.to_iterable_dataset() if streamed else rows, 300, tokenizer)
        return caplog.text

    assert check(1, 100) == ""
    assert (
        "2.0% of the tokens are unknown to the tokenizer ([UNK]), so the model cannot learn"
        in check(2, 100)
    )
    with pytest.raises(
        ValueError, match=r"^51.0% of the tokens are unknown .* or train one on them"
    ):
        check(51, 100)
    gpt2 = copy.deepcopy(clm)
    gpt2.unk_token = gpt2.eos_token  # the end of a document is not unknown
    assert check(90, 100, gpt2, gpt2.eos_token_id) == ""


def test_what_line_by_line_cuts_is_said(clm, cache, caplog, monkeypatch):
    texts = Dataset.from_dict({"text": ["a b c d e f g h i j", "a", "a b c"]})
    whole = [len(clm(text)["input_ids"]) + 1 for text in texts["text"]]  # and the end
    limit = max(whole) - 3
    tokenize_and_pack(texts, clm, max_seq_length=limit, line_by_line=True, cache_dir=cache)
    said = f"1 of 3 documents are longer than max_seq_length, {limit}, and cut: {300 / sum(whole):.1f} % of tokens"
    assert said in caplog.text
    caplog.clear()
    stream = tokenize_and_pack(
        texts.to_iterable_dataset(), clm, max_seq_length=limit, line_by_line=True
    )
    monkeypatch.setattr(packing, "_FIRST_ROWS", 1)
    check_token_ids(stream, 300, clm)  # as before each training
    gc.collect()
    assert said.replace("of 3", "of the first 3") in caplog.text
    caplog.clear()
    tokenize_and_pack(texts, clm, max_seq_length=max(whole) + 1, line_by_line=True, cache_dir=cache)
    assert "line_by_line" not in caplog.text


def test_target_counts(clm, mlm_tokenizer):
    rows = Dataset.from_dict({"input_ids": [[1, 2, 2], [5], []]})
    assert target_counts(rows, 7, "clm", clm).tolist() == [0, 0, 2, 0, 0, 0, 0]
    assert target_counts(rows, 7, "clm", clm).dtype == torch.int64
    padded = Dataset.from_dict({"input_ids": [[2, 2, 1, 2]], "attention_mask": [[0, 0, 1, 1]]})
    assert target_counts(padded, 3, "clm", clm).tolist() == [0, 0, 1]
    of_mlm = target_counts(
        Dataset.from_dict({"input_ids": [[2, 5, 6], [9, 9, 3]]}), 10, "mlm", mlm_tokenizer
    )
    assert of_mlm.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 2]


@pytest.mark.parametrize("isolate", [False, True])
def test_counts_of_packed_rows_are_those_of_the_targets_that_a_training_draws(
    clm, cache, isolate, tmp_path
):
    rows = tokenize_and_pack(
        Dataset.from_dict({"text": DOCUMENTS}), clm, max_seq_length=16, cache_dir=cache
    )
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16, vocab_size=300))
    args = HeadlessTrainingArguments(str(tmp_path), isolate_documents=isolate, use_cpu=True)
    labels = TargetMaker("clm", model, clm, args)(
        {"input_ids": torch.tensor(rows["input_ids"][:])}, None
    )["labels"]
    expected = labels[labels >= 0].bincount(minlength=300)
    assert torch.equal(target_counts(rows, 300, "clm", clm, isolate), expected)
    chosen = rows.shuffle(seed=0).select(range(3))
    assert target_counts(chosen, 300, "clm", clm).sum() == 3 * 15


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize(
    "given",
    [
        "",
        "attention_mask",
        "special_tokens_mask attention_mask position_ids",
        "labels attention_mask",
        "seq_lengths",
        "seq_lengths labels",
    ],
)
def test_counts_are_of_what_the_trainer_predicts(given, task, isolate, clm, mlm, tmp_path):
    """Padded rows, each token of which may be left out, a label of its own, or the beginning of a
    document.
    """
    tokenizer, draw = clm if task == "clm" else mlm, np.random.default_rng(0)
    rows = []
    has_documents = "seq_lengths" in given
    for length in (9, 16, 1, 16):
        row = {name: draw.integers(0, 2, length) for name in given.split()}
        if has_documents:
            row["seq_lengths"] = np.array([length // 3, length - length // 3])
            row["seq_lengths"] = row["seq_lengths"][row["seq_lengths"] > 0]
        row |= {"input_ids": draw.integers(0, 12, length)}
        if "labels" in row:
            row["labels"] = np.where(row["labels"], draw.integers(0, 300, length), -100)
        rows.append({name: values.tolist() for name, values in row.items()})
    model = tiny_model(task, 300)
    args = HeadlessTrainingArguments(
        str(tmp_path), isolate_documents=isolate, mlm_probability=0.999, use_cpu=True
    )
    make_targets = TargetMaker(task, model, tokenizer, args)
    batch = PaddingCollator(tokenizer)(rows)
    if has_documents and not isolate:
        with pytest.raises(ValueError, match="isolate_documents is False"):
            make_targets(batch, None)
        return
    labels = make_targets(batch, None)["labels"]
    naive = labels[labels >= 0].bincount(minlength=300)
    assert naive.any() and torch.equal(
        target_counts(Dataset.from_list(rows), 300, task, tokenizer, isolate), naive
    )


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_rows_of_one_length_are_stacked(kind, clm):
    batch = PaddingCollator(clm)(
        [{"input_ids": kind([1, 2]), "text": "x", "idx": 3}, {"input_ids": kind([3, 4])}]
    )
    assert list(batch) == ["input_ids"]
    assert batch["input_ids"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [[1, 2], [3, 4]]


def test_a_number_for_each_row_is_left_out_whatever_its_type(clm):
    rows = Dataset.from_list([{"input_ids": [5, 6, 7, 8], "idx": number} for number in range(2)])
    for kind in (None, "numpy", "torch"):
        batch = PaddingCollator(clm)(list(rows.with_format(kind)))
        assert list(batch) == ["input_ids"] and batch["input_ids"].shape == (2, 4)


def test_counts_are_of_the_columns_that_a_format_shows(clm):
    row = {"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 0, 1]}
    rows = Dataset.from_list([row] * 2)
    assert target_counts(rows, 10, "clm", clm).nonzero().flatten().tolist() == [8]
    shown = rows.with_format("torch", columns=["input_ids"])
    assert target_counts(shown, 10, "clm", clm).nonzero().flatten().tolist() == [6, 7, 8]


@pytest.mark.parametrize("wrong", [10, -1])
def test_a_target_without_a_row_in_the_embedding_is_not_counted(clm, wrong):
    rows = Dataset.from_list([{"input_ids": [5, wrong, 7]}])
    said = f"train_dataset holds the token id {wrong} but the embedding has 10 rows"
    with pytest.raises(ValueError, match=said):
        target_counts(rows, 10, "clm", clm)


def test_rows_are_padded_to_the_longest(mlm):
    names = ("token_type_ids", "special_tokens_mask", "labels", "position_ids")
    rows = [{"input_ids": [5, 6, 7]} | {name: [2, 3, 4] for name in names}]
    rows += [{"input_ids": [8]} | {name: [9] for name in names}]
    given = [row | {"attention_mask": [0] * len(row["input_ids"])} for row in rows]
    assert PaddingCollator(mlm)(given)["attention_mask"].tolist() == [[0, 0, 0]] * 2
    assert PaddingCollator(None)([{"input_ids": [1, 2]}, {"input_ids": [3]}])[
        "input_ids"
    ].tolist() == [[1, 2], [3, 0]]
    batch = PaddingCollator(mlm)(rows)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7], [8, mlm.pad_token_id, mlm.pad_token_id]], "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[2, 3, 4], [9, 0, 0]], "special_tokens_mask": [[2, 3, 4], [9, 1, 1]],
        "position_ids": [[2, 3, 4], [9, 0, 0]], "labels": [[2, 3, 4], [9, -100, -100]],
    }  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), [
    ([{"input_ids": [1]}, {"input_ids": []}], "Row 1 of the batch has no tokens"),
    ([{"text": "a"}], r"needs the column 'input_ids', got the columns \['text'\]"),
    ([{"input_ids": [1, 2], "labels": [1]}], "Column 'labels' of row 0 has 1 values for 2 tokens"),
    ([{"input_ids": [1, 2], "seq_lengths": [1, 2]}], "Column 'seq_lengths' of row 0 is .1, 2., but"),
    ([{"input_ids": [1, 2], "seq_lengths": [2, 0]}], "Column 'seq_lengths' of row 0 is .2, 0., but"),
    ([{"input_ids": [1, 2], "labels": 1}], "Column 'labels' of row 0 has the one value 1 for 2 tokens: remove"),
])  # fmt: skip
def test_collator_errors(rows, message, clm):
    with pytest.raises(ValueError, match=message):
        PaddingCollator(clm)(rows)
