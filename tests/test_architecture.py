"""The layout of the repository: one-way imports, rooms and their READMEs, what lies at the top."""

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("hw", "sim", "host", "build", "tests")
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", *ROOMS}
RULES = {
    "hw": ["p4sgd.hw"],
    "sim": ["p4sgd.hw", "p4sgd.sim"],
    "build": ["p4sgd.hw", "p4sgd.build"],
    "host": ["p4sgd.hw.spec", "p4sgd.sim", "p4sgd.host"],
}
"""What each room may import of ours."""
HARDWARE_LIBRARIES = {"amaranth", "amaranth_boards", "cocotb", "cocotb_tools"}


@dataclass(frozen=True)
class Import:
    """One imported module or name, as ``p4sgd.hw.spec.config.WorkerConfig``."""

    file: str
    line: int
    name: str
    lazy: bool
    """Within a function, or for type checkers only: it costs nothing at start-up."""

    def __str__(self):
        return f"{self.file}:{self.line} imports {self.name}"

    def within(self, *packages):
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)


def imports_of(source, file):
    """All imports of a Python text."""

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} has a relative import"
            for alias in node.names:
                yield Import(file, node.lineno, f"{node.module}.{alias.name}", lazy)
        else:
            inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            inner = inner or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inner)

    yield from visit(ast.parse(source), False)


def sources(room):
    found = sorted(path for path in (ROOT / room).rglob("*.py") if "out" not in path.relative_to(ROOT).parts[1:2])
    assert found, f"{room} has no sources"
    return found


def imports(room):
    for path in sources(room):
        yield from imports_of(path.read_text(), str(path.relative_to(ROOT)))


def assert_none(found):
    assert not found, "\n" + "\n".join(map(str, found))


def test_spec_is_pure_python_and_numpy():
    allowed = sys.stdlib_module_names | {"numpy"}
    assert_none(
        [i for i in imports("hw/spec") if not i.within("p4sgd.hw.spec") and i.name.split(".")[0] not in allowed]
    )


@pytest.mark.parametrize("room", RULES)
def test_imports_go_one_way(room):
    """Functions of the command line may import everything."""
    found = [i for i in imports(room) if i.within("p4sgd") and not i.within(*RULES[room])]
    if room == "host":
        found = [i for i in found if not (i.lazy and i.file.startswith("host/cli/"))]
    assert_none(found)


def test_host_and_models_start_without_hardware_libraries():
    """Only hw/, build/, the RTL cluster and the Verilator runner import Amaranth or cocotb when they are imported."""
    heavy = ("p4sgd.sim.cluster", "p4sgd.sim.verilator")
    exempt = ("sim/cluster/", "sim/verilator.py")
    found, exempted = [], set()
    for i in [*imports("sim"), *imports("host")]:
        hardware = i.within("p4sgd.hw") and not i.within("p4sgd.hw.spec")
        if not i.lazy and (i.name.split(".")[0] in HARDWARE_LIBRARIES or i.within(*heavy) or hardware):
            exempted |= {place for place in exempt if i.file.startswith(place)}
            if not i.file.startswith(exempt):
                found.append(i)
    assert_none(found)
    assert exempted == set(exempt), "what is exempt has such imports"


def test_cocotb_is_imported_only_inside_the_simulator():
    assert {i.file for i in imports("sim") if i.within("cocotb")} == {"sim/cluster/server.py"}


@pytest.mark.parametrize("room", ["hw", "sim", "host", "build"])
def test_rooms_do_not_import_tests_or_each_others_private_names(room):
    found = []
    for i in imports(room):
        private = i.within("p4sgd") and any(part.startswith("_") for part in i.name.split("."))
        if private or i.within("support", "tests") or i.name.split(".")[0] in ROOMS:
            found.append(i)
    assert_none(found)


def module_of(module_or_name, modules):
    """The file of the module that a dotted name leads to, None if it is no module of ours."""
    while module_or_name and module_or_name not in modules:
        module_or_name = module_or_name.rpartition(".")[0]
    return modules.get(module_or_name)


def circles(graph):
    """Groups of nodes that reach each other; ``graph`` maps a node to those it leads to."""

    def reached(start):
        found, ahead = set(), [start]
        while ahead:
            ahead += (new := graph.get(ahead.pop(), set()) - found)
            found |= new
        return found

    reach = {node: reached(node) for node in graph}
    return {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in graph} - {frozenset()}


