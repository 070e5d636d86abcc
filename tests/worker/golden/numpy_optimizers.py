"""LAMB and LARS of one tensor, as their papers have them, in whatever precision the arrays are of.

LAMB: arXiv 1904.00962, algorithm 2, phi(z) = z, with bias correction. LARS: arXiv 1708.03888, algorithm 1, whose momentum
takes the learning rate in.
"""
import numpy as np


def lamb(weight, gradients, rates, beta1=0.9, beta2=0.95, epsilon=1e-8, decay=0.1):
    """[weights after each step], first moment, second moment."""
    first, second, trace = np.zeros_like(weight), np.zeros_like(weight), []
    for step, (gradient, rate) in enumerate(zip(gradients, rates), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient * gradient
        direction = (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
        update = direction + decay * weight
        weight = weight - rate * np.linalg.norm(weight) / np.linalg.norm(update) * update
        trace.append(weight)
    return trace, first, second


def lars(weight, gradients, rates, momentum=0.9, trust=1e-3, decay=0.1):
    """[weights after each step], momentum."""
    buffer, trace = np.zeros_like(weight), []
    for gradient, rate in zip(gradients, rates):
        norm = np.linalg.norm(weight)
        local = trust * norm / (np.linalg.norm(gradient) + decay * norm)
        buffer = momentum * buffer + rate * local * (gradient + decay * weight)
        weight = weight - buffer
        trace.append(weight)
    return trace, buffer
