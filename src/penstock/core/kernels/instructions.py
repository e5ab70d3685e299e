"""Single machine instructions, and copies, for kernels: Numba's intrinsics.

None checks bounds. Only `penstock.core.kernels.instruction` imports this module, when a kernel is loaded.
"""

# mypy: ignore-errors
# (these functions have Numba's types, which mypy can't see)

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.core.kernels import BLOCK

_I8 = ir.IntType(8)
_I64 = ir.IntType(64)
_I128 = ir.IntType(128)
_V = ir.VectorType(_I8, BLOCK)


def _pointer(context, builder, array_type, array, index, bits):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


@intrinsic
def load64(_typing, array, _index):
    """The word at `index`, little-endian. Unchecked."""

    def code(context, builder, signature, args):
        return builder.load(
            _pointer(context, builder, signature.args[0], args[0], args[1], 64), align=1
        )

    return types.uint64(array, types.int64), code


@intrinsic
def store64(_typing, array, _index, _value):
    """Writes a word at `index`, little-endian. Unchecked."""

    def code(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], 64)
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), code


def _block(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _V.as_pointer())


def _every(byte):
    return ir.Constant(_V, [byte] * BLOCK)


def _marks(compare_spaces):
    """A function of an array and an index: a bit for each byte of a block that ends plain text."""

    def marks(_typing, array, _index):
        def code(context, builder, signature, args):
            text = builder.load(_block(context, builder, signature.args[0], *args), align=1)
            hits = builder.or_(
                builder.icmp_unsigned("==", text, _every(ord('"'))),
                builder.icmp_unsigned("==", text, _every(ord("\\"))),
            )
            hits = builder.or_(hits, compare_spaces(builder, text))
            return builder.zext(builder.bitcast(hits, ir.IntType(BLOCK)), _I64)

        return types.uint64(array, types.int64), code

    return intrinsic(marks)


# A bit for each byte of a block where plain ASCII text ends: a quote, a backslash, a control character, or a
# byte of a longer character (which is negative). Unchecked.
marks_text = _marks(lambda builder, text: builder.icmp_signed("<", text, _every(32)))
# A bit for each byte of a block that JSON must escape. Unchecked.
marks_escapes = _marks(lambda builder, text: builder.icmp_unsigned("<", text, _every(32)))


@intrinsic
def copy_block(_typing, source, _from, target, _to):
    """Copies a block. Unchecked."""

    def code(context, builder, signature, args):
        text = builder.load(_block(context, builder, signature.args[0], *args[:2]), align=1)
        builder.store(text, _block(context, builder, signature.args[2], *args[2:]), align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), code


@intrinsic
def trailing_zeros(_typing, _value):
    """How many low bits are zero; 64 for zero."""

    def code(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), code


@intrinsic
def leading_zeros(_typing, _value):
    """How many high bits are zero; 64 for zero."""

    def code(_context, builder, _signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), code


@intrinsic
def multiply_high(_typing, _left, _right):
    """The upper 64 bits of the 128-bit product."""

    def code(_context, builder, _signature, args):
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), code


@intrinsic
def double_of_bits(_typing, _bits):
    """The double that has these bits."""

    def code(_context, builder, _signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), code


@intrinsic
def bits_of_double(_typing, _value):
    """A double's bits, as the signed integer that an 8-byte slot holds."""

    def code(_context, builder, _signature, args):
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), code


@intrinsic
def copy_bytes(_typing, dst, dst_at, src, src_at, count):
    """`dst[dst_at:][:count] = src[src_at:][:count]` by memcpy; the caller has checked bounds."""
    signature = types.void(dst, dst_at, src, src_at, count)

    def codegen(context, builder, sig, args):
        """Emits the call."""
        pointer = ir.IntType(8).as_pointer()
        to = context.make_array(sig.args[0])(context, builder, args[0])
        frm = context.make_array(sig.args[2])(context, builder, args[2])
        at = [context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 3, 4)]
        target = builder.gep(builder.bitcast(to.data, pointer), [at[0]])
        source = builder.gep(builder.bitcast(frm.data, pointer), [at[1]])
        cgutils.raw_memcpy(builder, target, source, at[2], 1)
        return context.get_dummy_value()

    return signature, codegen
