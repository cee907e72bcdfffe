"""Write conversations, which rows hold as lists of messages, as texts with a chat template."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from datasets.fingerprint import Hasher
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from .encoding import DocumentEncoder, document_ends

logger = logging.getLogger(__name__)

# The fields of a message: those that chat templates read, and those of ShareGPT.
CHAT_FIELDS = ("role", "content")
SHAREGPT_FIELDS = ("from", "value")
_ROLES_OF_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
# Some templates print the date of today. The texts of a run must not depend on the day: a resumed
# run would read other texts, and hold out others. This shadows the function that they ask, with the
# date that templates of Llama 3 fall back to.
_DATE_FUNCTION = "strftime_now"
_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}"
    "{{- format | replace('%d', '26') | replace('%b', 'Jul') | replace('%B', 'July')"
    " | replace('%m', '07') | replace('%Y', '2024') -}}"
    "{%- endmacro -%}"
)


def holds_conversations(column_type: pa.DataType) -> bool:
    """Return whether the values of a column are lists of messages."""
    if not (pa.types.is_list(column_type) or pa.types.is_large_list(column_type)):
        return False
    message_type = column_type.value_type
    if not pa.types.is_struct(message_type):
        return False
    fields = {field.name for field in message_type}
    return fields.issuperset(CHAT_FIELDS) or fields.issuperset(SHAREGPT_FIELDS)


def content_field(column_type: pa.DataType) -> str:
    """Return the name of the field with the words of a message, for a type of conversations."""
    fields = {field.name for field in column_type.value_type}
    _, content_of_chat = CHAT_FIELDS
    _, content_of_sharegpt = SHAREGPT_FIELDS
    if content_of_chat in fields:
        return content_of_chat
    return content_of_sharegpt


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, which turns a conversation into one document.

    The document has no token twice that the tokenizer or the packing adds to every document: what
    the tokenizer puts before every text, such as a beginning-of-text token, goes where the template
    writes it too, and so does white space behind its last end-of-text token.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase | None, text_column: str) -> "ChatTemplate":
        """Return the template of a tokenizer.

        Raises:
            ValueError: if there is no tokenizer yet, or it has no template.
        """
        remedy = (
            "name one that has with --tokenizer_name, or write the conversations into a column of "
            "strings yourself"
        )
        if tokenizer is None:
            raise ValueError(
                f"text_column is {text_column!r}, which holds conversations, but a tokenizer that "
                f"is yet to be trained has no chat template: {remedy}."
            )
        if tokenizer.chat_template is None:
            raise ValueError(
                f"text_column is {text_column!r}, which holds conversations, but the tokenizer "
                f"{tokenizer.name_or_path!r} has no chat template: {remedy}."
            )
        template = tokenizer.get_chat_template()
        if _DATE_FUNCTION in template:
            logger.warning(
                "The chat template asks for today's date. It gets 26 July 2024 in every run, so "
                "that the texts do not change from day to day."
            )
            template = _FIXED_DATE + template
        return cls(tokenizer, template)

    @property
    def identity(self) -> str:
        """A hash of all that determines the texts besides the conversations."""
        # Templates write special tokens by their role, such as ``bos_token``.
        specials = sorted(self.tokenizer.special_tokens_map.items())
        return Hasher.hash([self.template, repr(specials), self._added_before])

    def texts(self, conversations: pa.ChunkedArray, source: str, first_row: int) -> pa.Array:
        """Write conversations as texts; rows without messages have none.

        Args:
            conversations: ``(N,)``, see `holds_conversations`.
            source: of the rows, for messages.
            first_row: number of the first conversation among the rows of the source.

        Returns:
            Strings or nulls, ``(N,)``.

        Raises:
            ValueError: if a conversation cannot be written, with source and row.
        """
        texts = []
        for row, conversation in enumerate(conversations.to_pylist(), first_row):
            try:
                texts.append(self._text(conversation))
            except (TemplateError, TypeError, ValueError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise ValueError(
                    f"row {row:,} of {source} holds a conversation that the chat template cannot "
                    f"write ({reason:.300}): change it, or leave it out."
                ) from error
        return pa.array(texts, pa.string())

    def check_keeps_conversations_whole(self) -> None:
        """Refuse a template that ends each message with a token that ends a document, where
        documents are kept apart; warn of one that ends each answer with it.

        Raises:
            ValueError: if a question and its answer would be two documents, as with ChatML where
                ``<|im_end|>`` is the end-of-text token.
        """
        end = self._end_within(turns=1)
        if end is not None:
            raise ValueError(
                f"isolate_documents is True but the chat template writes {end!r}, which ends a "
                "document, behind each message, so an answer would not see its question: leave "
                "isolate_documents out. With line_by_line each conversation has a row of its own."
            )
        end = self._end_within(turns=2)
        if end is not None:
            logger.warning(
                "The chat template writes %r, which ends a document, behind each answer: with "
                "isolate_documents an answer sees its question, but no earlier turn.",
                end,
            )

    def _end_within(self, turns: int) -> str | None:
        """Return a token that ends a document within a conversation of so many questions and
        answers, or None.
        """
        question = {"role": "user", "content": "a"}
        answer = {"role": "assistant", "content": "b"}
        try:
            text = self._text(turns * [question, answer])
        except (TemplateError, TypeError, ValueError):
            # The rows may have another form, which the template can write.
            return None
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        inner_ends = set(document_ends(self.tokenizer)).intersection(ids[:-1])
        if not inner_ends:
            return None
        return str(self.tokenizer.convert_ids_to_tokens(min(inner_ends)))

    def _text(self, conversation: Sequence[dict | None] | None) -> str | None:
        messages = [_as_message(message) for message in conversation or () if message is not None]
        if not messages:
            return None
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False
        )
        assert isinstance(text, str)  # for type checkers: others are for batches and ids
        text = text.removeprefix(self._added_before)
        # Behind white space the encoder would not see that the document has its end-of-text token,
        # and append another.
        end = self.tokenizer.eos_token
        if end is not None and text.rstrip().endswith(end):
            text = text.rstrip()
        return text

    # Once, not for each table of rows: a tokenizer with truncation is copied whole for it.
    @cached_property
    def _added_before(self) -> str:
        """What the tokenizer puts before every text: one token, several or none."""
        ids = DocumentEncoder(self.tokenizer).added_before
        return "".join(self.tokenizer.convert_ids_to_tokens(ids))


def _as_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the fields that templates read, without empty ones.

    A column has all fields that any of its messages has, with null where one lacks them.
    """
    fields = _without_nulls(message)
    sender, content = SHAREGPT_FIELDS
    if "role" not in fields and sender in fields:
        name = fields.pop(sender)
        if name not in _ROLES_OF_SHAREGPT:
            known = ", ".join(_ROLES_OF_SHAREGPT)
            raise ValueError(f"a message is from {name!r}, which is none of {known}")
        fields["role"] = _ROLES_OF_SHAREGPT[name]
        fields["content"] = fields.pop(content, "")
    if "role" not in fields:
        raise ValueError(f"a message has no role, only {json.dumps(sorted(fields))}")
    return fields


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
