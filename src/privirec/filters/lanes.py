"""Loop steps on sixteen numbers side by side, callable from compiled loops.

A plain loop keeps its sums in memory: the order of additions must not change, and the compiler
cannot see that it would not. These steps keep sums in registers. Additions are done in the order
written here on every machine, whatever the width of its vectors.

Compiled loops that use these are cached by their own file: after a change here, touch `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

from privirec.compiled import LANES, STAGE

intrinsic: Any = extending.intrinsic

_WORD = ir.IntType(64)
_SHORT = ir.IntType(32)
_INDEX = types.int64
_NUMBER = types.float32


class _Step:
    """The arrays of one step, and code to load `lanes` of their numbers at once."""

    def __init__(self, target: Any, builder: Any, lanes: int = LANES) -> None:
        self.target = target
        self.builder = builder
        self.lanes = lanes
        self.kind = ir.VectorType(ir.FloatType(), lanes)

    def array(self, kind: Any, value: Any) -> Any:
        return self.target.make_array(kind)(self.target, self.builder, value)

    def at(self, array: Any, row: Any, column: Any) -> Any:
        """Return the address of an entry; `row` is None for a one-dimensional array."""
        if row is not None:
            width = self.builder.extract_value(array.shape, 1)
            column = self.builder.add(self.builder.mul(row, width), column)
        entry = self.builder.gep(array.data, [column])
        return self.builder.bitcast(entry, self.kind.as_pointer())

    def load(self, array: Any, row: Any, column: Any) -> Any:
        return self.builder.load(self.at(array, row, column), align=4)

    def store(self, value: Any, array: Any, row: Any, column: Any) -> None:
        self.builder.store(value, self.at(array, row, column), align=4)

    def repeated(self, number: Any) -> Any:
        vector = ir.Constant(self.kind, ir.Undefined)
        for lane in range(self.lanes):
            vector = self.builder.insert_element(vector, number, ir.Constant(_SHORT, lane))
        return vector

    def mask(self, holds: Any) -> Any:
        """Return one bit per lane."""
        bits = self.builder.bitcast(holds, ir.IntType(self.lanes))
        return self.builder.zext(bits, _WORD)

    def total(self, vector: Any) -> Any:
        """Add up the lanes: repeatedly add the second half to the first."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                self.builder.shuffle_vector(
                    vector,
                    vector,
                    ir.Constant(ir.VectorType(_SHORT, lanes), list(range(start, start + lanes))),
                )
                for start in (0, lanes)
            ]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, ir.Constant(_SHORT, 0))


def _added_up(step: _Step, first: Any, last: Any, term: Callable[[Any, Any], Any]) -> Any:
    """Loop total = term(position, total) over the positions, starting with zeros."""
    builder = step.builder
    before = builder.block
    more, add, done = (builder.append_basic_block(name) for name in ("more", "add", "done"))
    builder.branch(more)
    builder.position_at_end(more)
    position, total = builder.phi(_WORD), builder.phi(step.kind)
    position.add_incoming(first, before)
    total.add_incoming(ir.Constant(step.kind, [0.0] * step.lanes), before)
    builder.cbranch(builder.icmp_signed("<", position, last), add, done)
    builder.position_at_end(add)
    total.add_incoming(term(position, total), add)
    position.add_incoming(builder.add(position, ir.Constant(_WORD, 1)), add)
    builder.branch(more)
    builder.position_at_end(done)
    return total


def _gathering(lanes: int) -> Any:
    @intrinsic
    def gather(context, indices, start, stop, source, column, factor, out, row):  # type: ignore[no-untyped-def]
        signature = types.void(indices, _INDEX, _INDEX, source, _INDEX, _NUMBER, out, _INDEX)

        def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
            step = _Step(target, builder, lanes)
            names = step.array(signature.args[0], arguments[0])
            lines = step.array(signature.args[3], arguments[3])
            results = step.array(signature.args[6], arguments[6])
            _, first, last, _, left, weight, _, place = arguments

            def plus_line(position: Any, total: Any) -> Any:
                line = builder.load(builder.gep(names.data, [position]))
                if signature.args[0].dtype.bitwidth < _WORD.width:
                    line = builder.zext(line, _WORD)
                return builder.fadd(total, step.load(lines, line, left))

            total = _added_up(step, first, last, plus_line)
            step.store(builder.fmul(total, step.repeated(weight)), results, place, left)
            return target.get_dummy_value()

        return signature, generate

    return gather


