"""NumPy by hand, as one of the peers that benchmarks/autograd.py measures."""

import numpy as np
import perceptron
import repetitions

if __name__ == "__main__":
    repetitions.serve(np.__version__, {"perceptron": perceptron.by_hand})
