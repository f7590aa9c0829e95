"""Batched k-means on 8 problems of 16,384 real states, K = 256, compared with scikit-learn and faiss on all cores."""

from __future__ import annotations

from importlib.metadata import version

import faiss
import numpy as np
import pytest
import sklearn
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from workload import CLUSTERS, SIZE

from sopr_fast import ops
from sopr_fast.sopr.subsets import Subsets

try:
    from sklearnex.cluster import KMeans as IntelexKMeans
except ImportError:
    IntelexKMeans = None

PROBLEMS, ITERATIONS = 8, 25
SKLEARN, FAISS = f"scikit-learn {sklearn.__version__}", f"faiss-cpu {faiss.__version__}"


@pytest.fixture(scope="module")
def points(states) -> torch.Tensor:
    generator = np.random.default_rng(0)
    rows = np.stack([generator.choice(len(states), SIZE, replace=False) for _ in range(PROBLEMS)])
    return torch.from_numpy(np.asarray(states, np.float32)[rows])


def test_lloyd_from_the_same_centroids(points, contend):
    start = points[:, :CLUSTERS].contiguous()
    arrays = list(zip(points.numpy(), start.numpy(), strict=True))
    inertia: dict[str, float] = {}

    def ours():
        result = ops.kmeans(points, CLUSTERS, init=start, iterations=ITERATIONS, tolerance=0.0)
        inertia["ours"] = float(result.inertia.sum())

    def scikit_learn():
        options = {"n_init": 1, "max_iter": ITERATIONS, "tol": 0.0, "algorithm": "lloyd"}
        inertia["theirs"] = sum(KMeans(CLUSTERS, init=c, **options).fit(x).inertia_ for x, c in arrays)

    def faiss_kmeans():
        for x, c in arrays:
            kmeans = faiss.Kmeans(x.shape[1], CLUSTERS, niter=ITERATIONS, max_points_per_centroid=len(x))
            kmeans.train(x, init_centroids=c)

    contend(ours, {SKLEARN: scikit_learn, FAISS: faiss_kmeans})
    assert inertia["ours"] <= 1.001 * inertia["theirs"]


def test_kmeans_init(points, contend):
    arrays = list(points.numpy())
    seeds = torch.arange(PROBLEMS)

    def scikit_learn():
        for i, x in enumerate(arrays):
            kmeans_plusplus(x, CLUSTERS, random_state=i)

    def intelex():
        for i, x in enumerate(arrays):
            IntelexKMeans(CLUSTERS, n_init=1, max_iter=1, random_state=i).fit(x)

    peers = {SKLEARN: scikit_learn}
    if IntelexKMeans is not None:
        peers[f"scikit-learn-intelex {version('scikit-learn-intelex')}, one step more"] = intelex
    contend(lambda: ops.kmeans_init(points, CLUSTERS, seeds), peers)


def test_subsets_drawn_and_clustered(states, contend):
    """From a log to clustered subsets, as in `fit` and `rank`."""

    def scikit_learn():
        for s in range(2):
            rows = np.random.default_rng([0, s]).choice(len(states), SIZE, replace=False)
            KMeans(CLUSTERS, n_init=1, random_state=s).fit(states[rows])

    contend(lambda: Subsets.draw(states, 2, size=SIZE, clusters=CLUSTERS), {SKLEARN: scikit_learn}, rounds=3)
