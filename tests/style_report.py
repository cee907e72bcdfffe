"""How the package reads, in figures to compare with other projects.

`python tests/style_report.py [FOLDER]` counts the Python files of a folder, by default those of
the package. It is a report, not a limit: `make check` prints it and never fails because of it.

- A *line of code* holds more than closing brackets, and is no comment, no docstring and not
  empty. Lone brackets do not count because a formatter decides how many there are.
- A *ternary* is ``a if condition else b``, a *walrus* is ``:=``.
- A *tuple assignment* gives several names values that are written out: ``a, b = x, y``. Unpacking
  (``a, b = pair()``) is none, and neither is one that would be wrong in two statements, because
  a later value reads what an earlier one changes: ``a, b = b, a``.
- *Characters a line* and *lines over 100* are of all lines that are not empty, docstrings included.
- *Comment lines* hold nothing but a comment; their share is of all lines of the files. Comments
  behind code are counted apart.
- *Names that say nothing* are the words of ``VAGUE_NAMES`` wherever the code uses one as a name.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "headless_trainer"
LONGEST_LINE = 100
VAGUE_NAMES = ("each", "found", "own", "kind", "place", "given", "made")
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Counts:
    """What was counted in some source files."""

    files: int = 0
    lines: int = 0
    lines_with_text: int = 0
    lines_of_code: int = 0
    comment_lines: int = 0
    trailing_comments: int = 0
    characters: int = 0
    long_lines: int = 0
    ternaries: int = 0
    walruses: int = 0
    tuple_assignments: int = 0
    vague_names: Counter[str] = field(default_factory=Counter)

    def per_thousand(self, number: int) -> float:
        """Return a number per 1,000 lines of code."""
        return 1_000 * number / max(self.lines_of_code, 1)

    def add(self, other: "Counts") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def count_source(source: str) -> Counts:
    """Count one source file."""
    tree = ast.parse(source)
    counts = Counts(files=1)
    _count_lines(source, _docstring_lines(tree), counts)
    _count_tokens(source, counts)
    for node in ast.walk(tree):
        counts.ternaries += isinstance(node, ast.IfExp)
        counts.walruses += isinstance(node, ast.NamedExpr)
        counts.tuple_assignments += isinstance(node, ast.Assign) and _is_tuple_assignment(node)
    return counts


def count_folder(folder: Path) -> Counts:
    """Count all Python files of a folder and of the folders in it."""
    total = Counts()
    for path in sorted(folder.rglob("*.py")):
        total.add(count_source(path.read_text(encoding="utf-8")))
    return total


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def _count_lines(source: str, docstring_lines: set[int], counts: Counts) -> None:
    for number, line in enumerate(source.splitlines(), start=1):
        counts.lines += 1
        text = line.strip()
        if not text:
            continue
        counts.lines_with_text += 1
        counts.characters += len(line)
        counts.long_lines += len(line) > LONGEST_LINE
        if number in docstring_lines:
            continue
        if text.startswith("#"):
            counts.comment_lines += 1
        elif not re.fullmatch(r"[\])},: ]+", text):
            counts.lines_of_code += 1


def _count_tokens(source: str, counts: Counts) -> None:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.line.lstrip().startswith("#"):
            counts.trailing_comments += 1
        if token.type == tokenize.NAME and token.string in VAGUE_NAMES:
            counts.vague_names[token.string] += 1


def _is_tuple_assignment(node: ast.Assign) -> bool:
    """Whether names get values that are written out side by side, and could have got them one
    after the other.
    """
    targets = node.targets[0]
    values = node.value
    if not (isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple)):
        return False
    already_changed: set[str] = set()
    for target, value in zip(targets.elts, values.elts, strict=False):
        read = {ast.unparse(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
        if already_changed & read:
            return False
        already_changed.add(ast.unparse(target))
    return True


def summary(counts: Counts) -> str:
    """Return the figures of some files, one a line, with what this project aims at."""
    per_thousand = counts.per_thousand
    characters = counts.characters / max(counts.lines_with_text, 1)
    long_share = counts.long_lines / max(counts.lines_with_text, 1)
    comment_share = counts.comment_lines / max(counts.lines, 1)
    trailing_share = counts.trailing_comments / max(counts.lines, 1)
    rows = [
        ("ternaries", f"{per_thousand(counts.ternaries):.1f}", "at most 15"),
        ("walruses", f"{per_thousand(counts.walruses):.1f}", "at most 1"),
        ("tuple assignments", f"{per_thousand(counts.tuple_assignments):.1f}", "at most 5"),
        ("characters a line", f"{characters:.0f}", ""),
        (f"lines over {LONGEST_LINE}", f"{long_share:.1%}", "none"),
        ("comment lines", f"{comment_share:.1%}", "3 to 8 %"),
        ("comments behind code", f"{trailing_share:.1%}", ""),
    ]
    lines = [
        f"{counts.files} files, {counts.lines:,} lines, {counts.lines_of_code:,} of them code; "
        "the first three figures are per 1,000 lines of code"
    ]
    for label, figure, aim in rows:
        lines.append(f"  {label:21} {figure:>7}   {aim}".rstrip())
    names = ", ".join(f"{name} {counts.vague_names[name]}" for name in VAGUE_NAMES)
    lines.append(f"  names that say nothing: {names}")
    return "\n".join(lines)


def table_of_folders(package: Path) -> str:
    """Return a table of the modules and folders of a package, to find where the figures
    come from.
    """
    head = ("", "lines", "ternary", "walrus", "tuple", "over 100", "comment", "vague names")
    row_format = "  {:22}{:>7}{:>9}{:>8}{:>7}{:>10}{:>9}{:>13}"
    lines = [row_format.format(*head)]
    for path in sorted(package.iterdir()):
        if path.is_dir():
            counts = count_folder(path)
        elif path.suffix == ".py":
            counts = count_source(path.read_text(encoding="utf-8"))
        else:
            continue
        if not counts.lines_of_code:
            continue
        row = (
            path.name,
            counts.lines,
            f"{counts.per_thousand(counts.ternaries):.1f}",
            f"{counts.per_thousand(counts.walruses):.1f}",
            f"{counts.per_thousand(counts.tuple_assignments):.1f}",
            counts.long_lines,
            f"{counts.comment_lines / counts.lines:.1%}",
            counts.vague_names.total(),
        )
        lines.append(row_format.format(*row))
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    folder = Path(argv[0]) if argv else PACKAGE
    print(f"{folder.name}: {summary(count_folder(folder))}\n\n{table_of_folders(folder)}")


if __name__ == "__main__":
    main(sys.argv[1:])
