"""LLVM instructions that Numba does not offer, for compiled loops.

Each is called like a function; the compiler replaces the call by the instruction.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numba.core.cgutils
import numba.extending
from llvmlite import ir

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK

LANES = 16
"""Weights that `shrink_lanes` changes: as many as the widest vectors hold."""

DOT_LANES = BANKS
"""Columns that `add_dots` takes at a time: as many as a micro-batch has samples, whose sums then fill a vector."""

_intrinsic: Callable[[Any], Any] = numba.extending.intrinsic
_cgutils: Any = numba.core.cgutils
_types: Any = numba.types


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, number: int = 0, *indices: Any) -> Any:
    """The address of an element of an array, the ``number``-th argument; by default the next ones are its indices."""
    kind = signature.args[number]
    array = context.make_array(kind)(context, builder, arguments[number])
    return _cgutils.get_item_pointer(context, builder, kind, array, indices or arguments[1 : 1 + kind.ndim])


@_intrinsic
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask the processor to read ``array[row, column]``, which will be needed soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, byte = ir.IntType(32), ir.IntType(8)
        pointer = builder.bitcast(_pointer(context, builder, signature, arguments), byte.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])  # read, into all levels of the cache, data
        return context.get_dummy_value()

    return _types.void(array, row, column), generate


# -- arrays that share no memory ---------------------------------------------------------------------------------------


def _scopes(builder: Any) -> Any:
    """The metadata by which LLVM knows that `store_unaliased` writes nothing that `load_unaliased` reads."""
    domain = builder.module.add_metadata(["p4sgd"])
    return builder.module.add_metadata([builder.module.add_metadata(["p4sgd: only read", domain])])


@_intrinsic
def load_unaliased(typing: Any, array: Any, index: Any) -> Any:
    """``array[index]`` of an array to which `store_unaliased` does not write.

    The compiler uses vectors for loops that read at any index and write, if all is read and written by these two.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature, arguments))
        value.set_metadata("alias.scope", _scopes(builder))
        return value

    return array.dtype(array, index), generate


@_intrinsic
def store_unaliased(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value`` for an array that `load_unaliased` does not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
        builder.store(value, _pointer(context, builder, signature, arguments)).set_metadata("noalias", _scopes(builder))
        return context.get_dummy_value()

    return _types.void(array, index, value), generate


# -- words that threads exchange ---------------------------------------------------------------------------------------


@_intrinsic
def store_release(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value``, int64, for other threads: as soon as they see it by `load_acquire`, they see all that
    was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _pointer(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return _types.void(array, index, _types.int64), generate


@_intrinsic
def load_acquire(typing: Any, array: Any, index: Any) -> Any:
    """``array[index]``, int64, as another thread wrote it by `store_release`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "acquire", 8)

    return _types.int64(array, index), generate


# -- dot products of a micro-batch -------------------------------------------------------------------------------------


@_intrinsic
def add_dots(
    typing: Any,
    features: Any,
    row: Any,
    weights: Any,
    begin: Any,
    end: Any,
    addend: Any,
    shift: Any,
    totals: Any,
    worker: Any,
    place: Any,
) -> Any:
    """Add to ``totals[worker, place:place + 8]``, int64, the dot products of the columns from ``begin`` to ``end``, a
    multiple of `DOT_LANES`, of 8 rows from ``row`` on, uint8, and weights, float64: each plus ``addend``, shifted right
    by ``shift``.

    A vector has the products of a row with 8 weights. Those of 8 rows are added up together, which a compiler that
    takes one sum after the other does not do: of units of 8 columns it would use no vectors at all.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, row, _, begin, end, addend, shift, _, worker, place = arguments
        byte, word, index = ir.IntType(8), ir.IntType(64), ir.IntType(32)
        small, words, doubles = (ir.VectorType(kind, DOT_LANES) for kind in (byte, word, ir.DoubleType()))
        at, fused = functools.partial(_pointer, context, builder, signature, arguments), {"flags": ("contract",)}

        def load(pointer: Any, kind: Any, align: int) -> Any:
            return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=align)

        def pick(vector: Any, other: Any, lanes: Sequence[int]) -> Any:
            return builder.shuffle_vector(vector, other, ir.Constant(ir.VectorType(index, DOT_LANES), list(lanes)))

        def all_of(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(words, ir.Undefined), value, index(0))
            return pick(first, first, [0] * DOT_LANES)

        zeros = ir.Constant(doubles, [0.0] * DOT_LANES)
        kept = [_cgutils.alloca_once(builder, doubles) for _ in range(BANKS)]
        for each in kept:
            builder.store(zeros, each)
        with _cgutils.for_range_slice(builder, begin, end, word(DOT_LANES), word) as (column, _):
            own = load(at(2, column), doubles, 8)
            for bank, each in enumerate(kept):
                read = builder.uitofp(load(at(0, builder.add(row, word(bank)), column), small, 1), doubles)
                builder.store(builder.fadd(builder.load(each), builder.fmul(read, own, **fused), **fused), each)
        sums, even, odd = [builder.load(each) for each in kept], range(0, 2 * BANKS, 2), range(1, 2 * BANKS, 2)
        while len(sums) > 1:  # sums of neighbouring lanes of two rows fill a vector
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [builder.fadd(pick(*pair, even), pick(*pair, odd)) for pair in pairs]
        moved = builder.ashr(builder.add(builder.fptosi(sums[0], words), all_of(addend)), all_of(shift))
        total = builder.bitcast(at(7, worker, place), words.as_pointer())
        builder.store(builder.add(builder.load(total, align=8), moved), total, align=8)
        return context.get_dummy_value()

    word = _types.int64
    return _types.void(features, word, weights, word, word, word, word, totals, word, word), generate


# -- products of 64 bits in vectors ------------------------------------------------------------------------------------


@_intrinsic
def shrink_lanes(typing: Any, weights: Any, first: Any, factor: Any) -> Any:
    """L2 shrinkage by ``factor``, int64, of the `LANES` weights from ``first`` on, int32, in place.

    Products have 64 bits. Here even and odd weights are multiplied apart, as they lie in words of 64 bits; the compiler
    would widen all weights first and narrow them afterwards, which takes one and a half times as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, pairs = ir.VectorType(ir.IntType(32), LANES), ir.VectorType(ir.IntType(64), LANES // 2)

        def all_of(number: int) -> Any:
            return ir.Constant(pairs, [number] * pairs.count)

        def signed_low(words: Any) -> Any:
            return builder.ashr(builder.shl(words, all_of(32)), all_of(32))

        def shrinkage(words: Any) -> Any:  # rounded, in the upper half of a word
            return builder.add(builder.mul(words, signed_low(factors)), all_of(1 << 31))

        factors: Any = ir.Constant(pairs, ir.Undefined)
        scaled = builder.shl(arguments[2], ir.Constant(ir.IntType(64), 32 - SHRINK.fraction))
        for lane in range(pairs.count):
            factors = builder.insert_element(factors, scaled, ir.Constant(ir.IntType(32), lane))
        address = builder.bitcast(_pointer(context, builder, signature, arguments), lanes.as_pointer())
        old = builder.load(address, align=4)
        words = builder.bitcast(old, pairs)
        low, high = shrinkage(signed_low(words)), shrinkage(builder.ashr(words, all_of(32)))
        both = builder.or_(builder.lshr(low, all_of(32)), builder.and_(high, all_of(-1 << 32)))
        builder.store(builder.sub(old, builder.bitcast(both, lanes)), address, align=4)
        return context.get_dummy_value()

    return _types.void(weights, first, factor), generate