gather = _gathering(LANES)
"""out[row, column:][:LANES] = factor * sum of source[j, column:] over j in indices[start:stop]."""
gather_wide = _gathering(4 * LANES)
"""`gather` for four times as many columns."""


@intrinsic
def above(context, line, first, threshold):  # type: ignore[no-untyped-def]
    """Return a bit for each of line[first:][:LANES]: set if it is above the threshold."""
    signature = types.uint64(line, _INDEX, _NUMBER)

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        step = _Step(target, builder)
        numbers = step.load(step.array(signature.args[0], arguments[0]), None, arguments[1])
        return step.mask(builder.fcmp_ordered(">", numbers, step.repeated(arguments[2])))

    return signature, generate


@intrinsic
def reaching(context, line, norms, first, factor, threshold):  # type: ignore[no-untyped-def]
    """Return a bit for each of (line + factor * norms)[first:][:LANES]: set if >= threshold."""
    signature = types.uint64(line, norms, _INDEX, _NUMBER, _NUMBER)

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        step = _Step(target, builder)
        numbers = step.load(step.array(signature.args[0], arguments[0]), None, arguments[2])
        lengths = step.load(step.array(signature.args[1], arguments[1]), None, arguments[2])
        most = builder.fadd(numbers, builder.fmul(lengths, step.repeated(arguments[3])))
        return step.mask(builder.fcmp_ordered(">=", most, step.repeated(arguments[4])))

    return signature, generate


@intrinsic
def lowest(context, bits):  # type: ignore[no-untyped-def]
    """Return the number of the lowest set bit; at least one bit must be set."""

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


class _Products:
    """Inner product of coordinates and a vector that is stored stage by stage, lane by lane."""

    def __init__(self, step: _Step, signature: Any, arguments: Any) -> None:
        self.step = step
        self.coordinates = step.array(signature.args[0], arguments[0])
        self.row = arguments[1]
        self.vectors = step.array(signature.args[2], arguments[2])

    def stage(self, stage: Any, line: Any, total: Any) -> Any:
        """Return the sums with the terms of one more stage added."""
        builder, step = self.step.builder, self.step
        column = builder.mul(stage, ir.Constant(_WORD, STAGE))
        for start in range(0, STAGE, LANES):
            first = ir.Constant(_WORD, start)
            one = step.load(self.coordinates, self.row, builder.add(column, first))
            other = step.load(self.vectors, line, first)
            total = builder.fadd(total, builder.fmul(one, other))
        return total


@intrinsic
def inner_product(context, coordinates, row, vectors, item, n_items, stages):  # type: ignore[no-untyped-def]
    """Return coordinates[row] . vector of an item, whose stage s is row s n_items + item."""
    signature = types.float32(coordinates, _INDEX, vectors, _INDEX, _INDEX, _INDEX)

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        step = _Step(target, builder)
        products = _Products(step, signature, arguments)
        _, _, _, item, n_items, stages = arguments

        def plus_stage(stage: Any, total: Any) -> Any:
            line = builder.add(builder.mul(stage, n_items), item)
            return products.stage(stage, line, total)

        return step.total(_added_up(step, ir.Constant(_WORD, 0), stages, plus_stage))

    return signature, generate


@intrinsic
def next_stage(context, coordinates, row, vectors, line, stage, sums, place, onto):  # type: ignore[no-untyped-def]
    """Set sums[onto] to sums[place] plus the terms of one more stage; return their total."""
    signature = types.float32(coordinates, _INDEX, vectors, _INDEX, _INDEX, sums, _INDEX, _INDEX)

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        step = _Step(target, builder)
        _, _, _, line, stage, _, place, onto = arguments
        held, start = step.array(signature.args[5], arguments[5]), ir.Constant(_WORD, 0)
        total = step.load(held, place, start)
        total = _Products(step, signature, arguments).stage(stage, line, total)
        step.store(total, held, onto, start)
        return step.total(total)

    return signature, generate


@intrinsic
def fetch(context, array, row):  # type: ignore[no-untyped-def]
    """Prefetch the STAGE entries of a row that will be needed soon."""
    signature = types.void(array, _INDEX)

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        step = _Step(target, builder)
        array = step.array(signature.args[0], arguments[0])
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _SHORT, _SHORT, _SHORT])
        load = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(_SHORT, number) for number in (0, 3, 1))
        for start in range(0, STAGE, LANES):
            place = step.at(array, arguments[1], ir.Constant(_WORD, start))
            builder.call(load, [builder.bitcast(place, byte), read, keep, data])
        return target.get_dummy_value()

    return signature, generate
