"""Check what edits of a folder change, by comparison with the same folder made anew.

A script may be written in another way if it calls the vendor's commands as before. What an engineer chooses may differ:
where cells are placed, strategies, more reports, more cells and connections of a block design. Nothing else may.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import NoToolError, Problem
from p4sgd.build.check.sandbox import Call
from p4sgd.build.fpga.packaging import GATES, RULES
from p4sgd.build.fpga.vitis import JUDGE

_MEANING = {
    **dict.fromkeys((GATES, JUDGE, RULES), "these rules find designs that do not work"),
    ".vlt": "warnings of your own files may be hidden",
    ".v": "simulations and proofs are of the Verilog that is generated",
}
"""What an edit means, by the file's name or its ending."""

_QUERY = re.compile(r"(ipx::)?(get|current)_")
_PLACING = {"create_pblock", "resize_pblock", "add_cells_to_pblock"}
_STEPS = {"opt_design", "place_design", "phys_opt_design", "route_design"}  # options may differ
_MORE = re.compile(r"((ipx::)?(get|current)|report|create_bd|connect_bd)_")
"""Calls of which there may be more."""

_CHOICE = re.compile(
    r"(set_property |prop=run\.\w+\.)(strategy|STEPS\.\w+\.ARGS\.)"
    r"|(save-temps|slr)=|\[vivado\]|(resend_us|resends|doublings) ="
)
"""Settings that are an engineer's choice; `check_links` looks at dies."""

_JUDGING = r"p4sgd::judge |\b(catch|error|exit|quit|if|while)\b"
"""Lines of a script in which Tcl itself decides, also about failures."""

_MOST = 8
"""Differences of a file that are named one by one."""

_MANY = 50
"""Differences among which the most similar are looked for."""


class _Statement(NamedTuple):
    """A line of a file, or a call in a script."""

    file: str
    line: int
    text: str


def check_edits(folder: Folder) -> Iterator[Problem]:
    """Edited files say what the generated ones do, but for what may differ."""
    changed, original = [name for name in folder.changed if name != "README.md"], folder.original
    if not changed:
        return
    if original is None or original.manifest["files"] != folder.manifest["files"]:
        raise NoToolError("needs the release of p4sgd that made the folder, to make it anew")
    found: dict[Problem, None] = {}  # scripts have procedures in common
    if any(map(_is_script, changed)):
        for script, run in folder.runs.items():
            if not run.problems:
                found |= dict.fromkeys(_differences(_calls(original, script, changed), _calls(folder, script, changed)))
    for name in changed:
        found |= dict.fromkeys(_differences(_lines(original, name), _lines(folder, name)))
    counts: Counter[str] = Counter()
    for problem in found:
        name = problem.file
        counts[name] += 1
        meaning = _MEANING.get(name) or _MEANING.get(Path(name).suffix)
        if counts[name] <= _MOST:
            yield problem._replace(text=f"{problem.text}: {meaning}") if meaning and counts[name] == 1 else problem
    yield from (
        Problem(name, f"differs in {count - _MOST} more places") for name, count in counts.items() if count > _MOST
    )


def _is_script(name: str) -> bool:
    return name.endswith((".tcl", ".xdc"))


def _calls(folder: Folder, script: str, changed: list[str]) -> list[_Statement]:
    """Calls of a script, each where a file was changed that leads to it."""
    found = []
    for call in folder.runs[script].calls:
        text = _text(folder, call)
        is_plain = _QUERY.match(text) and len(call.arguments) == 1
        if not (is_plain or call.command in _PLACING or _CHOICE.match(text)):
            file, line = next((place for place in call.places if place[0] in changed), call.places[0])
            found.append(_Statement(file, line, text))
    return found


def _text(folder: Folder, call: Call) -> str:
    words = [word.replace(f"{folder.path.resolve()}/", "") for word in call.arguments]
    words = [f"{{{word}}}" if re.search(r"\s|^$", word) else word for word in words]
    text = call.command if call.command in _STEPS else " ".join([call.command, *words])
    return re.sub(r" -jobs \d+", "", text)


