"""Conversations become texts by the chat template of the tokenizer, with no token twice."""

import copy
import datetime

import pytest
from row_files import write_jsonl, write_rows
from tokenizers import processors

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.conversations import ChatTemplate
from headless_trainer.corpus.encoding import DocumentEncoder
from headless_trainer.corpus.texts import find_texts, load_texts

BOTH = pytest.mark.parametrize("streaming", [False, True])
TEMPLATE = (
    "{% set line_end = '\\n' %}"
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}"
    "{% if message.name is defined %} by {{ message.name }}{% endif %}{{ line_end }}{% endfor %}"
)
RAISING = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with user') }}{% endif %}x"
CHAT = [{"role": "user", "content": "How deep?"}, {"role": "assistant", "content": "Very."}]
SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "How deep?"},
    {"from": "gpt", "value": "Very."},
]


@pytest.fixture
def chat_tokenizer(clm_tokenizer):
    tokenizer = copy.deepcopy(clm_tokenizer)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def load(path, column, tokenizer, cache, **settings):
    args = DataArguments(
        train_file=[str(path)], validation_file=[str(path)], text_column=column, **settings
    )
    parts = load_texts(args, cache_dir=cache, tokenizer=tokenizer)
    return [row["text"] for row in parts["train"]]


@BOTH
@pytest.mark.parametrize("kind", ["jsonl", "json.gz", "parquet", "arrow"])
def test_messages_are_written_with_the_template(kind, streaming, tmp_path, cache, chat_tokenizer):
    named = [{"role": "user", "content": "And now?", "name": "Ann"}]
    rows = [{"messages": CHAT, "source": "web"}, {"messages": named, "source": "web"}]
    path = write_rows(tmp_path / f"a.{kind}", rows)
    expected = ["[user] How deep?\n[assistant] Very.\n", "[user] And now? by Ann\n"]
    assert load(path, "messages", chat_tokenizer, cache, streaming=streaming) == expected


@BOTH
def test_messages_of_sharegpt_get_the_roles_of_templates(
    streaming, tmp_path, cache, chat_tokenizer
):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": "1", "conversations": SHAREGPT}])
    expected = ["[system] Be brief.\n[user] How deep?\n[assistant] Very.\n"]
    assert load(path, "conversations", chat_tokenizer, cache, streaming=streaming) == expected


def test_rows_without_messages_are_counted(tmp_path, cache, chat_tokenizer, caplog):
    rows = [{"messages": CHAT}, {"messages": None}, {"messages": []}]
    rows += [{"messages": []}] * 2_000  # whole tables of them, whose type is then another
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert len(load(path, "messages", chat_tokenizer, cache)) == 1
    assert "2,002 of 2,003 rows have no text in the column 'messages'" in caplog.text


def test_a_document_has_the_tokens_around_a_text_once(tmp_path, cache, clm_tokenizer):
    """The tokenizer adds a token before every text, and the template writes it too."""
    tokenizer = copy.deepcopy(clm_tokenizer)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE.replace("'\\n'", "eos_token + '\\n'")
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    texts = load(path, "messages", tokenizer, cache)
    encoded = DocumentEncoder(tokenizer)(texts)
    assert encoded.doubled == 0  # so no warning tells users what the template is for
    assert tokenizer.decode(encoded.ids) == f"{end}[user] How deep?{end}\n[assistant] Very.{end}"


def test_a_document_has_each_of_several_tokens_before_a_text_once(tmp_path, cache, clm_tokenizer):
    """Tokenizers of GLM add two tokens, both of which the template writes too."""
    tokenizer = copy.deepcopy(clm_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[gMASK]", "<sop>"]})
    added = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[gMASK]", "<sop>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", special_tokens=added
    )
    tokenizer.chat_template = "[gMASK]<sop>" + TEMPLATE
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    encoded = DocumentEncoder(tokenizer)(load(path, "messages", tokenizer, cache))
    assert encoded.doubled == 0
    decoded = tokenizer.decode(encoded.ids)
    end = tokenizer.eos_token
    assert decoded == f"[gMASK]<sop>[user] How deep?\n[assistant] Very.\n{end}"


@pytest.mark.parametrize("tokenizer_of_run", ["without a template", None])
def test_a_tokenizer_without_a_template_is_refused(tokenizer_of_run, tmp_path, clm_tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    args = DataArguments(train_file=[path], text_column="messages")
    tokenizer = clm_tokenizer if tokenizer_of_run else None
    with pytest.raises(
        ValueError, match="text_column is 'messages'.*no chat template.*--tokenizer_"
    ):
        find_texts(args, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (RAISING, [{"role": "assistant", "content": "Very."}], "begin with user"),
        (TEMPLATE, [{"from": "parrot", "value": "Very."}], "is from 'parrot'"),
    ],
)
def test_a_conversation_that_cannot_be_written_is_named(
    template, messages, message, tmp_path, cache, chat_tokenizer
):
    chat_tokenizer.chat_template = template
    good = SHAREGPT[1:] if "from" in messages[0] else CHAT
    rows = [{"messages": good}] * 1_500 + [{"messages": messages}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=f"^row 1,501 of train_file .*a.jsonl.*{message}"):
        load(path, "messages", chat_tokenizer, cache)


def test_texts_of_another_template_do_not_come_from_the_cache(tmp_path, cache, chat_tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    load(path, "messages", chat_tokenizer, cache)
    chat_tokenizer.chat_template = "{{ messages | length }} messages"
    assert load(path, "messages", chat_tokenizer, cache) == ["2 messages"]


def test_texts_do_not_depend_on_the_day(tmp_path, cache, chat_tokenizer, caplog):
    chat_tokenizer.chat_template = (
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"
    )
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    assert load(path, "messages", chat_tokenizer, cache) == ["26 Jul 2024"]
    assert datetime.date.today().year > 2024 and "date" in caplog.text


def test_a_stream_of_another_template_is_another_stream(tmp_path, chat_tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": CHAT}])
    args = DataArguments(train_file=[path], text_column="messages", streaming=True)
    args.validation_file = [path]
    first = load_texts(args, tokenizer=chat_tokenizer)["train"].read_by
    chat_tokenizer.chat_template = "{{ messages | length }} messages"
    assert load_texts(args, tokenizer=chat_tokenizer)["train"].read_by != first
    assert first[:2] == ["line", "messages"]


BEHIND_ANSWERS = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }} "
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
CHATML = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}"
AT_THE_END = "{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}{{ eos_token }}"


def test_a_template_that_ends_each_message_does_not_isolate_conversations(chat_tokenizer):
    chat_tokenizer.chat_template = CHATML
    with pytest.raises(ValueError, match="isolate_documents is True but the chat template writes"):
        ChatTemplate.of(chat_tokenizer, "messages").check_keeps_conversations_whole()


def test_a_template_that_ends_each_answer_parts_turns_with_a_warning(chat_tokenizer, caplog):
    chat_tokenizer.chat_template = BEHIND_ANSWERS
    ChatTemplate.of(chat_tokenizer, "messages").check_keeps_conversations_whole()
    assert "behind each answer" in caplog.text


@pytest.mark.parametrize("template", [TEMPLATE, AT_THE_END, RAISING])
def test_a_template_that_ends_conversations_alone_isolates_them(chat_tokenizer, template, caplog):
    chat_tokenizer.chat_template = template
    ChatTemplate.of(chat_tokenizer, "messages").check_keeps_conversations_whole()
    assert not caplog.records
