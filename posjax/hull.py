"""What lies within numbers that were met: their convex hull, felt from many directions.

Shape suffixes: N numbers met, M numbers asked about, F features of one number.
"""

import numpy as np

# A number counts as met within this share of the trained spread: between two neighbours of a
# finely stepped angle, say.
TOLERANCE = 0.1


def outside(trained_NF: np.ndarray, asked_MF: np.ndarray) -> np.ndarray:
    """Which asked points lie outside the convex hull of the trained ones, (M,).

    The hull is felt from 256 directions within the space the points span; exact for numbers, and
    for angles on a circle. Outside means by more than `TOLERANCE` of the trained spread.
    """
    center_F = trained_NF.mean(axis=0)
    trained_NF, asked_MF = trained_NF - center_F, asked_MF - center_F
    spread = max(np.linalg.norm(trained_NF, axis=1).max(), 1e-6 * (1 + np.abs(center_F).max()))
    _, sizes, axes_FF = np.linalg.svd(np.concatenate([trained_NF, asked_MF]), full_matrices=False)
    axes_FF = axes_FF[sizes > 1e-4 * max(sizes[0], 1e-30)]
    if len(axes_FF) == 2:
        turn = np.linspace(0, 2 * np.pi, 256, endpoint=False)
        directions = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    else:
        some = np.random.default_rng(0).normal(size=(256, len(axes_FF)))
        directions = np.concatenate([np.eye(len(axes_FF)), -np.eye(len(axes_FF)), some])
        directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-30)
    if not len(directions) or not len(axes_FF):
        return np.zeros(len(asked_MF), bool)
    reach = (trained_NF @ axes_FF.T @ directions.T).max(axis=0)
    return (asked_MF @ axes_FF.T @ directions.T > reach + TOLERANCE * spread).any(axis=1)
