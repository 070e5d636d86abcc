"""worker/tensor/counter_rng.h in Python: the same bits, by integer arithmetic only."""
import numpy as np

_MASK = (1 << 64) - 1


def mix_bits(z):
    """SplitMix64's finaliser, of a Python int or an array of uint64."""
    if isinstance(z, int):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Key:
    def __init__(self, value=0):
        self.value = value

    def fold(self, word):
        if isinstance(word, str):  # FNV-1a
            digest = 0xCBF29CE484222325
            for byte in word.encode():
                digest = ((digest ^ byte) * 0x100000001B3) & _MASK
            word = digest
        return Key(mix_bits(self.value ^ mix_bits((word + 0x9E3779B97F4A7C15) & _MASK)))

    def bits(self, count):
        """Bits(0) … Bits(count - 1) as an array of uint64."""
        counters = np.arange(1, count + 1, dtype=np.uint64)
        return mix_bits(np.uint64(self.value) + counters * np.uint64(0x9E3779B97F4A7C15))


def seed_key(seed):
    return Key().fold(seed)


def unit_bell(bits):
    low = np.uint64(0xFFFF)
    total = ((bits & low) + ((bits >> np.uint64(16)) & low) + ((bits >> np.uint64(32)) & low) +
             (bits >> np.uint64(48)))
    return (total.astype(np.int64) - 131070).astype(np.float64) * 2.6428997921303014e-05


def bell(seed, name, shape, std=1.0, mean=0.0):
    """What InitializeWeights and the tests' inputs are made of."""
    key = seed_key(seed).fold("init").fold(name)
    return (mean + std * unit_bell(key.bits(int(np.prod(shape))))).reshape(shape)
