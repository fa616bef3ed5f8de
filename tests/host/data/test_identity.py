"""The identity of a data set: every value, label and name counts, the place in memory does not."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from p4sgd.host.data import Dataset
from p4sgd.host.data.identity import identify


def dataset(samples=96, features=40):
    rng = np.random.default_rng(1)
    return Dataset(rng.normal(size=(samples, features)), rng.integers(0, 2, samples), "made")


def changed(data, **more):
    return dataclasses.replace(data, name="other", **more)


def test_every_value_counts():
    data = dataset()
    features, labels = data.features.copy(), data.labels.copy()
    features[95, 39] = np.nextafter(features[95, 39], 9)
    labels[50] = 1 - labels[50]
    others = [
        changed(data, features=features),
        changed(data, labels=labels),
        changed(data, features=data.features[:, ::-1]),
        changed(data, features=data.features.reshape(192, 20), labels=np.repeat(data.labels, 2)),
        changed(data, features=scipy.sparse.csr_array(data.features)),
        changed(data, feature_names=tuple(map(str, range(40)))),
        changed(data, label_names=("no", "yes")),
        changed(data, zero_based=True),
    ]
    identities = [identify(each) for each in (data, *others)]
    assert len(set(identities)) == len(identities)
    assert identify(changed(data, features=np.asfortranarray(data.features))) == identities[0], "as it lies in memory"


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_every_part_of_a_sparse_matrix_counts(part):
    matrix = scipy.sparse.csr_array(([1.0, 2.0, 3.0], [0, 2, 1], [0, 1, 2, 3, 3]), shape=(4, 4))
    other = matrix.copy()
    getattr(other, part)[:] = {"data": [1, 2, 4], "indices": [0, 2, 3], "indptr": [0, 1, 2, 2, 3]}[part]
    same, different = (Dataset(each, np.arange(4.0) % 2, "sparse") for each in (matrix, other))
    assert identify(same) != identify(different)
    assert identify(same) == identify(Dataset(matrix.copy(), same.labels, "moved"))


def test_large_matrices_are_read_to_the_end():
    features = np.zeros((5000, 100), np.float32)
    data = Dataset(features, np.zeros(5000), "large")
    for row in (0, 2620, 2621, 2622, 4999):
        other = features.copy()
        other[row, 99] = 1
        assert identify(changed(data, features=other)) != identify(data)
