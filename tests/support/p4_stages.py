"""How many stages a Tofino needs at least for what a P4 program does, by what depends on what.

A step is a table with its actions, or an action that is called. It needs a later stage than each step before it that
writes what it reads or writes, and the same one at least as those that read what it writes. A stage has four stateful
ALUs, one for each register. What else a chip has few of is left out: a compiler may need more stages.
"""

from dataclasses import dataclass

from support.p4 import Program, Table

STATEFUL_ALUS = 4
"""Of a stage."""


@dataclass(frozen=True)
class Step:
    """What a table or an action reads and writes: fields, as "meta.tag"."""

    name: str
    reads: frozenset[str]
    writes: frozenset[str]
    has_register: bool


def stages(program: Program) -> dict[str, int]:
    """Stage of every step of the packets of the protocol, from 0 on."""
    placed: list[tuple[Step, int]] = []
    registers: dict[int, int] = {}
    for step in _steps(program, "SwitchIngress", (), {}, frozenset()):
        stage = 0
        for earlier, its in placed:
            if earlier.writes & (step.reads | step.writes):
                stage = max(stage, its + 1)
            elif earlier.reads & step.writes:
                stage = max(stage, its)
        if step.has_register:
            while registers.get(stage, 0) == STATEFUL_ALUS:
                stage += 1
            registers[stage] = registers.get(stage, 0) + 1
        placed.append((step, stage))
    return {step.name: stage for step, stage in placed}


def compiled_stages(context: dict) -> int:
    """How many stages a program takes, ingress and egress together, by the context.json of p4c for Tofino.

    As p4c at 34b86e9bac writes it: backends/tofino/compiler_interfaces/schemas/context_schema.py, "stage_number" of the
    stage tables.
    """

    def numbers(node):
        if isinstance(node, dict):
            yield from [node["stage_number"]] if "stage_number" in node else []
            node = list(node.values())
        if isinstance(node, list):
            for part in node:
                yield from numbers(part)

    return max(numbers(context["tables"])) + 1


def _steps(program, control, path, names, conditions):
    """Steps of a control in their order; ``names`` are the fields that its parameters stand for."""
    scope = program.scope(path)

    def walk(statements, conditions):
        for statement in statements:
            match statement:
                case ("branch", condition, yes, no):
                    inner = conditions | _fields(condition, names)
                    yield from walk([yes, no], inner)
                case ("block", inside):
                    yield from walk(inside, conditions)
                case ("call", ("member", ("name", owner), "apply"), arguments) if isinstance(scope[owner], Table):
                    yield _table(scope, owner, scope[owner], path, names, conditions)
                case ("call", ("member", ("name", owner), "apply"), arguments):
                    _, kind, inside = scope[owner]
                    given = [_path(argument, names) for argument in arguments]
                    parameters = dict(zip(program.parameters(kind), given, strict=True))
                    yield from _steps(program, kind, inside, parameters, conditions)
                case ("call", ("name", action), _):
                    yield _merge(action, [_action(scope, action, names)], conditions)

    return walk(program.statements(control), conditions)


def _table(scope, name, table, path, names, conditions):
    keys = frozenset().union(*(_fields(key, names) for key in table.keys)) if table.keys else frozenset()
    actions = [_action(scope, action, names) for action in table.actions if action != "NoAction"]
    return _merge(".".join((*path, name)), actions, conditions | keys)


def _merge(name, actions, reads):
    for more, _, _ in actions:
        reads |= more
    writes = frozenset().union(*(some for _, some, _ in actions))
    return Step(name, reads, writes, any(has for _, _, has in actions))


def _action(scope, name, names):
    """What an action reads and writes, and whether it uses a register."""
    _, parameters, body = scope[name]
    own = names | {label: None for _, label in parameters}
    reads, writes, has_register = frozenset(), frozenset(), False
    for statement in body:
        value = statement
        if statement[0] == "assign":
            writes |= {_path(statement[1], own)}
            value = statement[2]
        match value:
            case ("call", ("member", ("name", register), "execute"), arguments):
                has_register = True
                reads |= frozenset().union(*(_fields(argument, own) for argument in arguments))
                _, _, held, inside = scope[register]
                reads |= frozenset().union(*(_all_fields(each, own | {n: None for _, n in held}) for each in inside))
            case _:
                reads |= _fields(value, own)
    return reads, writes, has_register


def _path(expression, names):
    """A field's full name; None for what is no field of a packet."""
    match expression:
        case ("name", name):
            return names.get(name, name)
        case ("member", inner, name):
            owner = _path(inner, names)
            return None if owner is None else f"{owner}.{name}"
    return None


def _fields(expression, names):
    """Fields that an expression names."""
    return frozenset(path for path in _all_fields(expression, names) if "." in path)


def _all_fields(node, names):
    if not isinstance(node, tuple | list):
        return frozenset()
    if isinstance(node, tuple) and node and node[0] in ("member", "name"):
        path = _path(node, names)
        return frozenset([path]) if path and "." in path else frozenset()
    return frozenset().union(*(_all_fields(part, names) for part in node)) if node else frozenset()
