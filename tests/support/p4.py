"""Runs a P4 program, as far as the programs of `hw/switch` use the language, for tests on machines without p4c.

Numbers are pairs of value and width; a width of None is P4's type int, and `BOOL` that of its type bool. Externs do
what the architectures v1model and TNA say of them. Types are checked where a statement is carried out, no sooner: much
that a compiler refuses would run here.
"""

import copy
import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from parsy import Parser, forward_declaration, regex, seq

_BINARY = [each.split() for each in ("||", "&&", "== !=", "< > <= >=", "|", "^", "&", "<<", "++ + -", "*")]
_OPERATORS = {"|": operator.or_, "^": operator.xor, "&": operator.and_, "<<": operator.lshift, "+": operator.add}
_OPERATORS |= {"-": operator.sub, "*": operator.mul}
_COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le}
_COMPARISONS |= {">=": operator.ge}


def _preprocess(path: Path, macros: dict[str, str]) -> str:
    text = []
    for line in path.read_text().splitlines():
        if include := re.match(r'#include "(.+)"', line):
            text.append(_preprocess(path.parent / include[1], macros))
        elif define := re.match(r"#define (\w+) (\S+)$", line):
            macros[define[1]] = define[2]
        elif not line.startswith("#"):
            text.append(re.sub(r"\b[A-Z]\w*\b", lambda found: macros.get(found[0], found[0]), line))
    return "\n".join(text)


BOOL = -1
"""Width of a bool."""


def _fit(width, wanted, what):
    """Refuse a value of another type; an int fits all but a bool."""
    assert width == wanted or (width is None and wanted != BOOL), f"{what} has the width {width}, not {wanted}"


class Cell:
    """A variable."""

    def __init__(self, width=None, value=0):
        self.width = width
        self.set(value)

    def set(self, value):
        self.value = value if self.width in (None, BOOL) else value & ((1 << self.width) - 1)


class Record(dict):
    """A header or struct: cells, or other records, by name."""

    is_header = valid = False


class Table:
    """A table that is filled as a controller would."""

    def __init__(self, name, parts):
        self.name = name
        self.keys = [key for key, _, _ in parts.get("key", [])]
        self.key_names = [name for _, _, name in parts.get("key", [])]
        self.actions = parts["actions"]
        self.size = parts.get("size", ("number", 1024, None))
        self.default = parts.get("default_action", ("name", "NoAction"))
        self.constant = parts.get("entries", [])
        self.entries = {}
        self.key_bits = []
        self.action_bits = {}

    def default_entry(self):
        """The action that is taken by default, and its values, which are numbers."""
        if () in self.entries:
            return self.entries[()]
        _, (_, name), values = self.default
        return name, [value[1] for value in values]


# -- the language ------------------------------------------------------------------------------------------------------


