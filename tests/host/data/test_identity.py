"""The identity of a data set: every value, label and name counts, the place in memory does not."""

import dataclasses

import numpy as np
import scipy.sparse

from p4sgd.host.data import Dataset
from p4sgd.host.data.identity import identify


def changed(data, **more):
    return dataclasses.replace(data, name="other", **more)


def one_more(array, place):
    array = array.copy()
    array[place] = np.nextafter(array[place], 9)
    return array


def test_everything_counts():
    rng = np.random.default_rng(1)
    data = Dataset(rng.normal(size=(96, 40)), rng.integers(0, 2, 96), "made")
    matrix = scipy.sparse.csr_array(([1.0, 2.0, 3.0], [0, 2, 1], [0, 1, 2, 3, 3]), shape=(4, 4))
    other_places = {"data": [1, 2, 4], "indices": [0, 2, 3], "indptr": [0, 1, 2, 2, 3]}
    large = np.zeros((5000, 100), np.float32)
    sets = [
        data,
        changed(data, features=one_more(data.features, (95, 39))),
        changed(data, labels=one_more(data.labels, 50)),
        changed(data, features=data.features[:, ::-1]),
        changed(data, features=data.features.reshape(192, 20), labels=np.repeat(data.labels, 2)),
        changed(data, features=scipy.sparse.csr_array(data.features)),
        changed(data, feature_names=tuple(map(str, range(40)))),
        changed(data, label_names=("no", "yes")),
        changed(data, zero_based=True),
        changed(data, sample_weights=np.ones(96)),
        changed(data, sample_weights=one_more(np.ones(96), 7)),
        Dataset(matrix, np.arange(4.0), "sparse"),
        *[Dataset(one_more(large, (row, 99)), np.zeros(5000), "large") for row in (0, 2620, 2621, 2622, 4999)],
    ]
    for part, values in other_places.items():
        other = matrix.copy()
        getattr(other, part)[:] = values
        sets.append(Dataset(other, np.arange(4.0), "sparse"))
    assert len({identify(each) for each in sets}) == len(sets)
    assert identify(changed(data, features=np.asfortranarray(data.features))) == identify(data)
    assert identify(Dataset(matrix.copy(), np.arange(4.0), "moved")) == identify(sets[11])
