"""What can be wrong with a folder of weights. Every error is a ValueError, so that a caller may catch them all at once."""


class ModelError(ValueError):
    """Something is wrong with a folder of weights, or with what is asked of it."""


class DamagedFile(ModelError):
    """A file is missing, cut off, too large, or not what its name says."""


class UnsafePath(ModelError):
    """A name leads out of the folder, or to what is no regular file."""


class UnsupportedFormat(ModelError):
    """The weights, or the architecture, are of a kind that is not read here."""


class WrongWeights(ModelError):
    """Names, shapes or types of the weights are not those that config.json asks for."""


class MissingPackage(ModelError):
    """A library that only this command needs is not installed."""