_COMMENTS = {**dict.fromkeys((".v", ".vlt", ".h", ".rdl"), "//"), ".md": "<!--"}
"""What comments begin with, by the file's ending, if not with a #."""


def _lines(folder: Folder, name: str) -> list[_Statement]:
    """Lines without comments and spaces between words; of scripts whose calls are compared, those in `_JUDGING`."""
    comment = _COMMENTS.get(Path(name).suffix, "#")
    part = _JUDGING if _is_script(name) and name != GATES else ""
    code = (line.partition("//")[0] if comment == "//" else line for line in folder.text(name).splitlines())
    texts = (" ".join(line.split()) for line in code)
    return [
        _Statement(name, number, text)
        for number, text in enumerate(texts, 1)
        if text and re.search(part, text) and not text.startswith(comment) and not _CHOICE.match(text)
    ]


def _differences(before: list[_Statement], after: list[_Statement]) -> Iterator[Problem]:
    """What is not there any more, with what took its place, and what is there besides."""
    missing, added = _without(before, after), _without(after, before)
    told: set[tuple[object, ...]] = set()
    for number, was in enumerate(sorted(missing, key=lambda each: bool(_QUERY.match(each.text)))):
        # Of many, only the first are told: each of the others takes the place of any.
        rivals = {each.text: each for each in added[:_MANY] if _is_like(each, was)}
        closest = get_close_matches(was.text, rivals, 1, 0.4) if number < _MANY else list(rivals)
        now = rivals[closest[0]] if closest else None
        if now is not None:
            added.remove(now)
        places = {was[:2], now[:2] if now else was[:2]}
        if not (_QUERY.match(was.text) and places & told):
            told |= places
            if now is None:
                yield Problem(was.file, f"lacks {_short(was.text)}")
            else:
                yield Problem(now.file, _contrast(now.text, was.text), now.line)
    cells = [each.text for each in added if each.text.startswith("create_bd_cell ")]
    own = tuple(f"{{create_bd_cell {text.split()[-1]}}}" for text in cells)
    for each in added:
        if not ((_is_script(each.file) and _MORE.match(each.text)) or each.text.endswith(own)):
            yield Problem(each.file, f"{_short(each.text)} is not generated", each.line)
    if not missing and not added and before and not before[0].file.endswith(".xdc"):  # in which order says nothing
        lists = ([each for each in these if not _QUERY.match(each.text)] for these in (before, after))  # nor of queries
        for was, now in zip(*lists, strict=True):
            if was.text != now.text:
                yield Problem(now.file, f"{_short(now.text)} is in another place", now.line)
                break


def _is_like(one: _Statement, other: _Statement) -> bool:
    """Whether one may have taken the other's place: they are in a file, and if in a script, calls of a command."""
    heads = [each.text.partition(" ")[0] for each in (one, other) if _is_script(each.file)]
    return one.file == other.file and len(set(heads)) < len(("one", "other"))


def _without(these: Iterable[_Statement], those: Iterable[_Statement]) -> list[_Statement]:
    """Statements that are more often among these than among those."""
    left = Counter((each.file, each.text) for each in those)
    left.subtract((each.file, each.text) for each in these)
    found = []
    for each in these:
        if left[each.file, each.text] < 0:
            left[each.file, each.text] += 1
            found.append(each)
    return found


def _contrast(now: str, was: str) -> str:
    """What differs of two texts, without the words that they have in common at both ends."""
    texts = [now.split(" "), was.split(" ")]
    first = _same(*texts)
    last = min(_same(*(text[::-1] for text in texts)), min(map(len, texts)) - first)
    given, generated = (_short(" ".join(text[first : len(text) - last])) or "nothing" for text in texts)
    begin = _short(" ".join(texts[0][:first]))
    return f"{begin} {given}; generated is {generated}".strip()


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of words that are the same at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:40]} … {text[-80:]}"