@pytest.mark.parametrize("node", [lambda path: path, lambda path: path.parent], ids=["modules", "folders"])
def test_nothing_imports_in_circles(node):
    """Imports within functions and for type checkers count too. A folder and one within it may import each other."""
    paths = {path.relative_to(ROOT) for room in RULES for path in sources(room)}
    modules = {".".join(["p4sgd", *path.with_suffix("").parts]).removesuffix(".__init__"): path for path in paths}
    graph = {node(path): set() for path in paths}
    for room in RULES:
        for found in imports(room):
            ours, theirs = Path(found.file), module_of(found.name, modules)
            if theirs and not node(ours).is_relative_to(node(theirs)) and not node(theirs).is_relative_to(node(ours)):
                graph[node(ours)].add(node(theirs))
    assert_none(sorted(map(sorted, circles(graph))))


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_page(room):
    text = (ROOT / room / "README.md").read_text()
    assert 10 <= len(text.splitlines()) <= 80, "a README is one page"
    assert text.startswith("# "), "it begins with a title"
    assert "```" in text, "it has a picture"
    assert "start reading" in text.lower(), "it says where to start reading"
    if room in RULES:
        rule = text.partition("**Must never be imported here:**")[2].partition("\n\n")[0]
        forbidden = {f"p4sgd.{other}" for other in RULES} - set(RULES[room])
        assert forbidden <= set(re.findall(r"`(p4sgd\.\w+)`", rule)), "it says which rooms must not be imported"


def test_contributors_are_told_these_rules():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^;|]+)", text, re.MULTILINE)
    stated = {room: re.findall(r"`([\w/]+)`", allowed) for room, allowed in rows}
    assert {room: [f"p4sgd.{name.replace('/', '.')}" for name in stated[room]] for room in stated} == RULES


def documents():
    return [path for path in files() if path.suffix == ".md"]


def headings(text):
    """Names by which links reach the headings of a document, as code hosts make them."""
    found = Counter()
    for heading in re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        yield f"{name}-{found[name]}" if found[name] else name
        found[name] += 1


def test_links_of_documents_lead_somewhere():
    """To a file, and to a heading of a document."""
    assert list(headings("# A `b`, c\n```\n# no\n```\n## A b c\n")) == ["a-b-c", "a-b-c-1"]
    broken = []
    for path in documents():
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", (ROOT / path).read_text()):
            there = ROOT / path.parent / target if target else ROOT / path
            if re.match(r"\w+:", target):
                continue
            if not there.exists() or (heading and heading not in headings(there.read_text())):
                broken.append(f"{path} links to {target}{heading and f'#{heading}'}")
    assert_none(broken)


def test_documents_name_sources_that_are_there():
    """A path in a README begins at the top, at the README's folder or at its room."""
    sources_there = [path.as_posix() for path in files()]
    missing = []
    for path in documents():
        for name in re.findall(r"`([\w./-]+\.(?:py|pml))`", (ROOT / path).read_text()):
            if not any(there == name or there.endswith(f"/{name}") for there in sources_there):
                missing.append(f"{path} names {name}")
    assert_none(missing)


def names_in(source):
    """The names that a Python text has at its top level."""
    names, ahead = set(), [ast.parse(source)]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        else:
            ahead += ast.iter_child_nodes(node)
    return names


def test_docstrings_name_modules_that_are_there():
    """``p4sgd.host.data.read`` in a docstring, a comment or a string is a folder, a module, or a name in one."""
    modules = {}
    for room in RULES:
        for path in sources(room):
            name = ".".join(["p4sgd", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
            modules[name] = names_in(path.read_text())
    folders = {name.rpartition(".")[0] for name in modules} - {f"p4sgd.{room}" for room in RULES}

    def is_there(name):
        module = name
        while module and module not in modules:
            module = module.rpartition(".")[0]
        rest = name.removeprefix(module).split(".")[1:]
        return name in folders or (module and (not rest or rest[0] in modules[module]))

    missing, seen = [], 0
    for path in files():
        if path.suffix == ".py":
            for name in re.findall(rf"\bp4sgd\.(?:{'|'.join(RULES)})(?:\.[a-z]\w*)+", (ROOT / path).read_text()):
                seen += 1
                if not is_there(name):
                    missing.append(f"{path} names {name}")
    assert_none(missing)
    assert seen > 1000, "imports are among them"


def files():
    """Files of the repository: those that git tracks, because what users make here is theirs."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    done = subprocess.run(["git", "ls-files", "--cached", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in done.stdout.decode().split("\0") if name]
    return [Path(name) for name in names if (ROOT / name).is_symlink() or (ROOT / name).exists()]


def test_top_level_holds_nothing_else():
    found = {path.parts[0] for path in files()}
    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL


def test_test_files_have_unique_names():
    """A bench is imported by its bare name inside the simulator."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
