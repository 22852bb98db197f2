"""Random weights as a function of tensor name and index alone: what tests/support/counter_weights.h
defines, for the makers of fixtures. Needs numpy."""
import numpy as np


def counter_hash(name):
    """FNV-1a, 64 bits, of the name's UTF-8 bytes."""
    value = 0xcbf29ce484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def counter_uniform(name, count):
    """[count] float64 in [-1, 1) on a grid of 2^-23."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        z += np.uint64(counter_hash(name))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1


def to_bf16(values):
    """float32 values rounded to bf16, ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1)))
    return (rounded & np.uint32(0xffff0000)).view(np.float32)


def counter_values(name, count, offset, scale):
    return to_bf16((offset + scale * counter_uniform(name, count)).astype(np.float32))


def counter_matrix(name, rows, fan_in):
    """[rows, fan_in] of variance 1 / fan_in."""
    return counter_values(name, rows * fan_in, 0, np.sqrt(3.0 / fan_in)).reshape(rows, fan_in)


def counter_norm(name, count):
    return counter_values(name, count, 1, 0.25)


def counter_bias(name, count):
    return counter_values(name, count, 0, 0.5)


if __name__ == "__main__":  # the values that tests/base/counter_weights_test.cpp expects
    print(f"hash {counter_hash('fc.weight'):#x}")
    print("matrix", [float(v) for v in counter_matrix("fc.weight", 2, 48).ravel()[[0, 1, 95]]])
    print("norm", [float(v) for v in counter_norm("norm.weight", 3)])
    print("bias", [float(v) for v in counter_bias("blk.0.attn_q.bias", 2)])
