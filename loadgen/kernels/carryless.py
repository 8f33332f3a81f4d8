"""The processor's carry-less multiplication, for CRC-32.

Sixteen bytes are a polynomial over GF(2). Their product with x^128 modulo the polynomial of the
CRC has the same checksum sixteen bytes further on. In this way a message is folded into its last
sixteen bytes, and these are reduced to 32 bits (V. Gopal and others, "Fast CRC Computation for
Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009; the constants are those of the
reflected polynomial 0xEDB88320).
"""

from typing import Any

from loadgen.kernels.compiled import is_plain

if not is_plain():
    from llvmlite import ir
    from numba import config, types
    from numba.core import codegen
    from numba.core.extending import intrinsic

    _config: Any = config
    _host_features: Any = codegen.get_host_cpu_features
    _pair: Any = types.UniTuple
    _VECTOR = ir.VectorType(ir.IntType(64), 2)

_MASK = 0xFFFFFFFF

FOLD_64 = 0x0154442BD4, 0x01C6E41596
"""Factors that fold 16 bytes into those 64 bytes further on."""
FOLD_16 = 0x01751997D0, 0x00CCAA009E
_FOLD_4 = 0x0163CD6124
_POLYNOMIAL, _RECIPROCAL = 0x01DB710641, 0x01F7011641


def _has_instruction() -> bool:
    """Return True if code is compiled, and the processor has the instruction."""
    if is_plain() or _config.CPU_NAME not in (None, "host"):
        return False
    features: str = _config.CPU_FEATURES or _host_features()
    return "+pclmul" in features.split(",")


FOLDS = _has_instruction()


def _vector(builder: Any, low: Any, high: Any) -> Any:
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for place, word in enumerate((low, high)):
        vector = builder.insert_element(vector, word, ir.IntType(32)(place))
    return vector


def _multiplied(builder: Any, a: Any, b: Any, halves: int) -> Any:
    """Emit pclmulqdq: bit 0 of `halves` selects the half of `a`, bit 4 that of `b`."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, ir.IntType(8)])
    function = builder.module.globals.get("llvm.x86.pclmulqdq") or ir.Function(
        builder.module, kind, "llvm.x86.pclmulqdq"
    )
    return builder.call(function, [a, b, ir.IntType(8)(halves)])


def _fold(_context: Any, _low: Any, _high: Any, _by: Any, _then_low: Any, _then_high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high, by, then_low, then_high = arguments
        factors = _vector(builder, *(builder.extract_value(by, place) for place in range(2)))
        value = _vector(builder, low, high)
        folded = _vector(builder, then_low, then_high)
        for halves in (0x00, 0x11):
            folded = builder.xor(folded, _multiplied(builder, value, factors, halves))
        words = [builder.extract_element(folded, ir.IntType(32)(place)) for place in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    word, pair = types.int64, _pair(types.int64, 2)
    return pair(word, word, pair, word, word), generate


def _reduce(_context: Any, _low: Any, _high: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, high = arguments
        quarters = ir.VectorType(ir.IntType(32), 4)
        shifts = ir.Constant(ir.VectorType(ir.IntType(32), 4), [1, 2, 3, 4])
        nothing = ir.Constant(quarters, [0] * 4)

        def times(value: Any, factor: int) -> Any:
            """Return the product of the low 32 bits and a factor."""
            lowest = builder.and_(value, ir.Constant(_VECTOR, [_MASK, 0]))
            return _multiplied(builder, lowest, ir.Constant(_VECTOR, [factor, 0]), 0)

        value = _vector(builder, low, ir.IntType(64)(0))
        value = _multiplied(builder, value, ir.Constant(_VECTOR, [FOLD_16[1], 0]), 0)
        value = builder.xor(value, _vector(builder, high, ir.IntType(64)(0)))
        shifted = builder.shuffle_vector(builder.bitcast(value, quarters), nothing, shifts)
        value = builder.xor(times(value, _FOLD_4), builder.bitcast(shifted, _VECTOR))
        quotient = times(value, _RECIPROCAL)
        value = builder.xor(value, times(quotient, _POLYNOMIAL))
        return builder.lshr(builder.extract_element(value, ir.IntType(32)(0)), ir.IntType(64)(32))

    return types.int64(types.int64, types.int64), generate


fold: Any = None if is_plain() else intrinsic(_fold)
"""Function of (low, high, factors, then_low, then_high) that folds 16 bytes into the next ones."""
reduce: Any = None if is_plain() else intrinsic(_reduce)
"""Function of (low, high) that reduces the last 16 bytes to 32 bits."""
