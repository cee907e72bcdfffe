"""Choose the column that holds the texts, from the types of all columns in all files and splits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from .conversations import ChatTemplate, content_field, holds_conversations
from .file_rows import separator_hint

logger = logging.getLogger(__name__)

DEFAULT_COLUMN = "text"
_QUESTION_AND_ANSWER = ("prompt", "completion")
_LONGEST_TYPE = 80  # characters of a type in a message


@dataclass(frozen=True)
class TextColumn:
    """The column with the texts: strings, or conversations for a template."""

    name: str
    template: ChatTemplate | None = None

    @property
    def identity(self) -> list[str]:
        """All that determines the texts of a row."""
        if self.template is None:
            return [self.name]
        return [self.name, self.template.identity]

    def texts(self, table: pa.Table, source: str, first_row: int) -> pa.ChunkedArray:
        """Return the texts of some rows, strings or nulls, ``(N,)``.

        Args:
            table: ``N`` rows with this column.
            source: of the rows, for messages.
            first_row: number of the first of them in the source.

        Raises:
            ValueError: if the column has another type here than where it was chosen.
        """
        if self.name not in table.column_names:
            raise ValueError(
                f"text_column {self.name!r} is missing in {source}, whose columns are "
                f"{', '.join(table.column_names)}: rename one, or name it."
            )
        column = table[self.name]
        # Each table has the types that its own rows show, so they are checked for each.
        if self.template is not None and holds_conversations(column.type):
            return pa.chunked_array([self.template.texts(column, source, first_row)])
        if is_empty(column.type):
            return pa.chunked_array([pa.nulls(len(column), pa.string())])
        if self.template is not None or not is_text(column.type):
            content = "conversations"
            if self.template is None:
                content = "text"
            raise ValueError(
                f"text_column {self.name!r} must hold {content} everywhere in {source}, "
                f"not {_shown(column.type)}, as in its rows {first_row} to "
                f"{first_row + len(table) - 1}."
            )
        if _is_category_of_views(column.type):
            # Arrow cannot decode it. Its categories are not cast to strings, since a table of few
            # rows holds those of the whole file.
            return pa.chunked_array([column.to_pylist()], pa.string())
        return column.cast(pa.string())


def is_text(column_type: pa.DataType) -> bool:
    """Return whether values of a type are strings, also where each is the number of one."""
    if pa.types.is_dictionary(column_type):
        # As pandas and Polars write a column of categories.
        return is_text(column_type.value_type)
    return (
        pa.types.is_string(column_type)
        or pa.types.is_large_string(column_type)
        or pa.types.is_string_view(column_type)
    )


def _is_category_of_views(column_type: pa.DataType) -> bool:
    """Return whether values of a type are numbers of strings that Arrow stores as views."""
    return pa.types.is_dictionary(column_type) and pa.types.is_string_view(column_type.value_type)


def is_empty(column_type: pa.DataType) -> bool:
    """Return whether values of a type hold nothing: they are null, or lists without items."""
    if pa.types.is_list(column_type) or pa.types.is_large_list(column_type):
        return is_empty(column_type.value_type)
    return pa.types.is_null(column_type)


def choose_text_column(
    schemas: Mapping[str, pa.Schema], text_column: str | None
) -> tuple[str, pa.DataType]:
    """Choose the text column of a run: the named one, or "text", or the only one that can be.

    Args:
        schemas: of everything that the run reads, by its name in messages.
        text_column: the name that the user gave, if any.

    Returns:
        The column's name and type: strings or lists of messages.

    Raises:
        ValueError: if the choice is not certain, or the column is missing or no text somewhere.
    """
    # Of each column, its types in all sources that have it.
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas.values():
        for field in schema:
            types.setdefault(field.name, []).append(field.type)
    if text_column is not None:
        name = text_column
    elif DEFAULT_COLUMN in types:
        name = DEFAULT_COLUMN
    else:
        name = _only_candidate(types)
    if name not in types:
        raise ValueError(_refusal(text_column, "no column has that name", types))
    for source, schema in schemas.items():
        if name not in schema.names:
            holders = (other for other, columns in schemas.items() if name in columns.names)
            raise ValueError(
                f"text_column is {text_column!r}, but {name!r} is a column of {next(holders)} and "
                f"not of {source}, whose columns are: {_listing(_types_of(schema))}. Rename the "
                "column that holds the texts there, or name one that all files have."
            )
    column_type = _one_type(name, text_column, schemas, types)
    if name not in (text_column, DEFAULT_COLUMN):
        # Nobody named it, so whoever reads the log can see what was chosen.
        logger.info("texts are those of the column %.300r", name)
    return name, column_type


def _only_candidate(types: dict[str, list[pa.DataType]]) -> str:
    """Return the only column that can hold the texts; raise ValueError unless that is certain.

    Lists and structs may hold the texts, while a column of strings beside them holds names or
    addresses. Bytes may be text, and a column without values in the first rows may be anything.
    """
    texts = []
    doubtful = []
    for name, column_types in types.items():
        with_values = [
            column_type for column_type in column_types if not pa.types.is_null(column_type)
        ]
        if with_values and all(is_text(column_type) for column_type in with_values):
            texts.append(name)
        elif any(may_hold_text(column_type) for column_type in column_types):
            doubtful.append(name)
    if len(texts) == 1 and not doubtful:
        # A table with other separators has one column too, whose texts are whole lines.
        hint = separator_hint([*types])
        if hint is not None:
            raise ValueError(f"{hint}, or name it with --text_column.")
        return texts[0]
    if not texts:
        reason = "no column holds plain text"
    elif len(texts) > 1:
        reason = f"{len(texts)} columns hold text"
    else:
        reason = f"the texts may be in {', '.join(map(repr, doubtful))} rather than {texts[0]!r}"
    raise ValueError(_refusal(None, reason, types))


def may_hold_text(column_type: pa.DataType) -> bool:
    """Return whether values are strings or bytes, or lists or structs that may have some inside."""
    if pa.types.is_struct(column_type):
        return any(may_hold_text(field.type) for field in column_type)
    if pa.types.is_map(column_type):
        return may_hold_text(column_type.item_type)
    if pa.types.is_nested(column_type):  # lists of all kinds
        return column_type.num_fields == 0 or may_hold_text(column_type.field(0).type)
    return (
        is_text(column_type)
        or pa.types.is_binary(column_type)
        or pa.types.is_large_binary(column_type)
        or pa.types.is_null(column_type)
    )


def _one_type(
    name: str,
    text_column: str | None,
    schemas: Mapping[str, pa.Schema],
    types: dict[str, list[pa.DataType]],
) -> pa.DataType:
    """Return the type of the chosen column; raise ValueError if it is neither text nor the same."""
    conversations = [column_type for column_type in types[name] if holds_conversations(column_type)]
    # Conversations are written with a template only where they are asked for by name.
    takes_conversations = bool(conversations) and text_column is not None
    for source, schema in schemas.items():
        column_type = schema.field(name).type
        fits = is_text(column_type)
        if takes_conversations:
            fits = holds_conversations(column_type)
        if not fits and not is_empty(column_type):
            reason = f"{name!r} is {_shown(column_type)} in {source}"
            raise ValueError(_refusal(text_column, reason, types))
    if takes_conversations:
        return conversations[0]
    return pa.string()


def _refusal(text_column: str | None, reason: str, types: dict[str, list[pa.DataType]]) -> str:
    """Say why no column could be chosen, which columns there are, and what to do."""
    return (
        f"text_column is {text_column!r} but must name a text column: {reason}. "
        f"The columns are: {_listing(types)}.{_remedy(types)}"
    )


def _remedy(types: dict[str, list[pa.DataType]]) -> str:
    """Say how to turn the columns that users have most often into texts; empty for others."""
    map_rows = "for example with datasets.Dataset.map and lambda row:"
    prompt, completion = _QUESTION_AND_ANSWER
    if prompt in types and completion in types:
        joined = f'row["{prompt}"] + row["{completion}"]'
        if any(holds_conversations(column_type) for column_type in types[prompt]):
            return (
                f" To learn prompts and completions, join their messages into one column, "
                f'{map_rows} {{"messages": {joined}}}, and name it: --text_column messages.'
            )
        return (
            f" To learn prompts and completions, join them into one column, {map_rows} "
            f'{{"text": {joined}}}.'
        )
    for name, column_types in types.items():
        for column_type in column_types:
            if holds_conversations(column_type):
                content = content_field(column_type)
                return (
                    f" {name!r} holds conversations: --text_column {name} writes them with the "
                    "chat template of the tokenizer. Or join the messages yourself, "
                    f'{map_rows} {{"text": "\\n".join(message["{content}"] for message in '
                    f'row["{name}"])}}.'
                )
    for name, column_types in types.items():
        if any(pa.types.is_nested(column_type) for column_type in column_types):
            return (
                f" If the texts are inside {name!r}, move them into a column of their own, "
                f'{map_rows} {{"text": row["{name}"][...]}}.'
            )
    return ""


def _types_of(schema: pa.Schema) -> dict[str, list[pa.DataType]]:
    return {field.name: [field.type] for field in schema}


def _listing(types: dict[str, list[pa.DataType]]) -> str:
    """List columns with their types in all files."""
    columns = []
    for name, column_types in types.items():
        shown = dict.fromkeys(_shown(column_type) for column_type in column_types)
        columns.append(f"{name} ({' or '.join(shown)})")
    return ", ".join(columns) or "none"


def _shown(column_type: pa.DataType) -> str:
    text = str(column_type)
    if len(text) <= _LONGEST_TYPE:
        return text
    return f"{text[:_LONGEST_TYPE]}..."
