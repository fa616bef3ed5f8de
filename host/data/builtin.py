"""Real data sets that come with scikit-learn, by name."""

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.data.spread import join_shares
from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import ALONE, Communicator, share_of

__all__ = ["BUILTIN", "is_builtin", "read_builtin"]

BUILTIN = {
    "breast_cancer": "569 tumours, 30 features: malignant (0) or benign (1)",
    "diabetes": "442 patients, 10 features: progression of the disease after a year, a regression",
    "digits": "1797 images of handwritten digits, 64 features, labels 0 to 9; digits:3 is digit 3 against the rest",
    "iris": "150 flowers, 4 features, labels 0 to 2; iris:1 is label 1 against the rest",
    "wine": "178 wines, 13 features, labels 0 to 2; wine:0 is label 0 against the rest",
}
"""Names and what they stand for."""


def is_builtin(source: str) -> bool:
    """Whether a source names a built-in data set, as ``digits`` or ``digits:3``."""
    return source.partition(":")[0] in BUILTIN


def read_builtin(source: str, communicator: Communicator = ALONE) -> Dataset:
    """Load a built-in data set.

    With a colon and a label, that label becomes 1 and all others become 0. Of several ranks each keeps its share.

    Raises
    ------
    UserError
        If there is no such data set or label.
    """
    import sklearn.datasets

    name, colon, wanted = source.partition(":")
    if name not in BUILTIN:
        raise UserError(f"there is no built-in data set {name!r}; there are {', '.join(BUILTIN)}")
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    labels = bunch.target.astype(float)
    if colon:
        if name == "diabetes":
            raise UserError(f"{source}: the labels of {name} are measurements, not classes")
        known = [str(label) for label in sorted(set(bunch.target.tolist()))]
        if wanted not in known:
            raise UserError(f"{source}: {name} has no label {wanted!r}; there are {', '.join(known)}")
        labels = (labels == float(wanted)).astype(float)
    own = share_of(communicator, labels.size)
    return join_shares(bunch.data[own.start : own.stop], labels, source, communicator)