def _token(pattern: str) -> Parser:
    """What matches, with the space and comments behind it."""
    return regex(pattern) << regex(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


def _sign(text: str) -> Parser:
    return _token(re.escape(text))


def _word(text: str) -> Parser:
    return _token(rf"(?:{text})\b")


def _between(opening: str, item: Parser, closing: str, separator: str = "") -> Parser:
    return _sign(opening) >> (item << _sign(separator).optional()).many() << _sign(closing)


def _made(name: str, *parts: Parser) -> Parser:
    """A tuple that begins with a name."""
    return seq(*parts).map(lambda found: (name, *found))


def _joined(first, others):
    """Operands and the operators between them, those that bind closest first."""
    operands, signs = [first, *(operand for _, operand in others)], [sign for sign, _ in others]
    for level in reversed(_BINARY):
        at = 0
        while at < len(signs):
            if signs[at] in level:
                operands[at : at + 2] = [("binary", signs.pop(at), *operands[at : at + 2])]
            else:
                at += 1
    return operands[0]


def _number(text: str):
    width, _, digits = text.rpartition("w")
    return "number", int(digits, 0), int(width) if width else None


_expression, _unary, _type, _statement, _declaration = (forward_declaration() for _ in range(5))
_NAME = _token(r"[A-Za-z_]\w*")
_BITS = _made("bit", _word("bit") >> _between("<", _unary, ">").map(lambda found: found[0]))
_type.become(_BITS | _NAME << _between("<", _type, ">", ",").optional())
_PARAMETERS = _between("(", _word("in|out|inout").optional() >> seq(_type, _NAME).map(tuple), ")", ",")
_ARGUMENTS = _between("(", _expression, ")", ",")
_BLOCK = _between("{", _statement, "}")

_OPERATOR = _token(r"\|\||&&(?!&)|[=!<>]=|<<|\+\+|&(?!&)|[<>|^+*-]")
_SUFFIX = (
    _made("member", _sign(".") >> _NAME)
    | _made("slice", _sign("[") >> _expression << _sign(":"), _expression << _sign("]"))
    | _made("call", _ARGUMENTS)
)
_PRIMARY = _token(r"\d+w\d+|0x[0-9a-fA-F]+|\d+").map(_number) | _made("name", _NAME)
_unary.become(
    _made("unary", _token("[!~]"), _unary)
    | _made("cast", _sign("(") >> _BITS << _sign(")"), _unary)
    | _made("list", _between("{", _expression, "}", ","))
    | seq(_PRIMARY | _sign("(") >> _expression << _sign(")"), _SUFFIX.many()).combine(
        lambda inner, suffixes: functools.reduce(lambda owner, found: (found[0], owner, *found[1:]), suffixes, inner)
    )
)
_CHOICE = seq(_sign("?") >> _expression << _sign(":"), _expression)
_expression.become(
    seq(seq(_unary, seq(_OPERATOR, _unary).many()).combine(_joined), _CHOICE.optional()).combine(
        lambda found, choice: ("if", found, *choice) if choice else found
    )
)

_VARIABLE = _made("variable", _type, _NAME, (_sign("=") >> _expression).optional() << _sign(";"))
_statement.become(
    _made("block", _BLOCK)
    | _made(
        "branch",
        _word("if") >> _sign("(") >> _expression << _sign(")"),
        _statement,
        (_word("else") >> _statement).optional().map(lambda found: found or ("block", [])),
    )
    | _made("return") << _word("return") << _sign(";")
    | _VARIABLE
    | _made("assign", _expression, _sign("=") >> _expression << _sign(";"))
    | _expression << _sign(";")
)

_KEY = seq(_expression << _sign(":"), _NAME, (_sign("@name(") >> _token('"[^"]*"') << _sign(")")).optional())
_KEY = _KEY.combine(lambda key, kind, name: (key, kind, name and name.strip('"')))
_ENTRY = seq(
    _between("(", seq(_expression, (_sign("&&&") >> _expression).optional()).map(tuple), ")", ",") << _sign(":"),
    _expression << _sign(";"),
)
_PART = (
    seq(_word("key") << _sign("="), _between("{", _KEY, "}", ";"))
    | seq(_word("actions") << _sign("="), _between("{", _NAME, "}", ";"))
    | seq(_word("const").optional() >> _word("entries") << _sign("="), _between("{", _ENTRY.map(tuple), "}"))
    | seq(_word("const").optional() >> _NAME << _sign("="), _expression)
) << _sign(";").optional()
_CASE = seq(
    _word("default").result(None) | _between("(", _expression, ")", ",") | _expression.map(lambda found: [found]),
    _sign(":") >> _NAME << _sign(";"),
)
_TRANSITION = _word("transition")
_STATE = seq(
    _sign("{") >> (_TRANSITION.should_fail("a statement") >> _statement).many() << _TRANSITION,
    (_word("select") >> _ARGUMENTS).optional().map(lambda keys: keys or []),
    (_between("{", _CASE.map(tuple), "}") | (_NAME << _sign(";")).map(lambda target: [(None, target)])) << _sign("}"),
)
_FIELDS = _between("{", seq(_type, _NAME).map(tuple), "}", ";")
_APPLIED = _sign("{") >> _word("void") >> _word("apply") >> seq(_PARAMETERS, _BLOCK).map(tuple) << _sign("}")
_ANNOTATION = _sign("@") >> _NAME >> _token(r"\([^)]*\)")  # where the compiler is to put things
_declaration.become(
    _ANNOTATION.many()
    >> (
        seq(_word("header|struct"), _NAME, _FIELDS).map(tuple)
        | (_word("typedef") >> seq(_type, _NAME << _sign(";"))).combine(lambda kind, name: ("typedef", name, kind))
        | seq(_word("parser|control"), _NAME, _PARAMETERS, _between("{", _declaration, "}")).map(tuple)
        | seq(_word("action"), _NAME, _PARAMETERS, _BLOCK).map(tuple)
        | seq(_word("state"), _NAME, _STATE.map(tuple)).combine(lambda kind, name, found: (kind, name, [], found))
        | _made("table", _word("table") >> _NAME, _between("{", _PART, "}").map(dict))
        | _made("apply", _word("apply") >> _BLOCK)
        | (
            seq(_type, _ARGUMENTS, _NAME, (_sign("=") >> _APPLIED).optional() << _sign(";")).combine(
                lambda kind, arguments, name, body: ("instance", kind, name, arguments, body)
            )
        )
        | _word("const").optional() >> _VARIABLE
    )
)


@functools.cache
def _declarations(text: str):
    """What a program declares, as nested tuples."""
    return (_token("") >> _declaration.many()).parse(text)


# -- carrying it out ---------------------------------------------------------------------------------------------------


class _LeaveError(Exception):
    pass


class Program:
    """A program with its tables and registers.

    ``counts`` is what the counter ``outcomes`` has counted, by index; ``sizes`` are those of registers and counters, by
    name; ``touched`` are the registers that the last frame has accessed, as often as it has, with their control's name.
    """

    def __init__(self, path: Path) -> None:
        self._types, self._constants, self._blocks = {}, {}, {}
        self._scopes = {}
        self.tables, self.counts, self.sizes, self.touched = {}, Counter(), {}, []
        for found in _declarations(_ARCHITECTURES + _preprocess(path, {})):
            assert found[0] == "instance" or found[1] not in _TAKEN, f"{found[1]} is a name of the architecture"
            match found:
                case ("header" | "struct", name, _) | ("typedef", name, _):
                    self._types[name] = found if found[0] != "typedef" else found[2]
                case ("variable", kind, name, value):
                    self._constants[name] = self._new(kind, self._value(value, {}), name)
                case ("parser" | "control", name, *_):
                    self._blocks[name] = found
        self._instantiate("SwitchIngress", ())

    # Types

    def _new(self, kind, value=None, checked=None):
        """A variable of a type; where it is not cast, ``checked`` says what it is, and its value must fit."""
        while isinstance(kind, str) and kind != "bool":
            kind = self._types[kind]
        if kind == "bool" or kind[0] == "bit":
            width = BOOL if kind == "bool" else self._value(kind[1], {})[0]
            if value and checked:
                _fit(value[1], width, checked)
            return Cell(width, value[0] if value else 0)
        record = Record({name: self._new(field) for field, name in kind[2]})
        record.is_header = kind[0] == "header"
        return record

    # Set-up

    def scope(self, path):
        """What a control has declared, by name; ``path`` are the instances that lead to it."""
        return self._scopes[path]

    def parameters(self, control):
        """Names of the parameters of a control."""
        return [name for _, name in self._blocks[control][2]]

    def statements(self, control):
        """What a control does."""
        return next(item[1] for item in self._blocks[control][3] if item[0] == "apply")

    def _instantiate(self, name, path):
        """Tables, registers and the like of a control, and of those in it."""
        scope = {}
        for item in self._blocks[name][3]:
            match item:
                case ("action", label, parameters, body):
                    scope[label] = ("action", parameters, body)
                case ("table", label, parts):
                    table = Table(".".join(("SwitchIngress", *path, label)), parts)
                    scope[label] = table
                    self.tables[label] = table
                    records = {label: self._new(kind) for kind, label in self._blocks[name][2]}
                    table.key_bits = [self._value(key, records)[1] for key in table.keys]
                    for action in set(table.actions) - {"NoAction"}:
                        _, parameters, _ = scope[action]
                        table.action_bits[action] = {name: self._new(kind).width for kind, name in parameters}
                    table.size = self._value(table.size, {})[0]
                case ("instance", "register" | "Register", label, arguments, _):
                    scope[label] = {"size": self._value(arguments[0], {})[0], "name": (*path, label)}
                    self.sizes[label] = scope[label]["size"]
                case ("instance", "counter" | "Counter", label, arguments, _):
                    scope[label] = "counter"
                    self.sizes[label] = self._value(arguments[0], {})[0]
                case ("instance", "RegisterAction", label, arguments, body):
                    scope[label] = ("register action", scope[arguments[0][1]], *body)
                case ("instance", kind, label, _, _):
                    scope[label] = ("control", kind, (*path, label))
                    self._instantiate(kind, (*path, label))
        self._scopes[path] = scope

    # Running

    def _run_parser(self, name, frame, scope):
        """Fill headers from a frame; those that it does not reach stay invalid."""
        _, _, _, items = self._blocks[name]
        states = {item[1]: item[3] for item in items}
        bits, at = int.from_bytes(frame, "big"), 0
        state = "start"
        while state != "accept":
            statements, keys, cases = states[state]
            for statement in statements:
                if statement[0] == "call" and statement[1] == ("member", ("name", "packet"), "extract"):
                    header = self._place(statement[2][0], scope)
                    if not header.is_header:
                        continue  # the switch's own
                    size = sum(cell.width for cell in header.values())
                    if at + size > len(frame) * 8:
                        return
                    for cell in header.values():
                        cell.set(bits >> (len(frame) * 8 - at - cell.width))
                        at += cell.width
                    header.valid = True
                elif statement[0] != "call":
                    self._execute(statement, scope)
            got = [self._value(key, scope)[0] for key in keys]
            state = next(
                target
                for values, target in cases
                if values is None or [self._value(value, scope)[0] for value in values] == got
            )

    def _run_control(self, name, scope, path=()):
        """Run a control's apply block with its parameters in ``scope``."""
        _, _, _, items = self._blocks[name]
        inner = {**self._scopes.get(path, {}), **scope}
        try:
            for item in items:
                if item[0] == "variable":
                    self._execute(item, inner)
                elif item[0] == "apply":
                    for statement in item[1]:
                        self._execute(statement, inner)
        except _LeaveError:
            pass

    def _execute(self, statement, scope):
        match statement:
            case ("block", statements):
                for inner in statements:
                    self._execute(inner, scope)
            case ("branch", condition, yes, no):
                self._execute(yes if self._truth(condition, scope) else no, scope)
            case ("variable", kind, name, value):
                scope[name] = self._new(kind, self._value(value, scope) if value else None, name)
            case ("assign", target, value):
                place = self._place(target, scope)
                value, width = self._value(value, scope)
                _fit(width, place.width, target)
                place.set(value)
            case ("return",):
                raise _LeaveError
            case _:
                self._value(statement, scope)

    def _place(self, expression, scope):
        """The cell or record that an expression names."""
        match expression:
            case ("name", name):
                return scope[name] if name in scope else self._constants[name]
            case ("member", inner, name):
                return self._place(inner, scope)[name]
        raise AssertionError(f"not a variable: {expression}")

    def _value(self, expression, scope):
        match expression:
            case ("number", value, width):
                return value if width is None else value & ((1 << width) - 1), width
            case ("name", "true"):
                return 1, BOOL
            case ("name", "false"):
                return 0, BOOL
            case ("name", _) | ("member", _, _):
                cell = self._place(expression, scope)
                return cell.value, cell.width
            case ("cast", kind, inner):
                cell = self._new(kind, self._value(inner, scope))
                return cell.value, cell.width
            case ("slice", inner, high, low):
                low = self._value(low, scope)[0]
                width = self._value(high, scope)[0] - low + 1
                return self._value(inner, scope)[0] >> low & ((1 << width) - 1), width
            case ("if", condition, yes, no):
                (yes, width), (no, other) = self._value(yes, scope), self._value(no, scope)
                assert None in (width, other) or width == other, f"{width} or {other} bits"
                return yes if self._truth(condition, scope) else no, other if width is None else width
            case ("unary", "!", inner):
                return int(not self._truth(inner, scope)), BOOL
            case ("unary", "~", inner):
                value, width = self._value(inner, scope)
                return value ^ ((1 << width) - 1), width
            case ("binary", "&&" | "||" as sign, left, right):
                first = self._truth(left, scope)
                return (first if bool(first) == (sign == "||") else self._truth(right, scope)), BOOL
            case ("binary", sign, left, right):
                return self._combine(sign, self._value(left, scope), self._value(right, scope))
            case ("call", function, arguments):
                return self._call(function, arguments, scope)
        raise AssertionError(f"no such expression: {expression}")

    @staticmethod
    def _combine(sign, left, right):
        (a, a_width), (b, b_width) = left, right
        if sign == "++":
            return a << b_width | b, a_width + b_width
        if sign in _COMPARISONS:
            if b_width is None:
                a, b, a_width, b_width = a, b, b_width, a_width
            assert a_width in (None, b_width), f"{a_width} {sign} {b_width} bits"
            return int(_COMPARISONS[sign](a, b)), BOOL
        assert BOOL not in (a_width, b_width), f"{sign} of a bool"
        width = a_width if a_width is not None or sign == "<<" else b_width
        assert sign == "<<" or None in (a_width, b_width) or a_width == b_width, f"{a_width} {sign} {b_width} bits"
        value = _OPERATORS[sign](a, b)
        return value if width is None else value & ((1 << width) - 1), width

    def _call(self, function, arguments, scope):
        if function[0] == "name":
            name = function[1]
            if name == "mark_to_drop":
                standard = self._place(arguments[0], scope)
                standard["egress_spec"].set(DROP_PORT)
                standard["mcast_grp"].set(0)
            elif name != "NoAction":
                self._act(name, [self._value(argument, scope) for argument in arguments], scope)
            return 0, 1
        _, owner, method = function
        if method == "isValid":
            return int(self._place(owner, scope).valid), BOOL
        thing = self._place(owner, scope)
        match thing, method:
            case Table(), "apply":
                self._apply(thing, scope)
            case "counter", "count":
                self.counts[self._value(arguments[0], scope)[0]] += 1
            case dict(), "read":
                index = self._index(thing, arguments[1], scope)
                self._place(arguments[0], scope).set(thing.get(index, 0))
            case dict(), "write":
                thing[self._index(thing, arguments[0], scope)] = self._value(arguments[1], scope)[0]
            case ("register action", register, parameters, body), "execute":
                return self._execute_register(register, parameters, body, arguments[0], scope)
            case ("control", kind, path), "apply":
                names = [name for _, name in self._blocks[kind][2]]
                given = [self._place(argument, scope) for argument in arguments]
                self._run_control(kind, dict(zip(names, given, strict=True)), path)
            case _:
                raise AssertionError(f"no such call: {function}")
        return 0, 1

    def _index(self, register, argument, scope):
        index = self._value(argument, scope)[0]
        assert index < register["size"], "beyond the register"
        self.touched.append(register["name"])
        return index

    def _execute_register(self, register, parameters, body, address, scope):
        index = self._index(register, address, scope)
        stored = self._new(parameters[0][0])
        for number, cell in enumerate(stored.values() if isinstance(stored, Record) else [stored]):
            cell.set(register.get((index, number), 0))
        result = self._new(parameters[1][0]) if len(parameters) > 1 else Cell(1)
        names = [name for _, name in parameters]
        inner = {**scope, **dict(zip(names, [stored, result], strict=False))}
        for statement in body:
            self._execute(statement, inner)
        for number, cell in enumerate(stored.values() if isinstance(stored, Record) else [stored]):
            register[index, number] = cell.value
        return result.value, result.width

    def _act(self, name, values, scope):
        _, parameters, body = scope[name]
        cells = {label: self._new(kind, value, label) for (kind, label), value in zip(parameters, values, strict=True)}
        inner = {**scope, **cells}
        for statement in body:
            self._execute(statement, inner)

    def _apply(self, table, scope):
        got = tuple(self._value(key, scope)[0] for key in table.keys)
        if got in table.entries:
            name, values = table.entries[got]
            self._act(name, [(value, None) for value in values], scope)
            return
        for key, action in table.constant:
            if all(self._matches(value, mask, found, scope) for (value, mask), found in zip(key, got, strict=True)):
                self._value(action, scope)
                return
        default = table.default
        self._value(default if default[0] == "call" else ("call", default, []), scope)

    def _matches(self, value, mask, found, scope):
        if value == ("name", "_"):
            return True
        bits = -1 if mask is None else self._value(mask, scope)[0]
        return (self._value(value, scope)[0] ^ found) & bits == 0

    def _truth(self, expression, scope):
        value, width = self._value(expression, scope)
        _fit(width, BOOL, expression)
        return value

    def receive(self, frame: bytes, port: int) -> tuple[bytes, int] | None:
        """Have the ingress take a frame; returns the frame that leaves it, with its port or `Group`."""
        scope = self._ingress(frame, port)
        where = self._whither(scope)
        return None if where is None else (_deparse(scope["hdr"], frame), where)

    def forward(self, frame: bytes, port: int, ports_of: Callable[["Group"], Iterable[int]]) -> list[tuple[int, bytes]]:
        """Have the switch take a frame; returns the frames that leave it, each with its port.

        ``ports_of`` is the replication engine: the ports of a group that the packet gets to.
        """
        scope = self._ingress(frame, port)
        where = self._whither(scope)
        if where is None:
            return []
        left = []
        for out in ports_of(where) if isinstance(where, Group) else [where]:
            copied = copy.deepcopy(scope)
            if self._egress(copied, out):
                left.append((out, _deparse(copied["hdr"], frame)))
        return left

    def _ingress(self, frame, port):
        """What the variables of the ingress are after a frame."""
        blocks = ("SwitchParser" if "SwitchParser" in self._blocks else "IngressParser", "SwitchIngress")
        scope = {}
        self.touched = []
        for block in blocks:
            for kind, name in self._blocks[block][2]:
                if kind != "packet_in" and name not in scope:
                    scope[name] = self._new(kind)
        is_v1model = "standard" in scope
        intrinsic = scope["standard" if is_v1model else "ig_intr_md"]
        intrinsic["ingress_port"].set(port)
        if is_v1model:
            intrinsic["packet_length"].set(len(frame))
        self._run_parser(blocks[0], frame, scope)
        self._run_control(blocks[1], scope)
        return scope

    @staticmethod
    def _whither(scope):
        """The port or group that a frame goes to after the ingress; None if it is dropped."""
        if "standard" in scope:
            standard = scope["standard"]
            group, out = Group(standard["mcast_grp"].value), standard["egress_spec"].value
            is_dropped = out == DROP_PORT
        else:
            manager = scope["ig_tm_md"]
            group, out = Group(manager["mcast_grp_a"].value), manager["ucast_egress_port"].value
            group.rid, group.exclusion = manager["rid"].value, manager["level2_exclusion_id"].value
            is_dropped = bool(scope["ig_dprsr_md"]["drop_ctl"].value)
        if group:
            return group
        return None if is_dropped else out

    def _egress(self, scope, port):
        """Have a copy of a frame pass the egress to a port; returns whether it leaves."""
        if "standard" not in scope:
            assert scope["ig_tm_md"]["bypass_egress"].value, "an egress of TNA is not interpreted"
            return True
        standard = scope["standard"]
        standard["egress_port"].set(port)
        standard["egress_spec"].set(0)  # as simple_switch does
        self._run_control("SwitchEgress", scope)
        return standard["egress_spec"].value != DROP_PORT


def _deparse(headers, frame):
    """A frame with its headers as they are now."""
    valid = [header for header in headers.values() if header.valid]
    size = sum(cell.width for header in valid for cell in header.values())
    number = 0
    for header in valid:
        for cell in header.values():
            number = number << cell.width | cell.value
    return number.to_bytes(size // 8, "big") + frame[size // 8 :]


class Group(int):
    """A multicast group; on Tofino with the packet's replication number ``rid``, and its number in the table of ports
    that it does not leave through."""

    rid = exclusion = 0


def unpruned(
    group: Group, ports: Iterable[int], node_rid: int, pruned: Iterable[int], global_rid: int = 0
) -> list[int]:
    """Ports of a node that a Tofino's replication engine sends copies through.

    As in `bf_mc_get_lag_member_from_hash` of open-p4studio (pkgsrc/bf-drivers/src/mc_mgr/mc_mgr_intf.c): a port is left
    out if the packet has the node's number, or that of all nodes, which a switch sets, and the port is ``pruned``, by
    the table's entry for the packet's exclusion.
    """
    return [port for port in ports if group.rid not in (node_rid, global_rid) or port not in pruned]


DROP_PORT = 511
"""Where v1model sends what goes nowhere."""

_TAKEN = {"Parser", "VerifyChecksum", "Ingress", "Egress", "ComputeChecksum", "Deparser", "V1Switch"}
_TAKEN |= {"IngressParserT", "IngressT", "IngressDeparserT", "EgressParserT", "EgressT", "EgressDeparserT"}
"""What v1model and TNA declare."""

_ARCHITECTURES = """
typedef bit<9> PortId_t;
typedef bit<16> MulticastGroupId_t;
struct standard_metadata_t {
    bit<9> ingress_port; bit<9> egress_spec; bit<9> egress_port; bit<16> mcast_grp; bit<32> packet_length;
}
struct ingress_intrinsic_metadata_t { PortId_t ingress_port; }
struct ingress_intrinsic_metadata_from_parser_t { bit<16> parser_err; }
struct ingress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct ingress_intrinsic_metadata_for_tm_t {
    PortId_t ucast_egress_port; bit<1> bypass_egress; MulticastGroupId_t mcast_grp_a; PortId_t level2_exclusion_id;
    bit<16> rid;
}
"""
